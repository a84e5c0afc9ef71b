"""Requests drawn again in blocks, so that what is served together stays together. numpy is imported when one draws."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

BLOCK_REQUESTS = 8


def circular_blocks(num_requests: int, samples: int, rng: "np.random.Generator") -> "np.ndarray":
    """Positions of requests for resamples of a run, int64 `[samples, requests]`.

    Blocks (Künsch, Annals of Statistics 17(3), 1989), since requests that are served together succeed and fail
    together; on a circle (Politis and Romano, "A circular block-resampling procedure", 1992), since in a short run the
    requests near its ends would be drawn too rarely and the interval come out too narrow.

    Args:
        num_requests: of the run, in order of arrival, at least 1.
    """
    import numpy as np

    length = min(BLOCK_REQUESTS, num_requests)
    starts = rng.integers(0, num_requests, size=(samples, -(-num_requests // length)))
    positions = (starts[:, :, None] + np.arange(length)) % num_requests  # [samples, blocks, length]
    return positions.reshape(samples, -1)[:, :num_requests]
