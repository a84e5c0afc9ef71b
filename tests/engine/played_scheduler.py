"""A scheduler under a virtual clock, played step by step: the tests' notation for who ran when."""

from collections.abc import Iterator
from typing import Any

from engine.clock import VirtualClock
from engine.config import SchedulerConfig
from engine.executor.base import StepResult
from engine.kv_cache.manager import KVCacheManager
from engine.request import Request, SamplingParams
from engine.scheduler.plan import StepPlan, TokenEvent
from engine.scheduler.preemption import PreemptionCost
from engine.scheduler.scheduler import Scheduler

BLOCK_SIZE = 4
SECOND = 1_000_000_000


class Played:
    """A scheduler whose steps take `step_s` each. Requests are written `A8/2`: id, prompt tokens, output tokens."""

    def __init__(
        self,
        *,
        num_blocks: int = 300,
        num_swap_blocks: int = 0,
        caching: bool = False,
        step_s: float = 1.0,
        cost: PreemptionCost | None = None,
        **config: Any,
    ) -> None:
        self.clock = VirtualClock()
        self.kv = KVCacheManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=caching, num_swap_blocks=num_swap_blocks)
        self.scheduler = Scheduler(
            SchedulerConfig(**config), self.kv, self.clock, max_model_len=1000, preemption_cost=cost
        )
        self.step_ns = round(step_s * SECOND)
        self.requests: dict[str, Request] = {}
        self.events: list[TokenEvent] = []

    @property
    def now_s(self) -> float:
        return self.clock.now_ns() / SECOND

    def add(self, texts: str, **fields: Any) -> None:
        """Queue requests now."""
        for text in texts.split():
            name = text.rstrip("0123456789/")
            prompt, _, output = text.removeprefix(name).partition("/")
            tokens = [1000 * (len(self.requests) + 1) + i for i in range(int(prompt))]
            sampling = SamplingParams(max_tokens=int(output or 1), ignore_eos=True)
            self.requests[name] = Request(name, tokens, sampling, **fields)
            self.scheduler.add(self.requests[name])

    def step(self) -> StepPlan:
        """One step; its time passes."""
        idle_until_ns = self.scheduler.idle_until_ns
        if idle_until_ns is not None:
            self.clock.sleep_until(idle_until_ns)
        plan = self.scheduler.schedule()
        self.clock.advance(self.step_ns)
        self.events += self.scheduler.finish_step(plan, StepResult([7] * sum(s.samples for s in plan.scheduled)))
        self.scheduler.check_integrity()
        return plan

    def plans(self) -> Iterator[StepPlan]:
        """Step by step until nothing is left."""
        while self.scheduler.has_work:
            yield self.step()

    def steps(self, most: int = 100) -> list[str]:
        """What is left to run, a text per step, such as `{A8,B1} preempts C`."""
        written: list[str] = []
        while self.scheduler.has_work and len(written) < most:
            written.append(write(self.step()))
        return written

    def order_of_admission(self) -> list[str]:
        """Run to the end. Ids in the order of their first admission."""
        while self.scheduler.has_work:
            self.step()
        admitted = [(self.admitted_s(name), i, name) for i, name in enumerate(self.requests)]
        return [name for at, _, name in sorted(admitted) if at < float("inf")]

    def admitted_s(self, name: str) -> float:
        """When a request was first admitted, in seconds; infinite when it never was."""
        times = [e.time_ns for e in self.requests[name].history if e.kind == "admitted"]
        return times[0] / SECOND if times else float("inf")


def write(plan: StepPlan) -> str:
    """A step as text."""
    shares = ",".join(f"{s.request.request_id}{s.num_tokens}" for s in plan.scheduled)
    return "{" + shares + "}" + "".join(f" preempts {r.request_id}" for r in plan.preempted)
