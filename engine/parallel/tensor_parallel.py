"""One model over several devices: rank 0 in this process, under the scheduler, the others in processes of their own.

Every rank runs the same steps over its part of the model and keeps the keys and values of its own heads, in blocks of
the same numbers. What differs from rank to rank is only how much memory is left; the least counts.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from engine.clock import Clock
from engine.errors import OutOfDeviceMemory, RankFailed, UserError
from engine.executor.base import MemoryProfile, StepResult
from engine.executor.torch_executor import TorchExecutor
from engine.model.resolve import ModelSource
from engine.parallel.collectives import HOST, RankGroup
from engine.parallel.devices import several_devices, share_of_host, share_of_threads
from engine.parallel.plan_messages import PlanSender
from engine.parallel.processes import RankProcesses
from engine.parallel.sharding import Shard, require_divisible
from engine.parallel.worker import RankTask, serve_rank
from engine.scheduler.plan import StepPlan

# A first step may compile and capture; nothing that goes well takes longer.
TIMEOUT_S = 300.0


class TensorParallelExecutor:
    """See `engine.executor.base.Executor` for the contract. Sizes in bytes are one rank's. Made by `load`.

    When a rank fails or dies, the call under way raises `RankFailed`, and every later one too: only `shutdown` is left.
    """

    simulated = False

    def __init__(self, local: TorchExecutor, group: RankGroup, others: RankProcesses) -> None:
        self._local = local
        self._group = group
        self._others = others
        self._plans = PlanSender()
        self._profiles: dict[tuple[int, int], MemoryProfile] = {}
        self._link_bytes_per_s: float | None = None
        self._broken: RankFailed | None = None
        # Also when nobody calls `shutdown`, as the interpreter ends.
        self._end = weakref.finalize(self, _end_ranks, others, group)
        self.device_name = f"{group.shard.size} x {local.device_name}"
        self.max_model_len = local.max_model_len
        self.vocab_size = local.vocab_size
        self.eos_token_ids = local.eos_token_ids
        self.dtype, self.kv_cache_dtype = local.dtype, local.kv_cache_dtype
        self.attention_backend = local.attention_backend

    @classmethod
    def load(
        cls, source: ModelSource, *, size: int, device: str, timeout_s: float = TIMEOUT_S, **options: Any
    ) -> "TensorParallelExecutor":
        """Load a model onto `size` devices.

        Args:
            device: `cuda`, for `cuda:0` to `cuda:{size - 1}`, or `cpu`, where every rank has its share of the threads.
            timeout_s: the longest that a step may take.
            options: of `TorchExecutor.load`; `device_memory_bytes` is each rank's.

        Raises:
            UserError: as `TorchExecutor.load`; a model that does not divide, or fewer devices than ranks.
            OutOfDeviceMemory: as `TorchExecutor.load`.
            RankFailed: a rank failed or died meanwhile.
        """
        require_divisible(source.arch, size)
        devices = several_devices("tensor_parallel_size", size, device)
        if device == "cpu" and options.get("device_memory_bytes") is None:
            dtype = options.get("dtype", "auto")
            options["device_memory_bytes"] = share_of_host(source, size, dtype, Shard(0, size))
        threads = share_of_threads(size)
        store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        tasks = [
            RankTask(Shard(rank, size), store.port, timeout_s, source, devices[rank], options, threads)
            for rank in range(1, size)
        ]
        # The group is there only once all have met, and is what has to be given up when one is lost.
        joined: list[RankGroup] = []

        def abort() -> None:
            for group in joined:
                group.abort()

        others = RankProcesses(serve_rank, tasks, timeout_s=timeout_s, on_loss=abort)
        try:
            others.collect()
            if device == "cpu":
                torch.set_num_threads(threads)
            group = RankGroup(Shard(0, size), store, torch.device(devices[0]), timeout_s)
            joined.append(group)
            local = TorchExecutor.load(source, device=devices[0], ranks=group, **options)
            others.collect()
        except Exception as error:
            loss = others.loss_behind() if isinstance(error, RuntimeError) else None
            others.close()
            for group in joined:
                group.leave()
            if loss is None:
                raise
            raise loss from error
        return cls(local, group, others)

    @property
    def clock(self) -> Clock:
        return self._local.clock

    @property
    def host_link_bytes_per_s(self) -> float | None:
        """See `Executor.host_link_bytes_per_s`; the slowest rank's."""
        return self._link_bytes_per_s

    def execute(self, plan: StepPlan) -> StepResult:
        """See `Executor.execute`."""
        if not plan.scheduled and not plan.swap_out and not plan.swap_in:
            return StepResult([])

        def run() -> StepResult:
            self._others.tell("execute", self._plans.pack(plan))
            result = self._local.execute(plan)
            self._others.done()
            return result

        # A rank that has failed within a step leaves the others waiting for it.
        return self._together(run, survivable=())

    def kv_bytes_per_block(self, block_size: int) -> int:
        """See `Executor.kv_bytes_per_block`; of one rank's heads."""
        return self._local.kv_bytes_per_block(block_size)

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        """See `Executor.profile_memory`; of each number the worst that any rank found."""
        size = (max_num_batched_tokens, max_num_seqs)
        if size not in self._profiles:

            def measure() -> list[MemoryProfile]:
                self._others.tell("profile_memory", size)
                with self._group.silence():
                    return self._with_others(lambda: self._local.profile_memory(*size))

            self._profiles[size] = MemoryProfile.worst(self._together(measure))
        return self._profiles[size]

    def allocate_kv(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        """See `Executor.allocate_kv`; on every rank."""
        size = (num_blocks, block_size, num_swap_blocks)

        def allocate() -> float | None:
            self._local.allocate_kv(*size)
            return self._local.host_link_bytes_per_s

        def run() -> list[float | None]:
            self._others.tell("allocate_kv", size)
            return self._with_others(allocate)

        self._link_bytes_per_s = min((speed for speed in self._together(run) if speed is not None), default=None)

    def shutdown(self) -> None:
        """Give back all devices; no process is left behind."""
        self._end()
        self._local.shutdown()

    def _with_others(self, action: Callable[[], Any]) -> list[Any]:
        """The answers of all ranks. The others' are taken in whatever happens here, so that none is left for later."""
        try:
            mine = action()
        finally:
            theirs = self._others.collect()
        return [mine, *theirs]

    def _together(
        self, run: Callable[[], Any], survivable: tuple[type[Exception], ...] = (UserError, OutOfDeviceMemory)
    ) -> Any:
        """Do what all ranks do. Errors that are not survivable are the end of all ranks.

        Raises:
            RankFailed: a rank is lost, now or before.
        """
        if self._broken is not None:
            raise RankFailed(*self._broken.args)
        try:
            return run()
        except survivable:
            raise
        except RankFailed as failure:
            self._give_up(failure)
            raise
        except BaseException as error:
            # What a collective says when another rank is gone names neither that rank nor its reason.
            loss = self._others.loss_behind() if isinstance(error, RuntimeError) else None
            self._give_up(loss or RankFailed(f"rank 0 failed: {type(error).__name__}: {error}"))
            if loss is None:
                raise
            raise loss from error

    def _give_up(self, failure: RankFailed) -> None:
        self._broken = failure
        self._others.kill()
        self._group.abort()


def _end_ranks(others: RankProcesses, group: RankGroup) -> None:
    others.close()
    group.leave()
