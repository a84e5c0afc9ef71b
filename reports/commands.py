"""Settings as command lines that can be copied: `tune bench` to measure them again, vLLM's flags to use them."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reports.format import plain
from reports.settings import assignments, at_default
from reports.view import Command

WORKLOAD_FILE = "workload.yaml"
LINE_WIDTH = 66

# vLLM's flag for each setting that it has; a value that is vLLM's "off" or default, or that it lacks, gives none.
_VLLM_FLAGS: Mapping[str, Callable[[Any], tuple[str, ...]]] = {
    "gpu_memory_utilization": lambda v: ("--gpu-memory-utilization", plain(v)),
    "max_num_seqs": lambda v: ("--max-num-seqs", plain(v)),
    "max_num_batched_tokens": lambda v: ("--max-num-batched-tokens", plain(v)),
    "chunk_size": lambda v: ("--long-prefill-token-threshold", plain(v)) if v > 0 else (),
    "block_size": lambda v: ("--block-size", plain(v)),
    "enable_prefix_caching": lambda v: () if v else ("--no-enable-prefix-caching",),
    "policy": lambda v: ("--scheduling-policy", plain(v)) if v == "priority" else (),
}


# Options of the engine that a record has where they are not the default: in which part, and what the flag is called.
_ENGINE_FLAGS = (
    ("model", "kv_cache_dtype", "--kv-cache-dtype"),
    ("device", "tensor_parallel_size", "--tensor-parallel-size"),
    ("device", "data_parallel_size", "--data-parallel-size"),
)
_ONLY_OURS = (
    ("device", "router", "--router"),
    ("device", "max_cudagraph_capture_size", "--max-cudagraph-capture-size"),
    ("device", "enforce_eager", "--eager"),
)


def vllm_flags(settings: Mapping[str, Any], record: Mapping[str, Any]) -> Command:
    """The same settings as flags of `vllm serve`. The label names those that vLLM has no flag for.

    Args:
        record: a `run.json` or `study.json`, for how many devices there were, and for the KV cache's type.
    """
    flags = {name: to_flag(settings[name]) for name, to_flag in _VLLM_FLAGS.items() if settings.get(name) is not None}
    changed = [name for name, value in settings.items() if value is not None and not at_default(name, value)]
    left_out = ", ".join(name for name in changed if not flags.get(name))
    label = "These settings as vLLM flags"
    if left_out:
        label += f", without {left_out}: vLLM has no flag for that"
    return Command(label, _continued([*(flag for flag in flags.values() if flag), *_given(record, _ENGINE_FLAGS)]))


def bench_command(record: Mapping[str, Any], settings: Mapping[str, Any], rate: float | None) -> Command:
    """A `tune bench` line that measures `settings` once.

    Args:
        record: a `run.json` or `study.json`, for model, device, workload, SLO and seed.
        rate: requests per second; None leaves the workload's own arrivals (closed loop).
    """
    device = record.get("device") or {}
    options: list[tuple[str, object]] = [
        ("--model", record["model"].get("name")),
        ("--device", device.get("name") if str(device.get("name")).startswith("sim:") else None),
        ("--workload", _workload_source(record.get("workload") or {})),
        ("--slo", record.get("slo")),
        ("--rate", None if rate is None else float(f"{rate:.6g}")),
        ("--window", _window(record)),
        ("--seed", record.get("seed")),
    ]
    parts: list[tuple[str, ...]] = [("tune", "bench")]
    parts += [(option, plain(value)) for option, value in options if value is not None]
    parts += _given(record, (*_ENGINE_FLAGS, *_ONLY_OURS))
    parts += [("--set", text) for text in assignments(settings)]
    return Command("Measure these settings", _continued(parts))


def _given(record: Mapping[str, Any], flags: Sequence[tuple[str, str, str]]) -> list[tuple[str, ...]]:
    values = [(flag, (record.get(part) or {}).get(name)) for part, name, flag in flags]
    return [(flag,) if value is True else (flag, plain(value)) for flag, value in values if value is not None]


def _window(record: Mapping[str, Any]) -> str | None:
    """The window as asked, of a run or of a study's runs."""
    window_s = (record.get("load") or record.get("options") or {}).get("window_s")
    return None if window_s is None else f"{window_s:g}s"


def _workload_source(spec: Mapping[str, Any]) -> str | None:
    """A preset's name, or a file's when the spec was changed: the report gives that file's content."""
    from workloads.spec import PRESETS, load_spec

    name = spec.get("name")
    if name in PRESETS and load_spec(name).to_dict() == spec:
        return name
    return WORKLOAD_FILE if spec else None


def _continued(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Words over as few lines as fit, never parted inside an option, with the shell's mark of continuation."""
    lines: list[str] = []
    for part in parts:
        words = " ".join(shlex.quote(word) for word in part)
        if lines and len(lines[-1]) + len(words) < LINE_WIDTH:
            lines[-1] += f" {words}"
        else:
            lines.append(words)
    return tuple(line + " \\" for line in lines[:-1]) + tuple(lines[-1:])
