"""Block tables: gives requests room for their next tokens and finds prefixes that are already in the cache."""

import hashlib
from array import array
from collections.abc import Iterable

from engine.kv_cache.block_pool import BlockPool
from engine.request import Request


class KVCacheManager:
    """Owns the block pool and the requests' block tables.

    A block's hash covers its parent's hash and its own tokens, so equal hashes mean equal prefixes. Blocks can be
    found from the moment they are planned to be filled: all keys and values of a step are written before any of
    them is read, so a request admitted in the same step may already share them.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def find_prefix(self, request: Request) -> list[int]:
        """Blocks that already hold the longest cached prefix of a request's known tokens.

        At least one token is left to compute, since only a computed token yields the next one.
        """
        if not self.enable_prefix_caching:
            return []
        blocks: list[int] = []
        for content_hash in self._hashes(request, (request.num_tokens - 1) // self.block_size):
            block = self.pool.find(content_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def admit(self, request: Request, prefix: list[int], num_tokens: int) -> bool:
        """Start a request's table with a cached prefix and room for its first `num_tokens`.

        There must be room for every token the request knows, not only for its first chunk: otherwise requests
        that are each half admitted could block one another. False, and nothing changed, when there is not.
        """
        needed = self.blocks_for(request.num_tokens) - len(prefix) + self.pool.count_free(prefix)
        if needed > self.pool.num_free:
            return False
        self.pool.share(prefix)
        request.block_table = prefix
        request.num_computed_tokens = len(prefix) * self.block_size
        return self.extend(request, num_tokens)

    def extend(self, request: Request, num_tokens: int) -> bool:
        """Make room for the next `num_tokens` of a running request. False, and nothing changed, without room."""
        computed = request.num_computed_tokens
        end = computed + num_tokens
        needed = -(-end // self.block_size) - len(request.block_table)
        if needed > 0:
            if needed > self.pool.num_free:
                return False
            request.block_table.extend(self.pool.allocate(needed))
        if self.enable_prefix_caching:
            filled = end // self.block_size
            if filled > computed // self.block_size:
                hashes = self._hashes(request, filled)
                for index in range(computed // self.block_size, filled):
                    self.pool.remember(request.block_table[index], hashes[index])
        return True

    def free(self, request: Request) -> None:
        """Take a request's blocks back. Blocks that were only planned to be filled can no longer be found."""
        table = request.block_table
        for block in table[request.num_computed_tokens // self.block_size :]:
            self.pool.forget(block)
        self.pool.release(table)
        request.block_table = []

    def _hashes(self, request: Request, count: int) -> list[bytes]:
        """Hashes of the first `count` full blocks of known tokens; made once, kept with the request."""
        hashes, size = request.block_hashes, self.block_size
        while len(hashes) < count:
            start = len(hashes) * size
            tokens = array("q", request.token_ids[start : start + size]).tobytes()
            hashes.append(hashlib.blake2b((hashes[-1] if hashes else b"") + tokens, digest_size=16).digest())
        return hashes if len(hashes) == count else hashes[:count]

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Check the pool against the tables of all live requests; see `BlockPool.check_integrity`."""
        tables = [r.block_table for r in requests]
        self.pool.check_integrity(tables)
