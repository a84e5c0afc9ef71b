"""From logits to tokens: greedy, or by temperature, then top-k, then top-p (vLLM's order).

A draw depends on the request's seed and on how many tokens it has produced, and on nothing else: the same seed
gives the same tokens whatever its neighbours in the batch, its chunks or its preemptions.

On a card the host waits for nothing here: what it sends is pinned, and nothing it does depends on a tensor's content.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from engine.executor.device import send
from engine.request import Request, SamplingParams

# vLLM takes a lower temperature for greedy: dividing by it would only overflow.
_GREEDY_BELOW = 1e-5
# Logits whose greatest is looked for together.
_PIECE = 64
# Rows drawn at a time, which bounds the memory of their probabilities.
_ROWS = 32
# On a card a row keeps but one multiprocessor busy, and every launch costs the host the same.
_ROWS_CUDA = 128
# Most nuclei lie within so many tokens; a partial sort for them is far cheaper than one of the whole vocabulary.
_NUCLEUS_GUESS = 256


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """The first of the greatest in each row, int64 `[rows]`, of logits `[rows, vocab]`."""
    rows, vocab = logits.shape
    if logits.is_cuda or vocab % _PIECE:
        return logits.argmax(dim=-1)
    # A CPU looks for the value of a maximum five times as fast as for its place: first in which piece, then where.
    pieces = logits.view(rows, vocab // _PIECE, _PIECE)
    piece = pieces.amax(dim=-1).argmax(dim=-1)
    return piece * _PIECE + pieces[torch.arange(rows), piece].argmax(dim=-1)


class Sampler:
    """Chooses tokens.

    Args:
        seed: of the streams of requests that bring no seed of their own; with the request's id it makes one.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
        """One token per row, int64 `[rows]`, on the device of the logits.

        Args:
            logits: `[rows, vocab]`; no rows where another rank of the model samples.
            requests: whose rows they are.
        """
        if not len(logits):
            return torch.empty(0, dtype=torch.int64, device=logits.device)
        return self.draw(logits, likeliest(logits), requests)

    def draws(self, requests: Sequence[Request]) -> bool:
        """Whether any of these requests wants more than its likeliest token."""
        return any(request.sampling.temperature >= _GREEDY_BELOW for request in requests)

    def draw(self, logits: torch.Tensor, tokens: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
        """Replace the likeliest token of each row in `tokens` `[rows]` where its request is not greedy. Returns it."""
        drawn = [row for row, request in enumerate(requests) if request.sampling.temperature >= _GREEDY_BELOW]
        # Both kinds invert a cumulative distribution, but over differently ordered tokens, so they never mix:
        # else a neighbour could change a request's choice.
        cut = [row for row in drawn if _cuts(requests[row].sampling)]
        whole = [row for row in drawn if not _cuts(requests[row].sampling)]
        for rows, draw in ((whole, _draw_whole), (cut, _draw_cut)):
            at_a_time = _ROWS_CUDA if logits.is_cuda else _ROWS
            for begin in range(0, len(rows), at_a_time):
                part = rows[begin : begin + at_a_time]
                sampling = [requests[row].sampling for row in part]
                index = _column(part, logits.device, np.int64)[:, 0]
                scaled = logits.index_select(0, index).float()
                scaled /= _column([s.temperature for s in sampling], logits.device)
                uniform = _column([self._uniform(requests[row]) for row in part], logits.device, np.float64)
                tokens[index] = draw(scaled, uniform, sampling)
        return tokens

    def _uniform(self, request: Request) -> float:
        """This request's number in [0, 1) for its next token: 32 bits of a hash, a stream without a state."""
        seed = request.sampling.seed
        stream = f"seed {seed}" if seed is not None else f"request {self._seed} {request.request_id}"
        digest = hashlib.blake2b(f"{stream} {request.num_output_tokens}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") / 2**32


def _cuts(sampling: SamplingParams) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1


def _column(values: Sequence[float], device: torch.device, dtype: type[np.generic] = np.float32) -> torch.Tensor:
    return send([np.array(values, dtype=dtype)], device)[0][:, None]


def _draw_whole(logits: torch.Tensor, uniform: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    return _invert(logits.softmax(dim=-1), uniform)[:, 0]


def _draw_cut(logits: torch.Tensor, uniform: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    vocab = logits.shape[-1]
    tokens = torch.empty(len(sampling), dtype=torch.int64, device=logits.device)
    # Equal logits, common in 16 bits, are ordered by how many are asked for; so a row's width follows from its own
    # request alone, and a neighbour cannot change its draw.
    # Whether the guess was right is for the host to see, which on a card would have to wait: there all is sorted.
    nucleus = vocab if logits.is_cuda else _NUCLEUS_GUESS
    widths = [min(max(_NUCLEUS_GUESS, s.top_k) if s.top_k else nucleus, vocab) for s in sampling]
    left = [(width, [row for row, w in enumerate(widths) if w == width]) for width in sorted(set(widths))]
    while left:
        width, rows = left.pop()
        index = _column(rows, logits.device, np.int64)[:, 0]
        part = [sampling[row] for row in rows]
        probabilities, token_ids, reaches = _truncate(logits.index_select(0, index), part, width)
        tokens[index] = token_ids.gather(1, _invert(probabilities, uniform.index_select(0, index)))[:, 0]
        if width < vocab and not all(s.top_k for s in part) and not reaches.all():
            left.append((vocab, [row for row, enough in zip(rows, reaches.tolist(), strict=True) if not enough]))
    return tokens


def _invert(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """First index at which the cumulative sum exceeds `uniform` of the total, `[rows, 1]`; never one of probability 0.

    Float64 keeps the sum over a large vocabulary exact enough, and `uniform`, a multiple of 2**-32, below the total.
    """
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    index = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    # Only the NaN of an overflowing model leads past the end; its tokens are noise, but must be tokens.
    return index.clamp_(max=probabilities.shape[-1] - 1)


def _truncate(
    logits: torch.Tensor, sampling: Sequence[SamplingParams], width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Apply top-k, then top-p, to the `width` likeliest tokens.

    Returns:
        Probabilities (0 for what is cut off) and token ids, `[rows, width]` each, the likeliest first; and whether
        the nucleus of each row lies within them, bool `[rows]`.
    """
    vocab = logits.shape[-1]
    top_k = _column([min(s.top_k or vocab, vocab) for s in sampling], logits.device, np.int64)
    # Rounding may take a cumulative sum to 1 before the last token, which a top-p of 1 must keep.
    top_p = _column([s.top_p if s.top_p < 1 else 2.0 for s in sampling], logits.device)
    whole_total = logits.logsumexp(dim=-1, keepdim=True)
    values, token_ids = logits.topk(width, dim=-1) if width < vocab else logits.sort(dim=-1, descending=True)
    by_top_k = torch.arange(width, device=logits.device) < top_k
    values = values.masked_fill(~by_top_k, float("-inf"))
    # Top-p counts in what top-k left; where that is everything, its total reaches beyond `width`.
    total = torch.where(top_k < vocab, values.logsumexp(dim=-1, keepdim=True), whole_total)
    probabilities = (values - total).exp()
    cumulative = probabilities.cumsum(dim=-1)
    reaches = (top_k <= width) | (cumulative[:, -1:] >= top_p) | (width == vocab)
    # A token stays when those before it do not reach p; the first always does.
    cut = cumulative - probabilities >= top_p
    cut[:, 0] = False
    return probabilities.masked_fill_(cut, 0), token_ids, reaches[:, 0]
