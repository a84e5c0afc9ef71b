"""The engine's settings as the reports write them: for people, and as `--set` reads them.

The defaults stand here again because a report must not reach into the engine; a test holds them to `engine.config`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.format import GIB, MIB, is_known, plain, size, text

Writer = Callable[[Any], str]

_UNITS = (("GiB", GIB), ("GB", 10**9), ("MiB", MIB), ("MB", 10**6), ("KiB", 2**10), ("kB", 10**3))


def _exact_seconds(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".") + "s"


def _readable_seconds(value: float) -> str:
    return f"{value:.6g} s" if value >= 1 else f"{value * 1e3:.6g} ms"


def _exact_bytes(value: int) -> str:
    return next((f"{value // unit}{name}" for name, unit in _UNITS if value % unit == 0), plain(value))


def _readable_bytes(value: int) -> str:
    exact = (f"{value // unit} {name}" for name, unit in (("GiB", GIB), ("MiB", MIB)) if value % unit == 0)
    return next(exact, size(value))


def _or(zero: str, write: Writer) -> Writer:
    return lambda value: zero if value == 0 else write(value)


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a report knows of one setting.

    Attributes:
        default: its value when nothing is said.
        readable: how a table shows a value.
        argument: how `--set` takes it, exactly.
        always_shown: the short reports show it at its default too.
        tuned: the search varies it, so that a command names it at its default too.
    """

    default: object
    readable: Writer = plain
    argument: Writer = plain
    always_shown: bool = False
    tuned: bool = False


def _limit(default: int = 0, **flags: bool) -> _Setting:
    return _Setting(default, _or("off", plain), _or("off", plain), **flags)


def _duration() -> _Setting:
    return _Setting(0.0, _or("off", _readable_seconds), _or("off", _exact_seconds))


_SETTINGS: Mapping[str, _Setting] = {
    "gpu_memory_utilization": _Setting(0.9, always_shown=True, tuned=True),
    "max_num_seqs": _Setting(256, always_shown=True, tuned=True),
    "max_num_batched_tokens": _Setting(2048, always_shown=True, tuned=True),
    "chunk_size": _limit(always_shown=True, tuned=True),
    "policy": _Setting("fcfs", always_shown=True),
    "block_size": _Setting(16, always_shown=True),
    "enable_prefix_caching": _Setting(True, always_shown=True),
    "aging": _duration(),
    "short_first_tokens": _limit(),
    "retried_first": _Setting(False),
    "batching": _Setting("continuous"),
    "max_queue_delay": _duration(),
    "preferred_batch_size": _Setting(0, _or("max_num_seqs", plain)),
    "max_queue_len": _limit(),
    "max_queue_tokens": _limit(),
    "queue_timeout": _duration(),
    "max_predicted_wait": _duration(),
    "preemption_mode": _Setting("recompute"),
    "preemption_victim": _Setting("auto"),
    "swap_space": _Setting(4 * GIB, _or("off", _readable_bytes), _or("off", _exact_bytes)),
}
_UNKNOWN = _Setting(None)


def setting_text(name: str, value: object) -> str:
    """A setting's value for a table: 5 s, 4 GiB, off."""
    write = _SETTINGS.get(name, _UNKNOWN).readable
    return write(value) if is_known(value) else plain(value)


def assignment(name: str, value: object) -> str:
    """`name=value` as `--set` reads it: aging=5s, swap_space=4GiB, chunk_size=off."""
    write = _SETTINGS.get(name, _UNKNOWN).argument
    return f"{text(name)}={write(value) if is_known(value) else plain(value)}"


def at_default(name: str, value: object) -> bool:
    """Whether a setting has its default value; false for a setting that is not known here."""
    return name in _SETTINGS and value == _SETTINGS[name].default


def short_names(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that matter: the usual ones, and any that is not at its default in one of the configurations."""
    names = dict.fromkeys(name for settings in configurations for name in settings)
    return [
        name
        for name in names
        if _SETTINGS.get(name, _UNKNOWN).always_shown
        or not all(at_default(name, settings[name]) for settings in configurations if name in settings)
    ]


def assignments(settings: Mapping[str, Any]) -> list[str]:
    """Those that a command must name to run with these settings: not at their default, or varied by the search."""
    return [
        assignment(name, value)
        for name, value in settings.items()
        if value is not None and (not at_default(name, value) or _SETTINGS[name].tuned)
    ]
