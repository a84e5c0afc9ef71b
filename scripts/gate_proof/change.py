"""What is done to a machine on purpose, and what a day does to it: by how much its steps take longer."""

from dataclasses import dataclass

from engine.scheduler.plan import StepPlan


@dataclass(frozen=True, slots=True)
class Change:
    """A slowdown that the gate is to find, or is not to see where there is none.

    Attributes:
        name: for the tables.
        prompts: by which share a step takes longer that computes tokens of prompts, decodes beside them included.
        decodes: likewise one that only decodes.
    """

    name: str
    prompts: float = 0.0
    decodes: float = 0.0

    def factor(self, plan: StepPlan) -> float:
        """By which a step's duration is multiplied."""
        has_prompt = any(not share.is_decode for share in plan.scheduled)
        return 1.0 + (self.prompts if has_prompt else self.decodes)


NOTHING = Change("A/A")
SLOWDOWN = Change("10 % slower", 0.10, 0.10)
CHANGES = {
    change.name: change
    for change in (
        NOTHING,
        Change("5 % slower", 0.05, 0.05),
        SLOWDOWN,
        Change("20 % slower", 0.20, 0.20),
        Change("prompts 10 % slower", prompts=0.10),
        Change("decodes 10 % slower", decodes=0.10),
    )
}


@dataclass(slots=True)
class Conditions:
    """What holds on a machine just now.

    Attributes:
        change: made to the code that it runs.
        day: the machine's own pace on this day; 1.1 takes a tenth longer.
    """

    change: Change = NOTHING
    day: float = 1.0

    def factor(self, plan: StepPlan) -> float:
        """By which a step's duration is multiplied."""
        return self.day * self.change.factor(plan)
