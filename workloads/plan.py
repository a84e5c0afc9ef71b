"""A workload made concrete: which request arrives when, with which prompt and how many output tokens.

Everything follows from the spec, the seed and the index of a request. Request i has the same lengths and prompt at
every rate; the vocabulary changes its tokens and not its lengths.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING

from engine.errors import UserError
from workloads.arrivals import ClosedLoop, OpenLoop
from workloads.lengths import Lengths
from workloads.metrics import NS_PER_S
from workloads.prefixes import PrefixSource
from workloads.records import Phase
from workloads.spec import WorkloadSpec
from workloads.streams import stream

if TYPE_CHECKING:
    import numpy as np

_BATCH = 256

# Warm-up and window are laid out before the run; this many still fit into memory.
MOST_REQUESTS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class RequestPlan:
    """One request to come.

    Attributes:
        index: position in the stream, from 0.
        t_offset_ns: scheduled arrival from the start of the run; None in a closed loop.
        prompt: token ids, int32 `[prompt_tokens]`.
        max_tokens: output tokens to produce, exactly.
        phase: by the scheduled arrival; None in a closed loop, where the moment decides.
        class_name, priority: of its class.
        shared_prefix_tokens: so many tokens at the head of the prompt are those of other requests too.
    """

    index: int
    t_offset_ns: int | None
    prompt: "np.ndarray"
    max_tokens: int
    phase: Phase | None
    class_name: str
    priority: int
    shared_prefix_tokens: int = 0

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt as the engine takes it."""
        return self.prompt.tolist()


