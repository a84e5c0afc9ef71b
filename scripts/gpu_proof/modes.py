"""Ways to run steps on a card, to be compared."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to run steps.

    Attributes:
        graphs: small steps are CUDA graphs.
        overlaps: the next step is launched while one is under way.
    """

    name: str
    graphs: bool
    overlaps: bool


AS_SERVED = Mode("graphs, overlap", graphs=True, overlaps=True)
EAGER = Mode("eager", graphs=False, overlaps=False)
# The simplest first: what goes wrong in one may leave a process of no more use.
MODES = (
    EAGER,
    Mode("overlap alone", graphs=False, overlaps=True),
    Mode("graphs alone", graphs=True, overlaps=False),
    AS_SERVED,
)
