"""Random streams of a workload: one per purpose, all derived from the run's seed.

They are `numpy.random.RandomState`, whose bit streams numpy has frozen, so that a seed gives the same plan with every
version of numpy. With a stream per purpose, a draw more of one thing changes nothing of another.
"""

from hashlib import sha256
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from numpy.random import RandomState

Purpose = Literal[
    "arrivals",
    "prompt lengths",
    "output lengths",
    "tokens",
    "classes",
    "prefixes",
    "prefix lengths",
    "prefix tokens",
]


def stream(seed: int, purpose: Purpose, of: str = "") -> "RandomState":
    """The stream of one purpose, at its beginning; `of` names the part of the workload that has one of its own."""
    from numpy.random import RandomState

    name = f"{seed}:{purpose}:{of}" if of else f"{seed}:{purpose}"
    digest = sha256(name.encode()).digest()
    return RandomState([int.from_bytes(digest[i : i + 4], "little") for i in range(0, len(digest), 4)])
