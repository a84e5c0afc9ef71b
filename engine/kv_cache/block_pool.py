"""The pool of KV blocks: which are free, who shares them, which hold content that can be found again.

Plain integers and no torch: block ids index the executor's KV tensors, nothing here knows what they contain.
Every operation costs the blocks it names, never the size of the pool.
"""

from collections.abc import Iterable, Sequence


class BlockPool:
    """Blocks 0 .. num_blocks - 1, each free or owned, with the hash of its content where that is known.

    The free list is a ring linked through two arrays: blocks are handed out at its front, and a block found again
    by its hash leaves from the middle. Content that may be found again goes to the back, so the least recently
    used is lost first; blocks without a hash go to the front.

    Invariant (`check_integrity`): a block is in the free list exactly when its reference count is 0; the counts
    equal the tables that hold each block; a hash names only blocks that carry it.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._ref_count = [0] * num_blocks
        self._hash: list[bytes | None] = [None] * num_blocks
        # Index num_blocks is the ring's anchor: its successor is the front, its predecessor the back.
        self._next = [*range(1, num_blocks + 1), 0]
        self._prev = [num_blocks, *range(num_blocks)]
        self._block_of_hash: dict[bytes, int] = {}
        # Two requests may compute the same content at once; the further copies wait here to take over.
        self._copies: dict[bytes, list[int]] = {}

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def allocate(self, count: int) -> list[int]:
        """Own `count` blocks from the front of the free list. What they held is forgotten.

        The caller has checked `num_free`.
        """
        blocks = []
        anchor, following = self.num_blocks, self._next
        block = following[anchor]
        for _ in range(count):
            blocks.append(block)
            self._ref_count[block] = 1
            if self._hash[block] is not None:
                self.forget(block)
            block = following[block]
        following[anchor] = block
        self._prev[block] = anchor
        self.num_free -= count
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Own blocks that were found by their content, together with whoever owns them already."""
        for block in blocks:
            if self._ref_count[block] == 0:
                before, after = self._prev[block], self._next[block]
                self._next[before] = after
                self._prev[after] = before
                self.num_free -= 1
            self._ref_count[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give up a table's blocks, its last one first, so that tails are lost before heads."""
        for block in reversed(blocks):
            self._ref_count[block] -= 1
            if self._ref_count[block] == 0:
                self._insert_before(
                    self._next[self.num_blocks] if self._hash[block] is None else self.num_blocks, block
                )
                self.num_free += 1

    def _insert_before(self, successor: int, block: int) -> None:
        before = self._prev[successor]
        self._next[before] = block
        self._prev[block] = before
        self._next[block] = successor
        self._prev[successor] = block

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are free at present."""
        return sum(1 for block in blocks if self._ref_count[block] == 0)

    def find(self, content_hash: bytes) -> int | None:
        """A block with this content, free or owned."""
        return self._block_of_hash.get(content_hash)

    def remember(self, block: int, content_hash: bytes) -> None:
        """Let an owned block be found by its content."""
        self._hash[block] = content_hash
        if content_hash in self._block_of_hash:
            self._copies.setdefault(content_hash, []).append(block)
        else:
            self._block_of_hash[content_hash] = block

    def forget(self, block: int) -> None:
        """Let a block no longer be found. Nothing happens when it could not be."""
        content_hash = self._hash[block]
        if content_hash is None:
            return
        self._hash[block] = None
        copies = self._copies.get(content_hash)
        if self._block_of_hash[content_hash] != block:
            assert copies is not None
            copies.remove(block)
        elif copies:
            self._block_of_hash[content_hash] = copies.pop(0)
        else:
            del self._block_of_hash[content_hash]
        if copies is not None and not copies:
            del self._copies[content_hash]

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Check the invariant against all block tables. Costs the whole pool: for tests and debugging.

        Raises:
            AssertionError: with what is wrong.
        """
        counts = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), f"a table holds a block twice: {table}"
            for block in table:
                counts[block] += 1
        assert counts == self._ref_count, "reference counts differ from the tables that hold the blocks"
        free: list[int] = []
        at = self._next[self.num_blocks]
        while at != self.num_blocks and len(free) <= self.num_blocks:
            assert self._next[self._prev[at]] == at == self._prev[self._next[at]], f"links broken at {at}"
            free.append(at)
            at = self._next[at]
        assert len(free) == self.num_free, f"free list has {len(free)} blocks, count says {self.num_free}"
        assert sorted(free) == [b for b, count in enumerate(counts) if count == 0], (
            "free list is not the unowned blocks"
        )
        named = [*self._block_of_hash.items(), *((h, b) for h, blocks in self._copies.items() for b in blocks)]
        assert len({block for _, block in named}) == len(named), "a block is named by two hashes"
        assert all(self._hash[block] == content_hash for content_hash, block in named), "a hash names a wrong block"
        assert len(named) == sum(h is not None for h in self._hash), "a hashed block cannot be found"
