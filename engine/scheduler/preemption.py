"""Who makes room when there is no block left, and whether its cache is worth a trip to host memory."""

from collections.abc import Callable, Sequence

from engine.config import PreemptionVictim, SchedulerConfig
from engine.kv_cache.manager import KVCacheManager
from engine.request import Request, RequestEvent, RequestStatus
from engine.scheduler.plan import StepPlan
from engine.scheduler.waiting_queue import ORDERS, aged_priority
from engine.scheduler.waiting_room import WaitingRoom

VictimChoice = Callable[[Sequence[Request]], Request]


def _last(config: SchedulerConfig) -> VictimChoice:
    return lambda running: running[-1]


def _fewest_tokens(config: SchedulerConfig) -> VictimChoice:
    # Of equals the one admitted last, so that the others are sure to get on.
    return lambda running: min(reversed(running), key=lambda r: r.num_computed_tokens)


def _lowest_priority(config: SchedulerConfig) -> VictimChoice:
    # Aged like the queue: who has waited long enough to be admitted must not lose its place to those it overtook.
    return lambda running: max(running, key=lambda r: (aged_priority(r, config), r.sequence_number))


VICTIMS: dict[PreemptionVictim, Callable[[SchedulerConfig], VictimChoice]] = {
    "last": _last,
    "fewest_tokens": _fewest_tokens,
    "lowest_priority": _lowest_priority,
}
"""Name to the choice among the running requests, in order of admission; a new one is a function and a name here."""

# Weight of a step of the past when another is taken in.
_FADE = 0.999


def victim_choice(config: SchedulerConfig) -> VictimChoice:
    """The configured choice; `auto` follows the policy, as in vLLM."""
    automatic: PreemptionVictim = "lowest_priority" if ORDERS[config.policy].by_priority else "last"
    name = automatic if config.preemption_victim == "auto" else config.preemption_victim
    return VICTIMS[name](config)


class PreemptionCost:
    """Predicts what a preemption costs, either way.

    Swapping moves the victim's blocks out and in again over the host's link. Recomputing runs its tokens through
    prefill once more, beside whatever else runs then: what counts is how much longer a step gets with each of them,
    the slope of a line through the steps' durations over their prefill tokens (least squares, the past fading). That
    a prefix may still be found in the cache is not counted on.

    Args:
        bytes_per_block: of the KV cache.
        link_bytes_per_s: measured speed of the host's link; None without swap space.
    """

    def __init__(self, bytes_per_block: int, link_bytes_per_s: float | None) -> None:
        self._bytes_per_block = bytes_per_block
        self._link_bytes_per_s = link_bytes_per_s
        # Faded sums over steps: 1, tokens, seconds, tokens squared, tokens times seconds.
        self._sums = [0.0] * 5

    def observe(self, plan: StepPlan, duration_ns: int) -> None:
        """Take in how long a step took."""
        if not self._link_bytes_per_s or not plan.scheduled or plan.swap_out or plan.swap_in:
            return
        tokens = float(sum(s.num_tokens for s in plan.scheduled if not s.is_decode))
        seconds = duration_ns / 1e9
        seen = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        self._sums = [_FADE * total + value for total, value in zip(self._sums, seen, strict=True)]

    def swap_s(self, num_blocks: int) -> float | None:
        """Seconds to move so many blocks out and back in; None when unknown."""
        if not self._link_bytes_per_s:
            return None
        return 2 * num_blocks * self._bytes_per_block / self._link_bytes_per_s

    def recompute_s(self, num_tokens: int) -> float | None:
        """Seconds that prefilling so many tokens adds; None before steps of different prefill were seen."""
        steps, tokens, seconds, squares, products = self._sums
        spread = steps * squares - tokens * tokens
        if spread <= 1e-9 * steps * squares:
            return None
        return max(0.0, num_tokens * (steps * products - tokens * seconds) / spread)

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
        if self._mode != "auto":
            return self._mode == "swap"
        computed = victim.num_computed_tokens
        return self._cost.swap_is_cheaper(computed, self._kv.blocks_for(computed))
