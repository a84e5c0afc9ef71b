"""What torch and its threads read from the environment of the process. Must be decided before torch is imported."""

import os

# Turns of GNU OpenMP's waiting loop before a thread sleeps: some 20 microseconds, as long as Python takes from one
# parallel region to the next. On two quiet cores a step of 16 rows took 45 ms with it and 54 without.
_SPIN_COUNT = 2000


def prepare_process() -> None:
    """Set how threads wait and in what pages memory comes, unless the user has chosen.

    Threads soon sleep between parallel regions instead of spinning on. A decode step is some two hundred short
    regions. A thread that spins between them uses up its share of a core that anything else wants too, and is then
    kept waiting for whole time slices: on a 2-core machine with one other busy process a step took 20 times as long.
    A sleeping thread is woken at once.

    Tensors of 2 MiB and more lie in large pages where the system gives them on request: weights are read from
    beginning to end in every step, a hundredth to a twentieth faster so, and fresh memory costs fewer page faults.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPIN_COUNT))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
