"""A part that measures one thing and then waits for ever."""

import threading

from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.sizes import Sizes


def measure(sizes: Sizes, notes: Notes) -> None:
    notes.add("first", "was measured", figure=1)
    threading.Event().wait()
