"""Whether two sides can be compared at all, and what differs between them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import UserError
from reports.diff.side import Side
from reports.format import plain

ALLOWED = ("model", "device", "workload", "rate", "load", "slo", "simulated")
"""What `--allow` may name: the parts in which sides have to agree."""

_MODEL = ("name", "dtype", "kv_cache_dtype")
_DEVICE = ("name", "kind", "memory_bytes", "tensor_parallel_size", "data_parallel_size", "router")
# How fast a simulated device computes is no matter of the machine that plays it.
_REAL_DEVICE = ("threads",)
_MACHINE = ("cpu", "cpu_count")
_LISTED = ("torch", "python", "platform", "git_commit")


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that the sides do not have in common.

    Attributes:
        part: the one of `ALLOWED` that it belongs to, `settings` or `environment`.
        what: its name, such as `device.threads`.
        base, new: what the sides have.
    """

    part: str
    what: str
    base: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.what}: {_readable(self.base)} against {_readable(self.new)}"


@dataclass(frozen=True, slots=True)
class Differences:
    """Everything that differs between two sides.

    Attributes:
        refused: what makes them two different things: model, workload, rate, load, SLO, device.
        settings: what the comparison is about.
        environment: worth knowing: versions, driver, commit.
    """

    refused: tuple[Difference, ...]
    settings: tuple[Difference, ...]
    environment: tuple[Difference, ...]


def differences(base: Side, new: Side) -> Differences:
    """What differs between two sides, in which way it matters."""
    ours, theirs = base.meta, new.meta
    device = _DEVICE if base.simulated and new.simulated else _DEVICE + _REAL_DEVICE
    refused = [
        *_between("simulated", "simulated", base.simulated, new.simulated),
        *_by_key("model", "model", ours.get("model"), theirs.get("model"), _MODEL),
        *_by_key("device", "device", ours.get("device"), theirs.get("device"), device),
        *_by_key("workload", "workload", ours.get("workload"), theirs.get("workload")),
        *_between("rate", "rate", ours.get("rate"), theirs.get("rate")),
        *_by_key("load", "load", ours.get("load"), theirs.get("load")),
        *_between("slo", "SLO", ours.get("slo"), theirs.get("slo")),
    ]
    if not (base.simulated and new.simulated):
        refused += _by_key("device", "machine", ours.get("environment"), theirs.get("environment"), _MACHINE)
    return Differences(
        refused=tuple(refused),
        settings=tuple(_by_key("settings", "", base.settings, new.settings)),
        environment=(
            *_by_key("environment", "", ours.get("environment"), theirs.get("environment"), _LISTED),
            *_by_key("environment", "", ours.get("device"), theirs.get("device"), ("driver",)),
            *_by_key("environment", "model", ours.get("model"), theirs.get("model"), ("max_model_len", "weights")),
            *_between("environment", "tool_version", ours.get("tool_version"), theirs.get("tool_version")),
        ),
    )


def require_comparable(found: Differences, allow: Iterable[str] = ()) -> None:
    """Refuse to compare what is not comparable.

    Args:
        allow: parts of `ALLOWED` in which the sides may differ, or `all`.

    Raises:
        UserError: they differ in another; names every difference. Or `allow` names no such part.
    """
    allowed = set(allow)
    if unknown := sorted(allowed - {*ALLOWED, "all"}):
        raise UserError(f"--allow {unknown[0]!r} is not known: choose all, or some of {', '.join(ALLOWED)}")
    if "all" in allowed:
        return
    left = [difference for difference in found.refused if difference.part not in allowed]
    if left:
        listed = "; ".join(map(str, left))
        parts = ",".join(dict.fromkeys(difference.part for difference in left))
        raise UserError(f"these cannot be compared: {listed}. To compare them all the same: --allow {parts}")


def _by_key(part: str, prefix: str, base: Any, new: Any, keys: Sequence[str] | None = None) -> list[Difference]:
    """What differs between two objects of a record, by the keys given or by all that either has."""
    ours: Mapping[str, Any] = base or {}
    theirs: Mapping[str, Any] = new or {}
    names = dict.fromkeys([*ours, *theirs]) if keys is None else keys
    dot = "." if prefix else ""
    return [one for key in names for one in _between(part, f"{prefix}{dot}{key}", ours.get(key), theirs.get(key))]


def _between(part: str, what: str, base: Any, new: Any) -> list[Difference]:
    return [] if base == new else [Difference(part, what, base, new)]


def _readable(value: Any) -> str:
    return "none" if value is None else plain(value)
