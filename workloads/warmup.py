"""How much of a window's load is missing because the system began empty."""

from collections.abc import Sequence

MAX_WARMUP_LEFT = 0.05


def warmup_left(served_s: Sequence[float], warmup_s: float, window_s: float) -> float | None:
    """Share of the window's load that is missing; None where no request was served.

    After a time t an empty system under a steady load lacks the share E[(D - t)+] / E[D] of its steady population, D
    being how long a request is served (the M/G/infinity queue); this is the mean of that over the window. Taken from
    D, it needs no trend in the data, in which a growing backlog would look like a warm-up.

    Args:
        served_s: time from admission to end, in seconds, of requests that were served.
        warmup_s, window_s: lengths in seconds.
    """
    if sum(served_s) == 0 or window_s == 0:
        return None
    lacking = sum(max(0.0, d - warmup_s) ** 2 - max(0.0, d - warmup_s - window_s) ** 2 for d in served_s)
    return lacking / (2 * window_s * sum(served_s))
