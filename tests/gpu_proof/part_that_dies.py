"""A part whose process ends without a word, as after a fault in a library."""

import os

from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.sizes import Sizes


def measure(sizes: Sizes, notes: Notes) -> None:
    notes.add("first", "was measured", figure=1)
    os.abort()
