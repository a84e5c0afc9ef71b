"""How torch's CPU threads wait for one another. Must be decided before torch is imported."""

import os


def wait_passively() -> None:
    """Let OpenMP threads sleep between parallel regions instead of spinning, unless the user has chosen.

    A decode step is some two hundred short parallel regions. A thread that spins between them uses up its share of a
    core that anything else wants too, and is then kept waiting for whole time slices: on a 2-core machine with one
    other busy process a step took 20 times as long. A sleeping thread is woken at once.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
