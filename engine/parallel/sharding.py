"""Who holds which part of a model that is split over several ranks. Plain arithmetic over shapes, no torch.

The split is Megatron's (Shoeybi et al. 2019): the matrices that read the residual stream by output rows, so that a rank
has whole heads and whole MLP columns, and those that write to it by input columns, so that one sum per block of the
layer brings all ranks to the same stream. The embedding table is held whole by every rank: looking rows up costs the
same either way, and a split one would cost another sum in each step. The output layer, which is read whole for every
token, is split by vocabulary, and rank 0, which samples, gathers the parts.
"""

import math
from dataclasses import dataclass, replace

from engine.errors import UserError
from engine.model.arch import ModelArch, parameter_shapes

Cut = tuple[slice, ...]
"""Which part of a tensor: an index of it, one slice per dimension from the first; empty for all of it."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a model.

    Attributes:
        rank: 0 .. size - 1.
        size: ranks that share the model.
    """

    rank: int = 0
    size: int = 1

    def arch(self, whole: ModelArch) -> ModelArch:
        """The shape of the part, as its layers see it. The vocabulary stays whole: tokens mean the same to all ranks.

        Raises:
            UserError: the model cannot be split like this.
        """
        require_divisible(whole, self.size)
        return replace(
            whole,
            num_heads=whole.num_heads // self.size,
            num_kv_heads=max(1, whole.num_kv_heads // self.size),
            intermediate_size=whole.intermediate_size // self.size,
        )

    def cut(self, whole: ModelArch, name: str) -> Cut:
        """The part of a weight, by its Hugging Face name, that this rank holds."""
        if self.size == 1:
            return ()
        module = name.split(".")[-2]
        if module == "q_proj":
            return (self._heads(whole),)
        if module in ("k_proj", "v_proj"):
            return (self._kv_heads(whole),)
        if module in ("gate_proj", "up_proj"):
            return (self._even(whole.intermediate_size),)
        if module == "o_proj":
            return (slice(None), self._heads(whole))
        if module == "down_proj":
            return (slice(None), self._even(whole.intermediate_size))
        return (self.vocab_rows(whole.vocab_size),) if module == "lm_head" else ()

    def vocab_rows(self, vocab_size: int) -> slice:
        """Rows of the output layer. All ranks have `rows_per_rank` but the last ones, which have what is left."""
        rows = rows_per_rank(vocab_size, self.size)
        return slice(min(self.rank * rows, vocab_size), min((self.rank + 1) * rows, vocab_size))

    def weight_bytes(self, whole: ModelArch, bytes_per_element: int) -> int:
        """Memory of the part's weights."""
        elements = sum(
            math.prod(len(range(*rows.indices(length))) for rows, length in _by_dimension(self.cut(whole, name), shape))
            for name, shape in parameter_shapes(whole).items()
        )
        return elements * bytes_per_element

    def _heads(self, whole: ModelArch) -> slice:
        return self._even(whole.num_heads * whole.head_dim)

    def _kv_heads(self, whole: ModelArch) -> slice:
        if whole.num_kv_heads >= self.size:
            return self._even(whole.num_kv_heads * whole.head_dim)
        # Fewer than ranks: neighbours, whose query heads share it, hold the same one.
        head = self.rank * whole.num_kv_heads // self.size
        return slice(head * whole.head_dim, (head + 1) * whole.head_dim)

    def _even(self, length: int) -> slice:
        part = length // self.size
        return slice(self.rank * part, (self.rank + 1) * part)


WHOLE = Shard()


def rows_per_rank(vocab_size: int, size: int) -> int:
    """Rows of the output layer that each rank has room for."""
    return -(-vocab_size // size)


def require_divisible(arch: ModelArch, size: int) -> None:
    """See that a model can be split over so many ranks.

    Raises:
        UserError: its heads or its MLP do not divide.
    """
    if _divides(arch, size):
        return
    possible = [str(n) for n in range(1, arch.num_heads + 1) if _divides(arch, n)]
    raise UserError(
        f"tensor_parallel_size={size} is not possible: {arch.name} has {arch.num_heads} query heads, "
        f"{arch.num_kv_heads} KV heads and {arch.intermediate_size} MLP columns, which do not divide evenly; "
        f"choose one of {', '.join(possible)}"
    )


def _divides(arch: ModelArch, size: int) -> bool:
    kv_heads = arch.num_kv_heads
    even = arch.num_heads % size == 0 and arch.intermediate_size % size == 0
    return even and (kv_heads % size == 0 or size % kv_heads == 0)


def _by_dimension(cut: Cut, shape: tuple[int, ...]) -> list[tuple[slice, int]]:
    return [(cut[d] if d < len(cut) else slice(None), length) for d, length in enumerate(shape)]
