"""What `run.json` says of a run: everything needed to repeat it, and what came of it."""

import datetime
from typing import TYPE_CHECKING, Any

from tuner.environment import tool_version
from tuner.settings import Settings
from workloads.driver import DriveResult
from workloads.metrics import summarize, summarize_classes
from workloads.plan import WorkloadPlan
from workloads.records import SCHEMA_VERSION
from workloads.slo import Slo
from workloads.validity import check_validity

if TYPE_CHECKING:
    from tuner.targets.bundled import BundledTarget, Load


def describe_run(
    target: "BundledTarget",
    settings: Settings,
    load: "Load",
    slo: Slo | None,
    result: DriveResult,
    plan: WorkloadPlan,
    error: str | None,
) -> dict[str, Any]:
    """The content of `run.json`; `error` is why the run broke off, None when it did not."""
    budget = target.engine.kv_budget
    assert budget is not None
    window = result.window
    num_window = sum(r.phase == "window" for r in result.requests)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "run",
        "tool_version": tool_version(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "simulated": target.simulated,
        "model": target.describe_model(),
        "device": target.describe_device(),
        "settings": settings.to_dict(),
        "memory": {
            "total_bytes": budget.total,
            "weights_bytes": budget.weights,
            "other_bytes": budget.other,
            "peak_activation_bytes": budget.peak_activation,
            "kv_bytes": budget.kv_bytes,
            "num_blocks": target.engine.num_blocks,
            "block_size": settings.block_size,
            "bytes_per_block": budget.bytes_per_block,
            "num_swap_blocks": target.engine.num_swap_blocks,
            "host_link_bytes_per_s": target.executor.host_link_bytes_per_s if target.engine.num_swap_blocks else None,
        },
        "workload": target.spec.to_dict(),
        "rate": load.rate,
        "seed": load.seed,
        "load": {
            "warmup_s": load.warmup_s,
            "window_s": load.window_s,
            "drain_timeout_s": load.drain_timeout_s,
        },
        "slo": None if slo is None else str(slo),
        "window": {"start_ns": window.start_ns, "end_ns": window.end_ns, "requests": num_window},
        "stopped_early": f"failed: {error}" if error else result.stopped_early,
        "verdict": None if slo is None else slo.judge(result.requests).to_dict(),
        "validity": check_validity(result, plan),
        "summary": summarize(result.requests, result.iterations, window, slo),
        "classes": summarize_classes(result.requests, result.iterations, window, slo),
        "environment": target.environment,
    }
