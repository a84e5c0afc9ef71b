"""How long a step takes on a card that is not here: the larger of its arithmetic and its memory traffic.

The roofline model (Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009), with the share of each published
peak that serving engines commonly reach. A first estimate of a card, not a measurement of one.
"""

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from engine.errors import UserError
from engine.model.arch import ModelArch
from engine.scheduler.plan import StepPlan

GB = 1e9
TERA = 1e12
# One direction of 16 lanes: 16 and 32 GT/s, of which 128 of 130 bits are payload.
PCIE_4 = 31.5
PCIE_5 = 63.0

_NUM_COMPUTED = attrgetter("num_computed")


@dataclass(frozen=True, slots=True)
class Card:
    """Published figures of an accelerator.

    Attributes:
        memory_gib: usable device memory.
        bandwidth_gb_s: memory bandwidth, 10^9 bytes per second.
        tflops: dense 16-bit tensor arithmetic, 10^12 operations per second.
        host_gb_s: link to host memory in one direction, 10^9 bytes per second.
        source: where the figures stand.
    """

    title: str
    memory_gib: float
    bandwidth_gb_s: float
    tflops: float
    host_gb_s: float
    source: str


CARDS: dict[str, Card] = {
    "a10": Card("NVIDIA A10", 22.5, 600, 125, PCIE_4, "NVIDIA A10 datasheet, 2021"),
    "l4": Card("NVIDIA L4", 22.5, 300, 121, PCIE_4, "NVIDIA L4 datasheet, 2023"),
    "4090": Card("NVIDIA RTX 4090", 23.6, 1008, 165, PCIE_4, "NVIDIA Ada architecture whitepaper, 2022"),
    "a100-40g": Card("NVIDIA A100 40GB", 39.4, 1555, 312, PCIE_4, "NVIDIA A100 datasheet, 2021"),
    "a100-80g": Card("NVIDIA A100 80GB SXM", 79.2, 2039, 312, PCIE_4, "NVIDIA A100 datasheet, 2021"),
    "h100": Card("NVIDIA H100 SXM", 79.2, 3350, 989, PCIE_5, "NVIDIA H100 datasheet, 2023"),
    "h200": Card("NVIDIA H200 SXM", 139.8, 4800, 989, PCIE_5, "NVIDIA H200 datasheet, 2024"),
    "mi300x": Card("AMD Instinct MI300X", 191.5, 5300, 1307, PCIE_5, "AMD Instinct MI300X datasheet, 2023"),
}


def find_card(name: str) -> Card:
    """The card of `sim:NAME`.

    Raises:
        UserError: no such card.
    """
    try:
        return CARDS[name.lower()]
    except KeyError:
        raise UserError(
            f"device 'sim:{name}' is not known: choose one of {', '.join(f'sim:{c}' for c in CARDS)}"
        ) from None


@dataclass(frozen=True)
class Roofline:
    """Step time of a model on a card.

    Attributes:
        compute_efficiency: share of the arithmetic peak that large matrix products reach.
        bandwidth_efficiency: share of the bandwidth that streaming weights and KV reaches.
        host_efficiency: share of the link to the host that long copies from and to pinned memory reach.
        overhead_s: host and launch time that every step pays.
        overhead_per_seq_s: host time per request in the step.
        bytes_per_element: 2 for 16-bit weights.
        kv_bytes_per_element: of the KV cache; None for the same.
    """

    arch: ModelArch
    card: Card
    compute_efficiency: float = 0.6
    bandwidth_efficiency: float = 0.8
    host_efficiency: float = 0.8
    overhead_s: float = 1e-3
    overhead_per_seq_s: float = 5e-6
    bytes_per_element: int = 2
    kv_bytes_per_element: int | None = None

    @cached_property
    def _costs(self) -> "_Costs":
        """What does not change from step to step, which a simulation makes by the thousand each second."""
        arch = self.arch
        return _Costs(
            flops_per_token=arch.flops_per_token(0),
            flops_per_attended=arch.flops_per_token(1) - arch.flops_per_token(0),
            logits_flops=arch.logits_flops,
            weight_bytes=arch.weight_bytes(self.bytes_per_element),
            kv_bytes_per_token=arch.kv_bytes_per_token(self.kv_bytes_per_element or self.bytes_per_element),
            flops_per_s=self.card.tflops * TERA * self.compute_efficiency,
            bytes_per_s=self.card.bandwidth_gb_s * GB * self.bandwidth_efficiency,
        )

    def seconds(self, plan: StepPlan) -> float:
        """Duration of a step with tokens, the blocks that it swaps left aside."""
        costs, window, shares = self._costs, self.arch.sliding_window, plan.scheduled
        chunks = [share for share in shares if share.num_tokens > 1]
        num_tokens = len(shares) - len(chunks) + sum(c.num_tokens for c in chunks)
        # Each token attends to those before it; the mean context of a chunk stands for all its tokens. What a chunk
        # reads from the cache it reads once; of what came before it, its first token attends to the most.
        if window is None:
            read = attended = sum(map(_NUM_COMPUTED, shares)) + num_tokens
            # A single token attends to what is read for it, each token of a chunk to less, but there are many.
            for _, computed, n, _, _ in chunks:
                attended += n * (computed + (n + 1) // 2) - (computed + n)
        else:
            read = sum(min(computed, window - 1) for _, computed, _, _, _ in shares) + num_tokens
            attended = sum(n * min(computed + (n + 1) // 2, window) for _, computed, n, _, _ in shares)
        num_samples = len([share for share in shares if share.samples])
        flops = num_tokens * costs.flops_per_token + attended * costs.flops_per_attended
        flops += num_samples * costs.logits_flops
        num_bytes = costs.weight_bytes + read * costs.kv_bytes_per_token
        busy_s = max(flops / costs.flops_per_s, num_bytes / costs.bytes_per_s)
        return busy_s + self.overhead_s + self.overhead_per_seq_s * len(shares)

    def swap_seconds(self, num_blocks: int, bytes_per_block: int) -> float:
        """Time that so many blocks take to host memory, or back."""
        return num_blocks * bytes_per_block / (self.card.host_gb_s * GB * self.host_efficiency)

    def restart(self, seed: int) -> None:
        """Nothing is drawn: equal steps take equal times."""


@dataclass(frozen=True, slots=True)
class _Costs:
    """A model on a card in the numbers that `Roofline.seconds` needs.

    Attributes:
        flops_per_token, flops_per_attended: of the layers, per token and per token that it attends to.
        flops_per_s, bytes_per_s: what the card reaches.
    """

    flops_per_token: int
    flops_per_attended: int
    logits_flops: int
    weight_bytes: int
    kv_bytes_per_token: int
    flops_per_s: float
    bytes_per_s: float
