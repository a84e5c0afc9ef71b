"""A part that measures one thing and then fails. For tests of what becomes of the rest."""

from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.sizes import Sizes


def measure(sizes: Sizes, notes: Notes) -> None:
    notes.set(copy_gb_per_s=7.0)
    notes.add("first", "was measured", figure=1)
    raise ArithmeticError("the second was [/not]")
