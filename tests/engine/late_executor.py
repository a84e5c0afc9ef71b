"""An executor that computes a step only when somebody waits for it: as far behind the host as a device may be.

Its model is a pure function of all tokens so far, which it reads from its own blocks. A block with a wrong content, a
token that came too late or a step out of order therefore changes what is answered.
"""

from dataclasses import dataclass
from zlib import crc32

from engine.clock import VirtualClock
from engine.executor.base import MemoryProfile, StepResult
from engine.request import PENDING_TOKEN
from engine.scheduler.plan import StepPlan

VOCAB = 8
EOS = 7
STEP_NS = 10_000_000


def next_token(tokens: tuple[int, ...]) -> int:
    """The model."""
    return crc32(bytes(tokens)) % VOCAB


def answer(prompt: list[int], max_tokens: int, ignore_eos: bool, stop_token_ids: tuple[int, ...] = ()) -> list[int]:
    """What a request must be answered."""
    output: list[int] = []
    while len(output) < max_tokens:
        token = next_token((*prompt, *output))
        output.append(token)
        if token in stop_token_ids or (token == EOS and not ignore_eos):
            break
    return output


@dataclass(frozen=True)
class Share:
    """What was read of a request when its step was launched."""

    request: object
    tokens: list[int]
    start: int
    table: list[int]
    samples: bool


class LateStep:
    """A handle."""

    def __init__(self, executor: "LateExecutor", plan: StepPlan) -> None:
        self._executor = executor
        self._swap = (list(plan.swap_out), list(plan.swap_in))
        self._shares = [
            Share(
                share.request,
                share.request.token_ids[share.num_computed : share.num_computed + share.num_tokens],
                share.num_computed,
                list(share.request.block_table),
                share.samples,
            )
            for share in plan.scheduled
        ]

    def wait(self) -> StepResult:
        executor = self._executor
        assert executor.under_way.pop(0) is self, "waited for out of order"
        if executor.fail is not None:
            raise executor.fail
        executor.clock.advance(STEP_NS)
        return StepResult(executor.compute(self._shares, *self._swap))


class LateExecutor:
    """See `engine.executor.base.OverlappingExecutor`; with `overlaps` off it is driven step by step."""

    device_name = "none"
    simulated = False
    vocab_size = VOCAB
    eos_token_ids: tuple[int, ...] = (EOS,)

    def __init__(self, *, overlaps: bool, max_model_len: int = 64) -> None:
        self.overlaps = overlaps
        self.clock = VirtualClock()
        self.max_model_len = max_model_len
        self.host_link_bytes_per_s: float | None = None
        self.plans: list[list[tuple[str, int, int]]] = []
        self.under_way: list[LateStep] = []
        self.most_under_way = 0
        self.fail: Exception | None = None
        self._pages: dict[tuple[int, int], int] = {}
        self._host_pages: dict[tuple[int, int], int | None] = {}
        self._sampled: dict[int, int] = {}
        self._block_size = 0

    def launch(self, plan: StepPlan) -> LateStep:
        assert plan.has_work
        shares = [(s.request.request_id, s.num_computed, s.num_tokens) for s in plan.scheduled]
        self.plans.append(shares)
        step = LateStep(self, plan)
        self.under_way.append(step)
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        assert self.most_under_way <= (2 if self.overlaps else 1)
        return step

    def execute(self, plan: StepPlan) -> StepResult:
        return self.launch(plan).wait()

    def compute(
        self, shares: list[Share], swap_out: list[tuple[int, int]], swap_in: list[tuple[int, int]]
    ) -> list[int]:
        """Copy out, copy in, write all tokens, then read every context that a token is sampled from."""
        size = self._block_size
        for block, host in swap_out:
            for offset in range(size):
                self._host_pages[host, offset] = self._pages.get((block, offset))
        for host, block in swap_in:
            for offset in range(size):
                content = self._host_pages[host, offset]
                if content is not None:
                    self._pages[block, offset] = content
        for share in shares:
            for position, token in enumerate(share.tokens, share.start):
                value = self._sampled[id(share.request)] if token == PENDING_TOKEN else token
                self._pages[share.table[position // size], position % size] = value
        sampled: dict[int, int] = {}
        for share in shares:
            if share.samples:
                end = share.start + len(share.tokens)
                context = tuple(self._pages[share.table[p // size], p % size] for p in range(end))
                sampled[id(share.request)] = next_token(context)
        self._sampled = sampled
        return list(sampled.values())

    def kv_bytes_per_block(self, block_size: int) -> int:
        return 1

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        raise AssertionError("the number of blocks is given")

    def allocate_kv(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        assert not self.under_way, "a step under way lost its cache"
        self._block_size = block_size
        self._pages.clear()
        self.host_link_bytes_per_s = 1e9 if num_swap_blocks else None

    def shutdown(self) -> None:
        pass
