"""From an `EngineConfig` to something that runs: finds model and device, refuses early what cannot fit."""

from collections.abc import Callable
from pathlib import Path

from engine.config import DTYPE_BYTES, EngineConfig
from engine.errors import UserError
from engine.executor.base import Executor
from engine.executor.learnt_device import LearntDevice, LearntExecutor
from engine.executor.roofline import Roofline, find_card
from engine.executor.simulated import SimulatedExecutor
from engine.kv_cache.sizing import GIB, KVBudget
from engine.model.resolve import ModelSource
from engine.parallel.sharding import Shard

SIMULATED_PREFIX = "sim:"
LEARNT_SUFFIX = ".json"
# A model that could take more is not sized for it unless asked: one such request would want the whole KV cache.
AUTO_MAX_MODEL_LEN = 8192


def say_nothing(text: str) -> None:
    """The default listener."""


def find_device(name: str) -> str:
    """The device that `name` means: `auto` is CUDA, or the CPU where there is none.

    `cuda` stays as it is: the first card, or the first ones where several are asked for.

    Raises:
        UserError: no such device.
    """
    if name.startswith(SIMULATED_PREFIX):
        if find_learnt_device(name) is None:
            find_card(name.removeprefix(SIMULATED_PREFIX))
        return name
    import torch

    from engine.executor.device import resolve_device

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    device = str(resolve_device(name))
    return name if name == "cuda" else device


def find_learnt_device(name: str) -> LearntDevice | None:
    """What a file says of a device, for `sim:FILE.json`; None for all other names.

    Raises:
        UserError: the file cannot be read.
    """
    if not name.startswith(SIMULATED_PREFIX) or not name.endswith(LEARNT_SUFFIX):
        return None
    return LearntDevice.load(Path(name.removeprefix(SIMULATED_PREFIX)))


def behaves_like_cpu(device: str) -> bool:
    """Whether defaults and ranges that suit a CPU suit this device, as `find_device` names it: a CPU, or one learnt."""
    learnt = find_learnt_device(device)
    return device == "cpu" if learnt is None else learnt.kind == "cpu"


def load_executor(
    config: EngineConfig, source: ModelSource, *, longest_request: int = 2, say: Callable[[str], None] = say_nothing
) -> Executor:
    """Load a model onto the configured device.

    Args:
        config: `max_model_len` None means the model's own maximum, at most `AUTO_MAX_MODEL_LEN` unless the
            longest request needs more.
        source: what `resolve_model` found.
        longest_request: prompt and output tokens of the longest request to come.
        say: told in one line what takes long.

    Raises:
        UserError: a device, type or length that cannot be, or a KV cache too small for one request. The latter is
            found out before any weight is loaded, as far as arithmetic can tell.
    """
    max_model_len = choose_max_model_len(config.model.max_model_len, source, longest_request)
    device = find_device(config.device)
    size = config.tensor_parallel_size
    if device.startswith(SIMULATED_PREFIX):
        if size > 1:
            raise UserError(
                f"tensor_parallel_size={size} is not possible with device {device!r}: a simulated device is one card"
            )
        return _simulated(config, source, device, max_model_len)
    if size > 1:
        return _tensor_parallel(config, source, device, max_model_len, say)
    from engine.executor.torch_executor import TorchExecutor

    _refuse_what_cannot_fit(config, source, device, max_model_len)
    say(f"loading {source.name} onto {device}")
    say_where_kernels_are_missing(config, device, say)
    return TorchExecutor.load(
        source,
        dtype=config.model.dtype,
        kv_cache_dtype=config.model.kv_cache_dtype,
        device=device,
        device_memory_bytes=config.device_memory_bytes,
        max_model_len=max_model_len,
        seed=config.model.seed,
        attention_backend=config.attention_backend,
        enforce_eager=config.enforce_eager,
        max_cudagraph_capture_size=config.max_cudagraph_capture_size,
    )


def say_where_kernels_are_missing(config: EngineConfig, device: str, say: Callable[[str], None]) -> None:
    """Tell the user where the CPU will be slow, and compile its kernels if that was never done."""
    from engine.native.library import why_not_native

    if device == "cpu" and config.model.dtype in ("auto", "float32") and (reason := why_not_native()):
        say(f"the CPU computes with torch's own operations, at about half the speed of compiled kernels: {reason}")
    elif device == "cpu" and config.model.kv_cache_dtype == "fp8" and config.attention_backend == "auto":
        say("the compiled kernels of the CPU know no KV cache in fp8: attention is torch's own, and slower")


