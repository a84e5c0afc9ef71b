"""Layers of which each rank holds a part. They stand where the whole ones do, so that the model is computed alike."""

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from engine.model.operations import LinearLayer
from engine.parallel.sharding import rows_per_rank

if TYPE_CHECKING:
    from engine.parallel.collectives import Collectives


class RowParallel:
    """`x @ weight.T` where every rank has some of the input columns; the ranks' results are summed.

    Args:
        part: this rank's columns, `[out, in / ranks]`. A bias would be added once per rank, so it has none.
    """

    def __init__(self, part: LinearLayer, ranks: "Collectives") -> None:
        self._part = part
        self._ranks = ranks

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`residual + x @ weight.T` for this rank's part `[rows, in / ranks]` of `x`; the same on all ranks."""
        return self._ranks.sum(self._part(x)).add_(residual)


class VocabParallel:
    """The output layer, of which every rank has the rows of `Shard.vocab_rows`.

    Args:
        part: this rank's rows, `[vocab / ranks, hidden]`.
        vocab_size: rows of the whole.
    """

    def __init__(self, part: LinearLayer, vocab_size: int, ranks: "Collectives") -> None:
        self._part = part
        self._vocab_size = vocab_size
        self._rows = rows_per_rank(vocab_size, ranks.shard.size)
        self._ranks = ranks

    @property
    def weight(self) -> torch.Tensor:
        return self._part.weight

    @property
    def packed(self) -> bool:
        return self._part.packed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Logits `[samples, vocab]` on rank 0, which samples; `[0, vocab]` elsewhere."""
        if len(x) == 0:
            return x.new_empty(0, self._vocab_size)
        logits = self._part(x)
        if missing := self._rows - logits.shape[1]:
            logits = functional.pad(logits, (0, missing))
        parts = self._ranks.gather(logits)
        if parts is None:
            return x.new_empty(0, self._vocab_size)
        return torch.cat(parts, dim=1)[:, : self._vocab_size]
