"""Blocks of host memory for the caches of preempted requests."""

from collections.abc import Iterable, Sequence


class HostPool:
    """Blocks 0 .. num_blocks - 1, each free or held by one swapped request.

    Blocks are handed out in ascending order as far as they are, since neighbours are copied at once.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # Ends with the next to go.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks. The caller has checked `num_free`."""
        if not count:
            return []
        blocks = self._free[-count:][::-1]
        del self._free[-count:]
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
        assert sorted([*held, *self._free]) == list(range(self.num_blocks)), "a host block is lost or held twice"
