"""The engine that a target measures: one, or replicas behind a router, simulated or in processes of their own."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.build import SIMULATED_PREFIX, load_executor
from engine.config import EngineConfig
from engine.engine import Engine
from engine.executor.base import Executor
from engine.executor.simulated import SimulatedExecutor
from engine.model.resolve import ModelSource
from engine.parallel.replicas import ReplicatedEngine

if TYPE_CHECKING:
    from engine.parallel.process_replicas import ProcessReplicas
    from engine.parallel.replica_devices import ReplicaDevices

    MeasuredEngine = Engine | ReplicatedEngine | ProcessReplicas
    MeasuredDevice = Executor | ReplicaDevices


def load_engine(
    config: EngineConfig,
    source: ModelSource,
    *,
    replicas: int,
    router: str,
    longest_request: int,
    say: Callable[[str], None],
) -> "tuple[MeasuredEngine, MeasuredDevice]":
    """Load a model onto one device, or onto one for each replica.

    Args:
        router: what decides which replica serves a request.
        longest_request, say: see `engine.build.load_executor`.

    Returns:
        The engine, and what tells of its device: the executor of one, or of the first of simulated replicas.

    Raises:
        UserError, OutOfDeviceMemory, ReplicaFailed: as `load_executor`, `Engine` and `ProcessReplicas.load`.
    """
    if replicas == 1:
        executor = load_executor(config, source, longest_request=longest_request, say=say)
        return Engine(executor, config.scheduler, config.cache), executor
    if config.device.startswith(SIMULATED_PREFIX):
        executors = [load_executor(config, source, longest_request=longest_request, say=say) for _ in range(replicas)]
        simulated = [executor for executor in executors if isinstance(executor, SimulatedExecutor)]
        return ReplicatedEngine(simulated, config.scheduler, config.cache, router), executors[0]
    from engine.parallel.process_replicas import ProcessReplicas

    engine = ProcessReplicas.load(
        config, source, size=replicas, router=router, longest_request=longest_request, say=say
    )
    return engine, engine.devices
