"""A device in a file: its memory and its step times under one model, learnt from runs on it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from engine.config import DTYPE_BYTES
from engine.errors import UserError
from engine.executor.base import MemoryProfile
from engine.executor.simulated import SimulatedExecutor
from engine.executor.step_times import JitteredStepTimes, StepTimes
from engine.model.arch import ModelArch

SCHEMA_VERSION = 1
# For devices whose runs had no swap space, so that the host's link was not measured: the order of an older PCIe.
ASSUMED_LINK_BYTES_PER_S = 10e9


@dataclass(frozen=True)
class MemoryModel:
    """What is fixed of a device's memory, and a step's peak as a line over its token budget.

    Attributes:
        total, weights, other: as in `MemoryProfile`, in bytes.
        fixed_bytes, per_token_bytes: of the peak.
    """

    total: int
    weights: int
    other: int
    fixed_bytes: float
    per_token_bytes: float

    def profile(self, max_num_batched_tokens: int) -> MemoryProfile:
        """The profile of a step of that size."""
        peak = self.fixed_bytes + self.per_token_bytes * max_num_batched_tokens
        return MemoryProfile(self.total, self.weights, self.other, round(peak))


@dataclass(frozen=True)
class LearntDevice:
    """What was learnt.

    Attributes:
        name, kind: of the device, as in `run.json`.
        model, dtype: that it ran; the step times hold for them alone.
        link_bytes_per_s: measured speed of the host's link; None where no run had swap space.
        memory, times: see there.
        runs: how many runs it was learnt from.
        tensor_parallel_size: devices that shared the model; memory is each one's.
        kv_cache_dtype: likewise part of what it ran; None for `dtype`.
    """

    name: str
    kind: str
    model: str
    dtype: str
    link_bytes_per_s: float | None
    memory: MemoryModel
    times: StepTimes
    runs: int
    tensor_parallel_size: int = 1
    kv_cache_dtype: str | None = None

    def to_json(self) -> str:
        """The content of its file."""
        content = {
            "schema_version": SCHEMA_VERSION,
            "kind": "learnt device",
            "device_kind": self.kind,
            "name": self.name,
            "model": self.model,
            "dtype": self.dtype,
            "kv_cache_dtype": self.kv_cache_dtype,
            "bytes_per_element": DTYPE_BYTES[self.dtype],  # earlier versions read it
            "link_bytes_per_s": self.link_bytes_per_s,
            "memory": asdict(self.memory),
            "times": self.times.to_dict(),
            "runs": self.runs,
            "tensor_parallel_size": self.tensor_parallel_size,
        }
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def load(cls, path: Path) -> "LearntDevice":
        """Read its file.

        Raises:
            UserError: no such file, or not what `to_json` writes.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"device 'sim:{path}' cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise UserError(f"device 'sim:{path}' is damaged: not JSON ({error})") from None
        return cls._from_dict(values, str(path))

    @classmethod
    def _from_dict(cls, values: Any, where: str) -> "LearntDevice":
        if not isinstance(values, Mapping) or values.get("kind") != "learnt device":
            raise UserError(f"device 'sim:{where}' is not what `tune twin fit` writes")
        if values.get("schema_version") != SCHEMA_VERSION:
            raise UserError(
                f"device 'sim:{where}' has schema_version {values.get('schema_version')!r}; this version of tune reads "
                f"{SCHEMA_VERSION}: fit it again"
            )
        try:
            link = values["link_bytes_per_s"]
            for dtype in (values["dtype"], values.get("kv_cache_dtype") or values["dtype"]):
                if dtype not in DTYPE_BYTES:
                    raise ValueError(f"no such type: {dtype}")
            return cls(
                name=str(values["name"]),
                kind=str(values["device_kind"]),
                model=str(values["model"]),
                dtype=str(values["dtype"]),
                link_bytes_per_s=None if link is None else float(link),
                memory=MemoryModel(**values["memory"]),
                times=StepTimes.from_dict(values["times"]),
                runs=int(values["runs"]),
                tensor_parallel_size=int(values.get("tensor_parallel_size", 1)),
                kv_cache_dtype=values.get("kv_cache_dtype"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"device 'sim:{where}' is damaged ({error!r}): fit it again") from None


class LearntExecutor(SimulatedExecutor):
    """A simulated executor with a learnt device's memory and step times.

    Args:
        device: what was learnt.
        arch: of its model.
        device_name: for people.
        max_model_len: longest request in tokens.
        device_memory_bytes: total memory in place of the device's own.
    """

    def __init__(
        self,
        device: LearntDevice,
        arch: ModelArch,
        *,
        device_name: str,
        max_model_len: int,
        device_memory_bytes: int | None = None,
    ) -> None:
        self.step_times = JitteredStepTimes(device.times, device.link_bytes_per_s or ASSUMED_LINK_BYTES_PER_S)
        total = device_memory_bytes or device.memory.total
        super().__init__(
            arch,
            self.step_times,
            device_name=device_name,
            device_memory_bytes=total,
            max_model_len=max_model_len,
            dtype=device.dtype,
            kv_cache_dtype=device.kv_cache_dtype,
        )
        self._memory = replace(device.memory, total=total)

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        """See `Executor.profile_memory`; by what profiles of other sizes have shown."""
        return self._memory.profile(max_num_batched_tokens)
