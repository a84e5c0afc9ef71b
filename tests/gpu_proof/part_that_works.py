"""A part that measures one thing."""

from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.sizes import Sizes


def measure(sizes: Sizes, notes: Notes) -> None:
    notes.add("all", f"on {sizes.device}", figure=2)
