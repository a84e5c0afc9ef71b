"""Which engine is measured: what stays the same over all runs of a study."""

from dataclasses import dataclass
from typing import Any

from engine.config import MAX_CUDAGRAPH_CAPTURE_SIZE
from engine.errors import UserError
from engine.parallel.router import DEFAULT_ROUTER, require_router


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Which engine: everything that stays the same over a study.

    Attributes:
        model, device, dtype, kv_cache_dtype, max_model_len, device_memory_bytes: as in `engine.config`; a model of
            None is the default for the device.
        weights_seed: of random weights.
        attention_backend, enforce_eager, max_cudagraph_capture_size: as in `engine.config`.
        tensor_parallel_size: devices that share the model.
        data_parallel_size, router: replicas of the engine, each on a device of its own, and what decides which of
            them serves a request.

    Raises:
        UserError: a number of replicas below 1, no such router, or replicas of a model that is split as well.
    """

    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    device_memory_bytes: int | None = None
    weights_seed: int = 0
    attention_backend: str = "auto"
    enforce_eager: bool = False
    max_cudagraph_capture_size: int = MAX_CUDAGRAPH_CAPTURE_SIZE
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    router: str = DEFAULT_ROUTER
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.data_parallel_size < 1:
            raise UserError(f"data_parallel_size={self.data_parallel_size} is not possible: it is at least 1")
        require_router(self.router)
        if self.data_parallel_size > 1 and self.tensor_parallel_size > 1:
            raise UserError(
                f"data_parallel_size={self.data_parallel_size} is not possible together with tensor_parallel_size="
                f"{self.tensor_parallel_size}: a replica has one device; leave one of the two out"
            )

    def launching(self) -> dict[str, Any]:
        """How steps are launched, by the options' names; empty for the default."""
        options: dict[str, Any] = {}
        if self.enforce_eager:
            options["enforce_eager"] = True
        if self.max_cudagraph_capture_size != MAX_CUDAGRAPH_CAPTURE_SIZE:
            options["max_cudagraph_capture_size"] = self.max_cudagraph_capture_size
        return options

    def several_devices(self) -> dict[str, Any]:
        """The options of an engine on several devices, by their names; empty for one."""
        options: dict[str, Any] = {}
        if self.tensor_parallel_size > 1:
            options["tensor_parallel_size"] = self.tensor_parallel_size
        if self.data_parallel_size > 1:
            options |= {"data_parallel_size": self.data_parallel_size, "router": self.router}
        return options
