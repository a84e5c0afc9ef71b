"""The engine's tunable options as one value: what a trial measures, a report prints and a user copies."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from engine.config import CacheConfig, SchedulerConfig, SchedulingPolicy
from engine.errors import UserError


@dataclass(frozen=True, slots=True)
class Settings:
    """One configuration of the engine, under vLLM's names and with vLLM's defaults.

    Raises:
        UserError: a value out of range.
    """

    gpu_memory_utilization: float = 0.9
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    chunk_size: int = 0
    policy: SchedulingPolicy = "fcfs"
    block_size: int = 16
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        self.scheduler()
        self.cache()

    def scheduler(self) -> SchedulerConfig:
        """The scheduler's share."""
        return SchedulerConfig(self.max_num_seqs, self.max_num_batched_tokens, self.chunk_size, self.policy)

    def cache(self) -> CacheConfig:
        """The KV cache's share."""
        return CacheConfig(self.gpu_memory_utilization, self.block_size, self.enable_prefix_caching)

    def canonical(self) -> "Settings":
        """The same behaviour in its plainest form, so that equal settings are recognised and measured once.

        Every seat needs a token of the budget, so more seats than tokens are never filled; a chunk as large as
        the budget limits nothing.
        """
        return replace(
            self,
            max_num_seqs=min(self.max_num_seqs, self.max_num_batched_tokens),
            chunk_size=0 if self.chunk_size >= self.max_num_batched_tokens else self.chunk_size,
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
        unknown = values.keys() - set(NAMES)
        if unknown:
            raise UserError(f"unknown setting {sorted(unknown)[0]!r}: known are {', '.join(NAMES)}")
        return cls(**values)

    def override(self, assignments: Iterable[str]) -> "Settings":
        """With `name=value` texts applied.

        Raises:
            UserError: an unknown name, or a value of the wrong kind or out of range.

        Example:
            >>> Settings().override(["max_num_seqs=96", "chunk_size=off"]).max_num_seqs
            96
        """
        return replace(self, **dict(parse_assignment(text) for text in assignments))


NAMES = tuple(f.name for f in fields(Settings))
_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


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
    """A setting's value from its text; `off` is accepted for chunk_size.

    Raises:
        UserError: no such setting, or not a value of its type.
    """
    if name not in NAMES:
        raise UserError(f"unknown setting {name!r}: known are {', '.join(NAMES)}")
    default = getattr(Settings(), name)
    if isinstance(default, str):
        return value
    try:
        if isinstance(default, bool):
            return _BOOLEANS[value.lower()]
        if name == "chunk_size" and value.lower() == "off":
            return 0
        return type(default)(value)
    except (ValueError, KeyError):
        kind = {bool: "true or false", int: "a whole number", float: "a number"}[type(default)]
        raise UserError(f"{name}={value!r} is not possible: it must be {kind}") from None
