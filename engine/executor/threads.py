"""How torch's CPU threads wait for one another. Must be decided before torch is imported."""

import os

# Turns of GNU OpenMP's waiting loop before a thread sleeps: some 20 microseconds, as long as Python takes from one
# parallel region to the next. On two quiet cores a step of 16 rows took 45 ms with it and 54 without.
_SPIN_COUNT = 2000


def wait_passively() -> None:
    """Let OpenMP threads soon sleep between parallel regions instead of spinning on, unless the user has chosen.

    A decode step is some two hundred short parallel regions. A thread that spins between them uses up its share of a
    core that anything else wants too, and is then kept waiting for whole time slices: on a 2-core machine with one
    other busy process a step took 20 times as long. A sleeping thread is woken at once.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPIN_COUNT))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