class WorkloadPlan:
    """An endless stream of requests, of which warm-up and window are made ahead.

    Later ones are made when asked for, some ten microseconds each.

    Attributes:
        spec, rate, seed: what it was made from; `rate` is None for a closed loop.
        warmup_ns, window_ns: lengths of the first two phases; the cooldown after them has no end.
        num_window_requests: scheduled in the window; None for a closed loop, where it turns out.
    """

    def __init__(
        self, spec: WorkloadSpec, rate: float | None, seed: int, vocab_size: int, warmup_ns: int, window_ns: int
    ) -> None:
        self.spec = spec
        self.rate = rate
        self.seed = seed
        self.warmup_ns = warmup_ns
        self.window_ns = window_ns
        self._made: list[RequestPlan] = []
        self._source = self._make(vocab_size)
        self._levels: list[int] = []
        self._level_source = (
            spec.arrival.levels(stream(seed, "arrivals")) if isinstance(spec.arrival, ClosedLoop) else iter(())
        )
        self.num_window_requests = self._make_ahead() if spec.is_open_loop else None

    def __iter__(self) -> Iterator[RequestPlan]:
        """All requests from the first; each iteration gives the same ones."""
        index = 0
        while True:
            if index == len(self._made):
                self._made.append(next(self._source))
            yield self._made[index]
            index += 1

    def phase_at(self, offset_ns: int) -> Phase:
        """The phase of a request scheduled `offset_ns` after the start of the run."""
        if offset_ns < self.warmup_ns:
            return "warmup"
        return "window" if offset_ns < self.warmup_ns + self.window_ns else "cooldown"

    def concurrency_at(self, offset_ns: int) -> int:
        """Requests that a closed loop keeps under way at that time."""
        arrival = self.spec.arrival
        assert isinstance(arrival, ClosedLoop)
        period = offset_ns // round(arrival.period_s * 1e9)
        while len(self._levels) <= period:
            self._levels.append(next(self._level_source))
        return self._levels[period]

    def level_ends_at(self, offset_ns: int) -> int:
        """Until when the number under way at that time stays what it is, as an offset."""
        arrival = self.spec.arrival
        assert isinstance(arrival, ClosedLoop)
        period_ns = round(arrival.period_s * 1e9)
        return (offset_ns // period_ns + 1) * period_ns

    def _make_ahead(self) -> int:
        count = 0
        for request in self:
            if request.phase == "cooldown":
                return count
            count += request.phase == "window"
        raise AssertionError("the stream of requests is endless")

    def _make(self, vocab_size: int) -> Iterator[RequestPlan]:
        import numpy as np

        classes = self.spec.request_classes
        tokens = stream(self.seed, "tokens")
        shared = self.spec.shared_prefix
        prefixes = None if shared is None else PrefixSource(shared, self.seed, vocab_size)
        lengths = {name: self._lengths(name) for name in classes}
        for index, (offset_ns, name) in enumerate(zip(self._offsets(), self._class_names(), strict=True)):
            prompt_tokens, max_tokens = next(lengths[name])
            prompt = tokens.randint(0, vocab_size, size=prompt_tokens, dtype=np.int32)
            prefix_tokens = 0 if prefixes is None else prefixes.place(prompt)
            phase = None if offset_ns is None else self.phase_at(offset_ns)
            yield RequestPlan(index, offset_ns, prompt, max_tokens, phase, name, classes[name].priority, prefix_tokens)

    def _lengths(self, name: str) -> Iterator[tuple[int, int]]:
        """Prompt and output lengths of a class, from streams of its own: other classes change nothing of them."""
        request_class = self.spec.request_classes[name]
        of = name if self.spec.classes else ""
        return zip(
            _endless(request_class.prompt_tokens, stream(self.seed, "prompt lengths", of)),
            _endless(request_class.output_tokens, stream(self.seed, "output lengths", of)),
            strict=True,
        )

    def _class_names(self) -> Iterator[str]:
        import numpy as np

        names = list(self.spec.request_classes)
        shares = [c.share for c in self.spec.request_classes.values()]
        limits = np.cumsum(shares)[:-1] / sum(shares)
        rng = stream(self.seed, "classes")
        while True:
            for number in np.searchsorted(limits, rng.random_sample(_BATCH), side="right").tolist():
                yield names[number]

    def _offsets(self) -> Iterator[int] | Iterator[None]:
        if not isinstance(self.spec.arrival, OpenLoop):
            return repeat(None)
        assert self.rate is not None
        segments_s = (self.warmup_ns / NS_PER_S, self.window_ns / NS_PER_S)
        return self.spec.arrival.offsets_ns(self.rate, stream(self.seed, "arrivals"), segments_s)


def make_plan(
    spec: WorkloadSpec, *, rate: float | None, seed: int, vocab_size: int, warmup_s: float, window_s: float
) -> WorkloadPlan:
    """Lay out a workload.

    Args:
        rate: requests per second, above 0; None for a closed loop.
        seed: of arrivals, lengths and prompts, 0 or more.
        vocab_size: token ids lie below it.
        warmup_s: seconds of load before the window.
        window_s: seconds that are measured.

    Raises:
        UserError: a value out of range, a rate for a closed loop, or none for an open one.
    """
    if spec.is_open_loop and rate is None:
        raise UserError(f"arrival={spec.arrival} needs a rate: give requests per second, such as --rate 6")
    if not spec.is_open_loop and rate is not None:
        raise UserError(f"rate={rate} is not possible with arrival={spec.arrival}: a closed loop has no rate")
    if rate is not None and not 0 < rate < float("inf"):
        raise UserError(f"rate={rate} is not possible: it is a number of requests per second above 0")
    if not 0 < window_s < float("inf"):
        raise UserError(f"window_s={window_s} is not possible: it is a number of seconds above 0")
    if not 0 <= warmup_s < float("inf"):
        raise UserError(f"warmup_s={warmup_s} is not possible: it is a number of seconds, 0 or more")
    if rate is not None and rate * (warmup_s + window_s) > MOST_REQUESTS:
        raise UserError(
            f"rate={rate:g} over {warmup_s + window_s:g} s asks for more than {MOST_REQUESTS:,} requests: "
            "lower the rate or shorten the window"
        )
    if seed < 0:
        raise UserError(f"seed={seed} is not possible: it is a whole number, 0 or more")
    if vocab_size < 1:
        raise UserError(f"vocab_size={vocab_size} is not possible: it is a whole number of at least 1")
    return WorkloadPlan(spec, rate, seed, vocab_size, round(warmup_s * 1e9), round(window_s * 1e9))


def _endless(lengths: Lengths, rng: "np.random.RandomState") -> Iterator[int]:
    # Batches of one fixed size: a stream's values may depend on how many are drawn at once.
    return chain.from_iterable(lengths.draw(rng, _BATCH).tolist() for _ in repeat(None))