def _tensor_parallel(
    config: EngineConfig, source: ModelSource, device: str, max_model_len: int, say: Callable[[str], None]
) -> Executor:
    from engine.parallel.devices import several_devices
    from engine.parallel.tensor_parallel import TensorParallelExecutor

    size = config.tensor_parallel_size
    devices = several_devices("tensor_parallel_size", size, device)
    _refuse_what_cannot_fit(config, source, devices[0], max_model_len)
    say(f"loading {source.name} onto {size} x {device}")
    return TensorParallelExecutor.load(
        source,
        size=size,
        device=device,
        dtype=config.model.dtype,
        kv_cache_dtype=config.model.kv_cache_dtype,
        device_memory_bytes=config.device_memory_bytes,
        max_model_len=max_model_len,
        seed=config.model.seed,
        attention_backend=config.attention_backend,
        enforce_eager=config.enforce_eager,
        max_cudagraph_capture_size=config.max_cudagraph_capture_size,
    )


def choose_max_model_len(asked: int | None, source: ModelSource, longest_request: int) -> int:
    """The longest request to allow, in tokens.

    Raises:
        UserError: the model cannot have that length, or requests of the workload would not fit into it.
    """
    limit = source.arch.max_position_embeddings
    if longest_request > limit:
        raise UserError(
            f"the workload's longest request has {longest_request} tokens, but {source.name} takes {limit}: "
            "choose a workload with shorter prompts and outputs, or another model"
        )
    if asked is None:
        return min(limit, max(AUTO_MAX_MODEL_LEN, longest_request))
    if asked > limit:
        raise UserError(f"max_model_len={asked} is not possible: {source.name} takes at most {limit} tokens")
    if asked < longest_request:
        raise UserError(
            f"max_model_len={asked} is not possible with this workload: its longest request has "
            f"{longest_request} tokens"
        )
    return asked


def _simulated(config: EngineConfig, source: ModelSource, device: str, max_model_len: int) -> SimulatedExecutor:
    learnt = find_learnt_device(device)
    if learnt is not None:
        return _learnt(config, source, device, learnt, max_model_len)
    card = find_card(device.removeprefix(SIMULATED_PREFIX))
    dtype = "bfloat16" if config.model.dtype == "auto" else config.model.dtype
    kv_cache_dtype = dtype if config.model.kv_cache_dtype == "auto" else config.model.kv_cache_dtype
    weight_bytes, kv_bytes = DTYPE_BYTES[dtype], DTYPE_BYTES[kv_cache_dtype]
    return SimulatedExecutor(
        source.arch,
        Roofline(source.arch, card, bytes_per_element=weight_bytes, kv_bytes_per_element=kv_bytes),
        device_name=device,
        device_memory_bytes=config.device_memory_bytes or int(card.memory_gib * GIB),
        max_model_len=max_model_len,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
    )


def _learnt(
    config: EngineConfig, source: ModelSource, name: str, device: LearntDevice, max_model_len: int
) -> LearntExecutor:
    if source.name != device.model:
        raise UserError(f"device {name!r} was learnt with the model {device.model}, and says nothing of {source.name}")
    if config.model.dtype not in ("auto", device.dtype):
        raise UserError(f"device {name!r} was learnt in {device.dtype}, and says nothing of {config.model.dtype}")
    kept_in = device.kv_cache_dtype or device.dtype
    if config.model.kv_cache_dtype not in ("auto", kept_in):
        raise UserError(
            f"device {name!r} was learnt with a KV cache in {kept_in}, and says nothing of "
            f"{config.model.kv_cache_dtype}"
        )
    return LearntExecutor(
        device,
        Shard(0, device.tensor_parallel_size).arch(source.arch),
        device_name=name,
        max_model_len=max_model_len,
        device_memory_bytes=config.device_memory_bytes,
    )


def _refuse_what_cannot_fit(config: EngineConfig, source: ModelSource, device: str, max_model_len: int) -> None:
    """Weights and one longest request must fit, activations left aside: those are measured after loading."""
    import torch

    from engine.executor.device import available_host_bytes, resolve_dtype, resolve_kv_dtype
    from engine.executor.memory import default_cpu_total

    dtype = resolve_dtype(config.model.dtype, torch.device(device), source.checkpoint_dtype)
    kv_dtype = resolve_kv_dtype(config.model.kv_cache_dtype, dtype)
    shard = Shard(0, config.tensor_parallel_size)
    weights = shard.weight_bytes(source.arch, dtype.itemsize)
    if config.device_memory_bytes is not None:
        total = config.device_memory_bytes
    elif device == "cpu":
        total = default_cpu_total(weights, available_host_bytes() // shard.size)
    else:
        total = torch.cuda.get_device_properties(device).total_memory
    if config.cache.num_gpu_blocks_override is None:
        KVBudget(
            total=total,
            gpu_memory_utilization=config.cache.gpu_memory_utilization,
            weights=weights,
            other=0,
            peak_activation=0,
            bytes_per_block=config.cache.block_size * shard.arch(source.arch).kv_bytes_per_token(kv_dtype.itemsize),
        ).require(max_model_len, config.cache.block_size)
