"""Who makes room when there is no block left, and whether its cache is worth a trip to host memory."""

from collections.abc import Callable, Sequence

from engine.config import PreemptionVictim, SchedulerConfig
from engine.kv_cache.manager import KVCacheManager
from engine.request import Request, RequestEvent, RequestStatus
from engine.scheduler.plan import StepPlan
from engine.scheduler.waiting_queue import ORDERS
from engine.scheduler.waiting_room import WaitingRoom

VictimChoice = Callable[[Sequence[Request]], Request]

VICTIMS: dict[PreemptionVictim, VictimChoice] = {
    "last": lambda running: running[-1],
    # Of equals the one admitted last, so that the others are sure to get on.
    "fewest_tokens": lambda running: min(reversed(running), key=lambda r: r.num_computed_tokens),
    "lowest_priority": lambda running: max(running, key=lambda r: (r.priority, r.sequence_number)),
}
"""Choice to function of the running requests in order of admission; a new one is one function and one name here."""

# A step counts as a measurement of prefill when it was mostly that.
_PREFILL_SHARE = 0.5
# Weight of a token of the past when another is taken in.
_FADE = 0.99999


def victim_choice(config: SchedulerConfig) -> VictimChoice:
    """The configured choice; `auto` follows the policy, as in vLLM."""
    if config.preemption_victim != "auto":
        return VICTIMS[config.preemption_victim]
    return VICTIMS["lowest_priority" if ORDERS[config.policy].by_priority else "last"]


class PreemptionCost:
    """Predicts what a preemption costs, either way.

    Swapping moves the victim's blocks out and in again over the host's link; recomputing runs its tokens through
    prefill once more. A prefix that would still be found in the cache is not counted on.

    Args:
        bytes_per_block: of the KV cache.
        link_bytes_per_s: measured speed of the host's link; None without swap space.
    """

    def __init__(self, bytes_per_block: int, link_bytes_per_s: float | None) -> None:
        self._bytes_per_block = bytes_per_block
        self._link_bytes_per_s = link_bytes_per_s
        self._prefill_tokens = 0.0
        self._prefill_ns = 0.0

    def observe(self, plan: StepPlan, duration_ns: int) -> None:
        """Take in how long a step took."""
        if not self._link_bytes_per_s:
            return
        tokens = sum(s.num_tokens for s in plan.scheduled if not s.is_decode)
        if not tokens or tokens < _PREFILL_SHARE * plan.num_tokens or plan.swap_out or plan.swap_in:
            return
        fade = _FADE**tokens
        self._prefill_tokens = self._prefill_tokens * fade + tokens
        self._prefill_ns = self._prefill_ns * fade + duration_ns

    def swap_s(self, num_blocks: int) -> float | None:
        """Seconds to move so many blocks out and back in; None when unknown."""
        if not self._link_bytes_per_s:
            return None
        return 2 * num_blocks * self._bytes_per_block / self._link_bytes_per_s

    def recompute_s(self, num_tokens: int) -> float | None:
        """Seconds to prefill so many tokens; None before any prefill was seen."""
        return num_tokens * self._prefill_ns / self._prefill_tokens / 1e9 if self._prefill_tokens else None

    def swap_is_cheaper(self, num_tokens: int, num_blocks: int) -> bool:
        """Whether to swap a victim with so many computed tokens. What cannot be predicted is not swapped."""
        swap_s, recompute_s = self.swap_s(num_blocks), self.recompute_s(num_tokens)
        return swap_s is not None and recompute_s is not None and swap_s < recompute_s


class Preemption:
    """Carries out preemptions.

    Args:
        config: victim and kind.
        kv: gives the victim's blocks to whoever needs them.
        room: where the victim waits to come back.
        cost: what the kind `auto` goes by.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, room: WaitingRoom, cost: PreemptionCost) -> None:
        self.choose = victim_choice(config)
        self._mode = config.preemption_mode
        self._kv = kv
        self._room = room
        self._cost = cost

    def evict(self, victim: Request, winner: Request, plan: StepPlan) -> None:
        """Take a request's blocks, so that `winner` has room: its cache goes to host memory, or is computed again."""
        computed, blocks = victim.num_computed_tokens, len(victim.block_table)
        copies = self._kv.swap_out(victim) if self._should_swap(victim) else None
        victim.num_preemptions += 1
        plan.preempted.append(victim)
        if copies is None:
            self._kv.free(victim)
            victim.num_computed_tokens = 0
            victim.status = RequestStatus.PREEMPTED
        else:
            plan.swap_out += copies
            plan.preemptions_swap += 1
            victim.num_swaps += 1
            victim.status = RequestStatus.SWAPPED
        self._room.enter(victim)
        kind = "recompute" if copies is None else "swap"
        detail = f"{kind}:{'' if winner is victim else winner.request_id}"
        victim.history.append(RequestEvent(plan.time_ns, "preempted", computed, blocks, detail))

    def _should_swap(self, victim: Request) -> bool:
        computed = victim.num_computed_tokens
        if self._mode == "recompute" or not computed:
            return False
        return self._mode == "swap" or self._cost.swap_is_cheaper(computed, self._kv.blocks_for(computed))
