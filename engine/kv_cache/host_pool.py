"""Blocks of host memory for the caches of preempted requests."""

from collections.abc import Iterable, Sequence


class HostPool:
    """Blocks 0 .. num_blocks - 1, each free or held by one swapped request.

    Blocks that were never used are only counted, so a large space costs nothing until it is filled. Blocks are handed
    out in ascending order as far as they are, since neighbours are copied at once.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_touched = 0
        # Those given back; ends with the next to go.
        self._free: list[int] = []

    @property
    def num_free(self) -> int:
        return self.num_blocks - self._num_touched + len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks. The caller has checked `num_free`."""
        again = min(count, len(self._free))
        blocks = [self._free.pop() for _ in range(again)]
        blocks += range(self._num_touched, self._num_touched + count - again)
        self._num_touched += count - again
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Give blocks back."""
        self._free.extend(reversed(blocks))

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Every block is free or in just one table.

        Raises:
            AssertionError: with what is wrong.
        """
        held = [block for table in tables for block in table]
        assert sorted([*held, *self._free]) == list(range(self._num_touched)), "a host block is lost or held twice"
