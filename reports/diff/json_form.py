"""A diff as JSON, for programs. The schema is `docs/records.md`."""

import math
from dataclasses import asdict
from typing import Any

from reports.diff.diff import Diff, Line
from reports.diff.side import Side
from reports.diff.text import headline
from workloads.records import SCHEMA_VERSION

_META = ("created", "tool_version", "simulated", "model", "device", "environment", "workload", "rate", "load", "slo")


def to_json(diff: Diff) -> dict[str, Any]:
    """Everything that is known of a diff. What is not known or not finite is null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "diff",
        "exit_code": diff.exit_code,
        "headline": headline(diff).sentence,
        "base": _side(diff.base),
        "new": _side(diff.new),
        "differences": {
            kind: [asdict(one) for one in getattr(diff.differences, kind)]
            for kind in ("refused", "settings", "environment")
        },
        "exact": diff.exact,
        "strict": diff.strict,
        "margin": diff.margin,
        "slo": None if diff.slo is None else asdict(diff.slo) | {"verdict": diff.slo.verdict.value},
        "lines": [_line(line) for line in diff.lines],
        "moved": [asdict(one) for one in diff.moved],
        "distrust": list(diff.distrust),
        "notices": list(diff.notices),
    }


def _side(side: Side) -> dict[str, Any]:
    runs = [{"seed": run.seed, "session": run.session, "distrust": run.distrust or None} for run in side.runs]
    described = {key: side.meta.get(key) for key in (*_META, "settings")}
    return {"name": side.name, "path": None if side.path is None else str(side.path), **described, "runs": runs}


def _line(line: Line) -> dict[str, Any]:
    return {
        "metric": line.metric.name,
        "unit": line.metric.unit,
        "smaller_is_better": line.metric.smaller_is_better,
        "rule": None if line.rule is None else str(line.rule),
        "gated": line.gated,
        "base": _finite(line.base),
        "new": _finite(line.new),
        "relative": line.relative,
        "change": _finite(line.change),
        "low": _finite(line.low),
        "high": _finite(line.high),
        "verdict": None if line.verdict is None else line.verdict.value,
        "reason": line.reason or None,
        "design": line.design,
        "units": line.units,
        "freedom": _finite(line.freedom),
        "has_noise": line.has_noise,
        "has_sessions": line.has_sessions,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
