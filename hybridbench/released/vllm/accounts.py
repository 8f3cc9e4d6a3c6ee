"""Account for the blocks of vLLM's pool: its free queue, and the block tables of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.scheduler.audit import InvariantViolation, ViolationKind
from hybridbench.engine.scheduler.pool_stats import PoolStats
from hybridbench.released.books import Claim

POOL: Final = "kv_blocks"
"""One pool serves all kinds of layers; block 0 is a placeholder that nothing may hold."""

# The field behind the property ``block_hash``.  Reading it is several times as fast, and every step
# reads all blocks.
_hash_of: Final = attrgetter("_block_hash")


class Structures(Protocol):
    """The block holders of one release."""

    def pool(self) -> Any: ...
    def managers(self) -> Sequence[Any]:
        """The managers, one for each kind of layer, with a block table for each request."""
        ...

    def admitted(self) -> Sequence[Any]: ...
    def waiting(self) -> Sequence[Any]: ...


class BlockAccounts:
    """A block belongs to the live requests whose tables name it, or to the free queue.

    The table of a request that has ended does not count: nothing would ever free its blocks.
    """

    def __init__(self, structures: Structures) -> None:
        self._of = structures

    def free_slots(self) -> Mapping[str, tuple[range, Sequence[int]]]:
        """The usable blocks, and the free ones."""
        pool = self._of.pool()
        blocks = range(1, len(pool.blocks))
        return {POOL: (blocks, [block.block_id for block in free_blocks(pool)])}

    def stats(self) -> dict[str, PoolStats]:
        """The pool's blocks, by holder; a free block with a hash can still be hit."""
        pool = self._of.pool()
        free = free_blocks(pool)
        cached = len(free) - uncached(free)
        running = self._blocks(self._of.admitted())
        waiting = self._blocks(self._of.waiting()) - running
        return {
            POOL: PoolStats(
                total=len(pool.blocks) - 1,
                available=len(free) - cached,
                evictable=cached,
                protected=0,
                in_flight=len(running),
                session_held=0,
                waiting_held=len(waiting),
            )
        }

    def held_by_waiting(self) -> dict[str, dict[str, int]]:
        """Blocks held by waiting requests: by rid, then by pool."""
        found = {req.request_id: len(self._blocks([req])) for req in self._of.waiting()}
        return {rid: {POOL: count} for rid, count in found.items() if count}

    def claims(self, pool: str) -> Iterator[Claim]:
        """The tables of live requests; a cached block may be in several of them."""
        for req in (*self._of.admitted(), *self._of.waiting()):
            yield Claim(f"request {req.request_id}", sorted(self._blocks([req])), is_shared=True)

    def session_records(self) -> Mapping[str, Any]:
        """Nothing: there are no sessions."""
        return {}

    def miscounts(self) -> list[InvariantViolation]:
        """Blocks with a reference count below their number of tables, and free blocks with any."""
        pool = self._of.pool()
        tables = Counter(self._entries((*self._of.admitted(), *self._of.waiting())))
        free = {block.block_id for block in free_blocks(pool)}
        found = []
        for block in pool.blocks:
            count, number = block.ref_cnt, block.block_id
            if block.is_null or (count >= tables[number] and not (number in free and count)):
                continue
            where = "the free queue" if number in free else f"{tables[number]} block table(s)"
            text = f"{POOL} pool: block {number} is in {where}, and its reference count is {count}"
            found.append(InvariantViolation(ViolationKind.ALIAS, POOL, text, (number,)))
        return found

    def _blocks(self, requests: Iterable[Any]) -> set[int]:
        return set(self._entries(requests))

    def _entries(self, requests: Iterable[Any]) -> Iterator[int]:
        tables = [manager.req_to_blocks for manager in self._of.managers()]
        for req in requests:
            for table in tables:
                # The tables are defaultdicts: an index would create an entry.
                for block in table.get(req.request_id, ()):
                    if not block.is_null:
                        yield block.block_id


def free_blocks(pool: Any) -> list[Any]:
    """Return the blocks in the free queue, from its head; stop even if the queue is a circle."""
    queue = pool.free_block_queue
    last, block = queue.fake_free_list_tail, queue.fake_free_list_head.next_free_block
    found = []
    for _ in range(len(pool.blocks) + 1):
        if block is None or block is last:
            break
        found.append(block)
        block = block.next_free_block
    return found


def uncached(blocks: Iterable[Any]) -> int:
    """Return how many of ``blocks`` have no hash, so that no request can hit them."""
    return [*map(_hash_of, blocks)].count(None)


class BlockWatch:
    """Counts blocks that enter or leave the prefix cache, by comparing their hashes."""

    def __init__(self, pool: Any, counters: EngineCounters) -> None:
        self._pool = pool
        self._counters = counters
        self._hashes: list[Any] = [None] * len(pool.blocks)

    def look(self) -> None:
        """Add the changes since the last call to the counters.

        A block that lost its hash and got another one within a step counts as both.
        """
        before, now = self._hashes, [*map(_hash_of, self._pool.blocks)]
        if now == before:
            return
        self._hashes = now
        changed = [(old, new) for old, new in zip(before, now, strict=True) if old is not new]
        evicted = sum(old is not None for old, _ in changed)
        counters = self._counters
        counters.kv_blocks_stored += sum(new is not None for _, new in changed)
        counters.evict_leaf += evicted
        counters.nodes_evicted += evicted

    def sizes(self) -> dict[str, int]:
        """Number of cached blocks at the last look."""
        return {"cached_blocks": len(self._hashes) - self._hashes.count(None)}
