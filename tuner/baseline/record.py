"""A baseline as it is stored: what was measured, and how to measure it again. The schema is `docs/records.md`."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from engine.build import LEARNT_SUFFIX, SIMULATED_PREFIX
from engine.errors import UserError
from reports.diff.load import BASELINE_FILE
from reports.shape import Shape, read_record, require_shape
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Load, TargetOptions
from workloads.slo import Slo, parse_slo
from workloads.spec import WorkloadSpec, spec_from_dict

SHARED = ("simulated", "model", "device", "environment", "workload", "rate", "load", "slo", "settings")
"""What a baseline takes from its first run."""

SAME = ("settings", "workload", "rate", "load", "slo")
"""What all of its runs have in common."""

_SHAPE: Shape = {
    "name": str,
    "created": str,
    "simulated": bool,
    "model": dict,
    "device": dict,
    "environment": (dict, type(None)),
    "workload": dict,
    "rate": (int, float, type(None)),
    "load": dict,
    "slo": (str, type(None)),
    "settings": dict,
    "target": dict,
    "runs": list,
}
LOAD_SHAPE: Shape = {"warmup_s": (int, float), "window_s": (int, float), "drain_timeout_s": (int, float)}
_TARGET_SHAPE: Shape = {"model": str, "device": str}
_TARGET_IF_THERE: Shape = {
    "dtype": str,
    "max_model_len": (int, type(None)),
    "device_memory_bytes": (int, type(None)),
    "weights_seed": int,
    "kv_cache_dtype": str,
    "attention_backend": str,
    "enforce_eager": bool,
    "max_cudagraph_capture_size": int,
    "tensor_parallel_size": int,
    "data_parallel_size": int,
    "router": str,
}
_ONLY_IF_CHANGED = (
    *("tensor_parallel_size", "data_parallel_size", "router"),
    *("enforce_eager", "max_cudagraph_capture_size"),
)
"""What the device of a run has where it is not the default."""
_RUN_SHAPE: Shape = {"path": str, "seed": int, "session": str}


@dataclass(frozen=True, slots=True)
class Baseline:
    """A stored baseline.

    Attributes:
        path: its folder.
        record: the content of `baseline.json`.
    """

    path: Path
    record: Mapping[str, Any]

    @classmethod
    def load(cls, path: Path) -> "Baseline":
        """Open a baseline's folder.

        Raises:
            UserError: no baseline there, a damaged one, or one of a schema that this version does not read.
        """
        file = path / BASELINE_FILE
        if not file.is_file():
            raise UserError(f"{str(path)!r} is no baseline: there is no {BASELINE_FILE}")
        record = read_record(file, "baseline")
        require_shape(record, _SHAPE, str(file))
        require_shape(record["load"], LOAD_SHAPE, f"{file}: load")
        require_shape(record["target"], _TARGET_SHAPE, f"{file}: target")
        given = {key: kind for key, kind in _TARGET_IF_THERE.items() if key in record["target"]}
        require_shape(record["target"], given, f"{file}: target")
        if not record["runs"]:
            raise UserError(f"{file} is damaged: it has no runs")
        for i, run in enumerate(record["runs"]):
            require_shape(run, _RUN_SHAPE, f"{file}: runs[{i}]")
        return cls(path, record)

    @property
    def name(self) -> str:
        return self.record["name"]

    @property
    def simulated(self) -> bool:
        return self.record["simulated"]

    @property
    def rate(self) -> float | None:
        """Requests per second; None for a closed loop."""
        return self.record["rate"]

    @property
    def settings(self) -> Settings:
        """Those of all its runs.

        Raises:
            UserError: one that this version does not know, or a value that cannot be.
        """
        return Settings.from_dict(self.record["settings"])

    @property
    def spec(self) -> WorkloadSpec:
        """The workload of all its runs.

        Raises:
            UserError: one that cannot be.
        """
        return spec_from_dict(self.record["workload"])

    @property
    def slo(self) -> Slo | None:
        text = self.record["slo"]
        return None if text is None else parse_slo([text])

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its runs, each once, in order."""
        return tuple(dict.fromkeys(run["seed"] for run in self.record["runs"]))

    @property
    def run_folders(self) -> tuple[Path, ...]:
        """The folders of its runs, in order."""
        return tuple(self.path / run["path"] for run in self.record["runs"])

    def load_of(self, seed: int) -> Load:
        """The load of one of its runs."""
        return load_of(self.record, seed)

    @property
    def target_options(self) -> TargetOptions:
        """What loads the same engine again, a learnt device from its copy in this folder.

        Raises:
            UserError: the record names something else than an engine's options.
        """
        known = {f.name for f in fields(TargetOptions)}
        if unknown := self.record["target"].keys() - known:
            raise UserError(f"{self.path / BASELINE_FILE} is damaged: target has {', '.join(sorted(unknown))}")
        options = TargetOptions(**self.record["target"])
        return options if self.card is None else options_on(options, self.card)

    @property
    def card(self) -> Path | None:
        """The file of the learnt device that it was simulated on; None for any other device."""
        return card_of(self.record["target"]["device"], self.path)


def load_of(meta: Mapping[str, Any], seed: int) -> Load:
    """The load that a run or a baseline has on record."""
    return Load(meta["rate"], seed, **{key: meta["load"][key] for key in LOAD_SHAPE})


def card_of(device: str, folder: Path = Path()) -> Path | None:
    """The file behind a learnt device's name `sim:FILE.json`, relative to a folder; None for any other device."""
    if not device.startswith(SIMULATED_PREFIX) or not device.endswith(LEARNT_SUFFIX):
        return None
    return folder / device.removeprefix(SIMULATED_PREFIX)


def options_on(options: TargetOptions, card: Path) -> TargetOptions:
    """The same engine on a learnt device."""
    return replace(options, device=f"{SIMULATED_PREFIX}{card}")


def options_of(meta: Mapping[str, Any]) -> TargetOptions:
    """What loads the engine of a run again, from its `run.json`.

    The memory is pinned where it is not the card's own: on a CPU it follows what else the machine does.
    """
    model, device = meta["model"], meta["device"]
    kind = device["kind"]
    return TargetOptions(
        model=model["name"],
        device=device["name"] if kind == "sim" else kind,
        dtype=model["dtype"],
        max_model_len=model["max_model_len"],
        device_memory_bytes=None if kind == "cuda" else device["memory_bytes"],
        kv_cache_dtype=model.get("kv_cache_dtype", "auto"),
        **{name: device[name] for name in _ONLY_IF_CHANGED if name in device},
    )


def other_machine(record: Mapping[str, Any], target: BundledTarget) -> str | None:
    """How the machine here differs from the one on record, in words; None where it does not."""
    theirs, ours = (
        _machine(record["device"], record["environment"]),
        _machine(target.describe_device(), target.environment),
    )
    # A simulated device is its figures, whichever machine computes them.
    keys = ("kind", "memory_bytes") if record["simulated"] else tuple(theirs)
    return next((f"its {k} is {theirs[k]}, the one here {ours[k]}" for k in keys if theirs[k] != ours[k]), None)


def _machine(device: Mapping[str, Any], environment: Mapping[str, Any] | None) -> dict[str, Any]:
    described = {key: device.get(key) for key in ("name", "kind", "memory_bytes", "threads")}
    return described | {key: (environment or {}).get(key) for key in ("cpu", "cpu_count")}


def now() -> str:
    """UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
