"""What a step of the largest size holds for itself, measured by running one."""

import os
from collections.abc import Callable

import torch
from torch.autograd import profiler

from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest

PROFILE_BLOCK_SIZE = 16
# Context of most decodes in the measured step. Attention cuts them into groups of bounded size, so that a longer
# one takes more time, but hardly more memory.
_DECODE_CONTEXT = 512
# A chunk at the very end of the longest sequence: it reads the largest context and needs the largest mask.
_LATE_CHUNK_TOKENS = 256
# The layers run one after another and give back what they take, so on the CPU one whole layer and the last one
# (which drops the rows that do not sample) show the peak of all.
CPU_PROFILE_LAYERS = 2
_CPU_MEMORY_SHARE = 0.8
_CPU_MEMORY_DEFAULT = 4 << 30


def largest_step(num_tokens: int, max_num_seqs: int, max_model_len: int) -> list[ScheduledRequest]:
    """A step of `num_tokens` tokens in which every seat yields a token: decodes, one late chunk, fresh prompts.

    All requests share block 0, so that no real KV cache is needed.
    """
    seats = min(max_num_seqs, num_tokens)
    late = min(_LATE_CHUNK_TOKENS, max_model_len, num_tokens - (seats - 1))
    scheduled = [_share(max_model_len - late, late)]
    left = num_tokens - late
    # Prompts as long as they may be; what remains of the seats decodes.
    while left > seats - len(scheduled) and len(scheduled) < seats:
        fresh = min(max_model_len, left - (seats - len(scheduled) - 1))
        scheduled.append(_share(0, fresh))
        left -= fresh
    decodes = min(left, seats - len(scheduled))
    context = min(_DECODE_CONTEXT, max_model_len)
    return scheduled + [_share(max_model_len - 1, 1)] * min(decodes, 1) + [_share(context - 1, 1)] * (decodes - 1)


def peak_bytes_cpu(step: Callable[[], object]) -> int:
    """Peak of the tensors that `step` makes on the CPU, from the allocator's own record of them."""
    # Else the profiler's library prints lines of its own on the terminal.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # torch.profiler, the newer face of the same recorder, takes a second to start.
    with profiler.profile(use_cpu=True, profile_memory=True) as recorder:
        step()
    assert recorder.kineto_results is not None
    held = peak = 0
    for event in recorder.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def peak_bytes_cuda(step: Callable[[], object], device: torch.device) -> int:
    """Peak of what `step` makes on the card, as torch's allocator counts it, the libraries' workspaces included."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def cuda_total_and_other(device: torch.device) -> tuple[int, int]:
    """The card's memory, and what is held there outside torch's allocator: its context, other processes."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total, max(total - free - torch.cuda.memory_reserved(device), 0)


def cuda_used_by(action: Callable[[], object], device: torch.device) -> int:
    """Memory of the card that an action takes for good, in torch's allocator or outside of it."""
    free = []
    for do in (lambda: None, action):
        do()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        free.append(torch.cuda.mem_get_info(device)[0])
    return max(0, free[0] - free[1])


def default_cpu_total(weights_bytes: int, available_bytes: int) -> int:
    """What counts as the CPU's total memory unless the user says: room for a small server, within this machine.

    Twice the weights or 4 GiB, whichever is more, but at most 80 % of what was available before the weights.
    """
    return min(int(_CPU_MEMORY_SHARE * available_bytes), max(_CPU_MEMORY_DEFAULT, 2 * weights_bytes))


def _share(num_computed: int, num_tokens: int) -> ScheduledRequest:
    total = num_computed + num_tokens
    request = Request("profile", [0] * total, SamplingParams(temperature=1.0))
    request.block_table = [0] * -(-total // PROFILE_BLOCK_SIZE)
    return ScheduledRequest(request, num_computed, num_tokens, samples=True, is_decode=num_tokens == 1)
