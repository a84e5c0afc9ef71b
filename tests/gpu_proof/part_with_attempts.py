"""A part of which one attempt fails."""

from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.sizes import Sizes


def measure(sizes: Sizes, notes: Notes) -> None:
    for number in range(3):
        with notes.attempt(f"figure {number}", ok=False):
            notes.add(f"figure {number}", "was measured", inverse=1 / (number - 1), ok=True)
