"""Block tables: gives requests room for their next tokens and finds prefixes that are already in the cache."""

from array import array
from collections.abc import Iterable
from hashlib import blake2b

from engine.kv_cache.block_pool import BlockPool
from engine.kv_cache.host_pool import HostPool
from engine.request import PENDING_TOKEN, Request


class KVCacheManager:
    """Owns the block pool, the requests' block tables, and the host memory for swapped requests.

    A block's hash covers its parent's hash and its own tokens, so equal hashes mean equal prefixes. Blocks can be
    found from the moment they are planned to be filled: all keys and values of a step are written before any of
    them is read, so a request admitted in the same step may already share them.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool, num_swap_blocks: int = 0
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks)
        self.host = HostPool(num_swap_blocks)

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
        for content_hash in hash_blocks(request, (request.num_tokens - 1) // self.block_size, self.block_size):
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
        if not self._has_room(request, prefix):
            return False
        self.pool.share(prefix)
        request.block_table = prefix
        request.num_computed_tokens = len(prefix) * self.block_size
        return self.extend(request, num_tokens)

    def _has_room(self, request: Request, prefix: list[int]) -> bool:
        """Room for every token the request knows, of which a prefix is in the cache."""
        needed = self.blocks_for(request.num_tokens) - len(prefix) + self.pool.count_free(prefix)
        return needed <= self.pool.num_free

    def swap_out(self, request: Request) -> list[tuple[int, int]] | None:
        """Take a request's blocks back, with host blocks for what it has computed.

        Returns:
            (block, host block) to copy before the blocks are written again; None, and nothing changed, without room.
        """
        count = self.blocks_for(request.num_computed_tokens)
        if count > self.host.num_free:
            return None
        host = self.host.allocate(count)
        pairs = list(zip(request.block_table, host, strict=False))
        self.free(request)
        request.swap_table = host
        return pairs

    def swap_in(self, request: Request, num_tokens: int) -> list[tuple[int, int]] | None:
        """Give a swapped request a table again, with room for the next `num_tokens`. See `admit` for how much room.

        What others have in the cache of its prefix need not be copied.

        Returns:
            (host block, block) to copy before the step's tokens are computed; None, and nothing changed, without room.
        """
        prefix = self.find_prefix(request)
        if not self._has_room(request, prefix):
            return None
        host, computed = request.swap_table, request.num_computed_tokens
        self.pool.share(prefix)
        copied = self.pool.allocate(max(0, len(host) - len(prefix)))
        request.block_table = prefix + copied
        request.num_computed_tokens = max(computed, len(prefix) * self.block_size)
        if self.enable_prefix_caching:
            full = computed // self.block_size
            for block, content_hash in zip(
                copied, hash_blocks(request, full, self.block_size)[len(prefix) :], strict=False
            ):
                self.pool.remember(block, content_hash)
        pairs = list(zip(host[len(prefix) :], copied, strict=True))
        self._release_host(request)
        num_tokens = min(num_tokens, request.num_tokens - request.num_computed_tokens)
        has_room = self.extend(request, num_tokens)
        assert has_room
        return pairs

    def _release_host(self, request: Request) -> None:
        # Copies out come before copies in, so none of these may take a victim in the same step. None does: a step that
        # preempts brings nobody back.
        self.host.release(request.swap_table)
        request.swap_table = []

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
            # The content of a block whose last token is on its way is not known yet; `token_known` catches up.
            if filled > computed // self.block_size and request.token_ids[end - 1] != PENDING_TOKEN:
                hashes = hash_blocks(request, filled, self.block_size)
                for index in range(computed // self.block_size, filled):
                    self.pool.remember(request.block_table[index], hashes[index])
        return True

    def token_known(self, request: Request, position: int) -> None:
        """Let the block that ends with a token be found, now that the token is known, if a step has been planned to
        fill it."""
        if not self.enable_prefix_caching or (position + 1) % self.block_size or not request.block_table:
            return
        if request.num_computed_tokens > position:
            index = position // self.block_size
            self.pool.remember(request.block_table[index], hash_blocks(request, index + 1, self.block_size)[index])

    def free(self, request: Request) -> None:
        """Take a request's blocks back, in host memory too. Blocks that were only planned to be filled can no longer
        be found."""
        table = request.block_table
        for block in table[request.num_computed_tokens // self.block_size :]:
            self.pool.forget(block)
        self.pool.release(table)
        request.block_table = []
        if request.swap_table:
            self._release_host(request)

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Check both pools against the tables of all live requests; see `BlockPool.check_integrity`."""
        requests = list(requests)
        self.pool.check_integrity([r.block_table for r in requests])
        self.host.check_integrity([r.swap_table for r in requests])


def hash_blocks(request: Request, count: int, block_size: int) -> list[bytes]:
    """Hashes of the first `count` full blocks of a request's known tokens; made once, kept with the request."""
    hashes = request.block_hashes
    if len(hashes) < count:
        tokens = array("q", request.token_ids[len(hashes) * block_size : count * block_size])
        content, block_bytes = tokens.tobytes(), block_size * tokens.itemsize
        parent = hashes[-1] if hashes else b""
        for start in range(0, len(content), block_bytes):
            parent = blake2b(parent + content[start : start + block_bytes], digest_size=16).digest()
            hashes.append(parent)
    return hashes if len(hashes) == count else hashes[:count]
