"""The engine's tunable options as one value: what a trial measures, a report prints and a user copies."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from engine.config import (
    BatchingMode,
    CacheConfig,
    PreemptionMode,
    PreemptionVictim,
    SchedulerConfig,
    SchedulingPolicy,
)
from engine.errors import UserError
from engine.scheduler.waiting_queue import ORDERS
from tuner.catalogue import CATALOGUE


@dataclass(frozen=True, slots=True)
class Settings:
    """One configuration of the engine: every field of `SchedulerConfig` and `CacheConfig`, with their defaults.

    Only `num_gpu_blocks_override` is left out: the number of blocks follows from the memory here.

    Raises:
        UserError: a value out of range.
    """

    gpu_memory_utilization: float = 0.9
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    chunk_size: int = 0
    block_size: int = 16
    enable_prefix_caching: bool = True
    policy: SchedulingPolicy = "fcfs"
    short_first_tokens: int = 0
    retried_first: bool = False
    aging: float = 0.0
    batching: BatchingMode = "continuous"
    max_queue_delay: float = 0.0
    preferred_batch_size: int = 0
    max_queue_len: int = 0
    max_queue_tokens: int = 0
    queue_timeout: float = 0.0
    max_predicted_wait: float = 0.0
    preemption_mode: PreemptionMode = "recompute"
    swap_space: int = 4 << 30
    preemption_victim: PreemptionVictim = "auto"

    def __post_init__(self) -> None:
        self.scheduler()
        self.cache()

    def scheduler(self) -> SchedulerConfig:
        """The scheduler's share."""
        return SchedulerConfig(**{f.name: getattr(self, f.name) for f in fields(SchedulerConfig)})

    def cache(self) -> CacheConfig:
        """The KV cache's share."""
        return CacheConfig(**{f.name: getattr(self, f.name) for f in fields(CacheConfig) if f.name in NAMES})

    def inert_beside(self, name: str) -> str | None:
        """The setting beside which an option does nothing, such as `policy=fcfs`; None where the option acts."""
        condition = _CONDITIONS.get(name)
        if condition is None or condition.holds(self):
            return None
        return f"{condition.decider}={getattr(self, condition.decider)}"

    def canonical(self) -> "Settings":
        """The same behaviour in its plainest form, so that equal settings are recognised and measured once."""
        plain = replace(self, **{name: change for name, rule in _PLAINER.items() if (change := rule(self)) is not None})
        if plain != self:
            # What was made plainer may leave others nothing to do.
            return plain.canonical()
        return replace(self, **{name: _DEFAULTS[name] for name in NAMES if self.inert_beside(name)})

    def unrestrained(self) -> "Settings":
        """The same engine at full work: it turns nobody away, and no batch waits to grow."""
        return replace(
            self, max_queue_len=0, max_queue_tokens=0, queue_timeout=0.0, max_predicted_wait=0.0, max_queue_delay=0.0
        )

    def to_dict(self) -> dict[str, Any]:
        """As stored in `run.json`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Settings":
        """As read from `run.json`.

        Raises:
            UserError: an unknown name or an impossible value.
        """
        for name in values:
            require_known(name)
        return cls(**values)

    def override(self, assignments: Iterable[str]) -> "Settings":
        """With `name=value` texts applied.

        Raises:
            UserError: an unknown name, or a value of the wrong kind or out of range.

        Example:
            >>> Settings().override(["max_num_seqs=96", "queue_timeout=5s"]).queue_timeout
            5.0
        """
        return replace(self, **dict(parse_assignment(text) for text in assignments))


NAMES = tuple(f.name for f in fields(Settings))
_DEFAULTS = Settings().to_dict()


class _Condition(NamedTuple):
    """What an option needs of others, which need nothing themselves, to do anything; and which of them decides."""

    decider: str
    holds: Callable[[Settings], bool]


_CONDITIONS: Mapping[str, _Condition] = {
    # Arrival decides under fcfs, and waiting longer is having arrived earlier, unless some go to the head.
    "aging": _Condition("policy", lambda s: _some_go_ahead(s) or s.preemption_victim == "lowest_priority"),
    "max_queue_delay": _Condition("batching", lambda s: s.batching == "dynamic"),
    "preferred_batch_size": _Condition("batching", lambda s: s.batching == "dynamic"),
    "swap_space": _Condition("preemption_mode", lambda s: s.preemption_mode != "recompute"),
}


DRAW_ORDER = tuple(sorted(NAMES, key=lambda name: name in _CONDITIONS))
"""All names, each after those that decide whether it acts."""


def _some_go_ahead(settings: Settings) -> bool:
    order = ORDERS[settings.policy]
    return order.by_priority or order.by_size or settings.short_first_tokens > 0 or settings.retried_first


def _seats(settings: Settings) -> int:
    # Every seat needs a token of a step. The other modes decode a large batch in turns.
    if settings.batching != "continuous":
        return settings.max_num_seqs
    return min(settings.max_num_seqs, settings.max_num_batched_tokens)


def _waits_for_nothing(settings: Settings) -> bool:
    """A dynamic batch that never grows: it leaves at once, or is full with its first request."""
    at_once = settings.max_queue_delay == 0 and settings.preferred_batch_size == 0
    return settings.batching == "dynamic" and (at_once or settings.max_num_seqs == 1)


_PLAINER: Mapping[str, Callable[[Settings], Any]] = {
    "max_num_seqs": _seats,
    "chunk_size": lambda s: 0 if s.chunk_size >= s.max_num_batched_tokens else None,
    "batching": lambda s: "static" if _waits_for_nothing(s) else None,
    "preferred_batch_size": lambda s: 0 if s.preferred_batch_size >= s.max_num_seqs else None,
    # Without room in host memory every victim is recomputed.
    "preemption_mode": lambda s: "recompute" if s.swap_space == 0 else None,
    "preemption_victim": lambda s: "auto" if s.preemption_victim == _automatic_victim(s) else None,
}
"""Option to its plainer value with the same effect; None where there is none."""


def _automatic_victim(settings: Settings) -> PreemptionVictim:
    return "lowest_priority" if ORDERS[settings.policy].by_priority else "last"


def require_known(name: str) -> None:
    """Refuse a name that no setting has.

    Raises:
        UserError: with the name that was probably meant.
    """
    if name in NAMES:
        return
    near = difflib.get_close_matches(name, NAMES, n=1)
    right = f"did you mean {near[0]}? `tune settings` lists all" if near else f"known are {', '.join(NAMES)}"
    raise UserError(f"unknown setting {name!r}: {right}")


def parse_assignment(text: str) -> tuple[str, Any]:
    """`name=value` as a name and a value of that setting's type.

    Raises:
        UserError: it has another form, or names no setting.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value:
        raise UserError(f"--set {text!r} is not understood: write name=value, for example max_num_seqs=96")
    return name, parse_value(name, value)


def parse_value(name: str, value: str) -> Any:
    """A setting's value from its text, as `tune settings` shows them.

    Raises:
        UserError: no such setting, or not a value of its kind.
    """
    require_known(name)
    return CATALOGUE[name].kind.read(name, value.strip())
