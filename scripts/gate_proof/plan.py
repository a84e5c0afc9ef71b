"""Which trials there are, and what each group of them is to show."""

from dataclasses import dataclass

from scripts.gate_proof.change import CHANGES, NOTHING, SLOWDOWN
from scripts.gate_proof.machines import MACHINES
from scripts.gate_proof.real import REAL
from scripts.gate_proof.trials import IN_TURN, STORED, Trial

_PROVEN = (NOTHING.name, SLOWDOWN.name)
# Of the repeats: for what is shown beside the goals.
_CURVE_SHARE, _STORED_SHARE = 8, 4


@dataclass(frozen=True, slots=True)
class Group:
    """Trials that differ by nothing but their noise and traffic."""

    kind: str
    machine: str
    change: str
    count: int

    def trials(self) -> list[Trial]:
        """Each of them."""
        return [Trial(self.kind, self.machine, self.change, number) for number in range(self.count)]


def groups(repeats: int, real_repeats: int) -> list[Group]:
    """All groups, those that goals depend on first.

    Args:
        repeats: of each of the two changes that a goal is about; the others take fewer.
        real_repeats: likewise on the real engine; 0 for none.
    """
    others = [change for change in CHANGES if change not in _PROVEN]
    few, stored = (max(1, repeats // share) for share in (_CURVE_SHARE, _STORED_SHARE))
    found = [Group(IN_TURN, machine, change, repeats) for machine in MACHINES for change in _PROVEN]
    found += [Group(STORED, machine, change, stored) for machine in MACHINES for change in _PROVEN]
    found += [Group(IN_TURN, machine, change, few) for machine in MACHINES for change in others]
    found += [Group(IN_TURN, REAL, change, real_repeats) for change in _PROVEN]
    return [group for group in found if group.count]
