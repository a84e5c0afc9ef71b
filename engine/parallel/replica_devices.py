"""The devices of several replicas, for whoever plans their settings and describes them."""

from collections.abc import Callable
from typing import Any

from engine.executor.base import MemoryProfile
from engine.parallel.replica_messages import Device

Ask = Callable[..., list[Any]]
"""Calls a method of every replica, by name, and returns their answers."""


class ReplicaDevices:
    """What an executor says of itself, for replicas in processes of their own, which carry out the steps themselves.

    Numbers are one replica's; where they differ, those of the one that has least.

    Args:
        devices: of the replicas, in their order.
        ask: see there. The replicas must be idle when it is used.
        shutdown: ends them.

    Attributes:
        threads: of each replica, for arithmetic on the CPU.
    """

    simulated = False

    def __init__(self, devices: list[Device], ask: Ask, shutdown: Callable[[], None]) -> None:
        first = devices[0]
        self.device_name = f"{len(devices)} x {first.device_name}"
        self.max_model_len = first.max_model_len
        self.vocab_size = first.vocab_size
        self.eos_token_ids = first.eos_token_ids
        self.dtype, self.kv_cache_dtype = first.dtype, first.kv_cache_dtype
        self.attention_backend = first.attention_backend
        self.overlaps = first.overlaps
        self.threads = first.threads
        self.host_link_bytes_per_s: float | None = None
        self._ask = ask
        self._shutdown = shutdown
        self._profiles: dict[tuple[int, int], MemoryProfile] = {}

    def kv_bytes_per_block(self, block_size: int) -> int:
        """See `Executor.kv_bytes_per_block`."""
        return self._ask("kv_bytes_per_block", block_size)[0]

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        """See `Executor.profile_memory`; of each number the worst that any replica found."""
        size = (max_num_batched_tokens, max_num_seqs)
        if size not in self._profiles:
            self._profiles[size] = MemoryProfile.worst(self._ask("profile_memory", *size))
        return self._profiles[size]

    def shutdown(self) -> None:
        """End the replicas and give back their devices."""
        self._shutdown()
