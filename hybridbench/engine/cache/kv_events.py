"""The KV blocks that a cache stored and removed, for routers that route requests by prefix.

A block is one page of tokens, identified by a hash of all tokens up to its end, so that two engines
give the same prefix the same hash.  Events are kept until they are taken.

Source: SGLang's and vLLM's KV cache events, and the ``hash_value`` of SGLang's tree nodes.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple, TypeAlias

from hybridbench.engine.cache.radix_key import TOKEN_BYTES
from hybridbench.engine.cache.tree_node import TreeNode

_HASH_BYTES = 8


class BlockStored(NamedTuple):
    """A block can be reused from now on; there is one event per block, parents first.

    Attributes:
        block_hashes: its hash; a tuple of one, since other engines put several blocks in an event.
        parent_block_hash: the hash of the block before it; None for the first of a prefix.
        token_ids: the ``block_size`` tokens of this block alone.
    """

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int


class BlockRemoved(NamedTuple):
    """These blocks were evicted."""

    block_hashes: tuple[int, ...]


class AllBlocksCleared(NamedTuple):
    """The cache was emptied: no block reported before can be reused."""


KvEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class KvEventRecorder:
    """Keeps one entry per block stored or removed, until ``take``; nothing if disabled.

    ``log`` holds, in order, the hash (at least 0) of each stored block, and the complement
    (``~hash``, negative) of each removed one.  The other data of a stored block are kept once,
    under its hash.
    """

    def __init__(self, enabled: bool, page_size: int) -> None:
        self.enabled = enabled
        self.log: list[int] = []
        # Parent and tokens of the stored blocks in the log, by their hash.
        self._blocks: dict[int, tuple[int | None, bytes]] = {}
        self._page_size = page_size
        self._page_bytes = page_size * TOKEN_BYTES
        self._was_cleared = False

    def __len__(self) -> int:
        return len(self.log)

    def stored(self, node: TreeNode) -> None:
        """Record a node added to the tree below its parent, and set its ``hash_value``."""
        if self.enabled:
            self._note(node)

    def removed(self, node: TreeNode) -> None:
        """Record a node removed from the tree."""
        if self.enabled and node.hash_value is not None:
            self.log += [~block_hash for block_hash in node.hash_value]

    def cleared(self) -> None:
        """Record that the tree is empty, which makes all earlier events irrelevant."""
        if self.enabled:
            self.log = []
            self._blocks = {}
            self._was_cleared = True

    def take(self) -> list[KvEvent]:
        """All events since the last call; blocks removed together share one event."""
        if not self.enabled:
            return []
        events: list[KvEvent] = [AllBlocksCleared()] if self._was_cleared else []
        log, self.log, self._was_cleared = self.log, [], False
        for is_removal, entries in groupby(log, key=lambda entry: entry < 0):
            if is_removal:
                events.append(BlockRemoved(tuple(~entry for entry in entries)))
            else:
                events += map(self._stored_event, entries)
        self._blocks = {}
        return events

    def drop(self) -> int:
        """Discard what ``take`` would return, without building it; return the number of events."""
        events = int(self._was_cleared)
        for is_removal, entries in groupby(self.log, key=lambda entry: entry < 0):
            events += 1 if is_removal else sum(1 for _ in entries)
        self.log, self._blocks, self._was_cleared = [], {}, False
        return events

    def _note(self, node: TreeNode) -> None:
        hashes = node.hash_value = self.block_hashes(node)
        before, raw, width = _hash_before(node), node.key.raw, self._page_bytes
        for i, block_hash in enumerate(hashes):
            self._blocks[block_hash] = (before, raw[i * width : (i + 1) * width])
            before = block_hash
        self.log += hashes

    def _stored_event(self, block_hash: int) -> BlockStored:
        parent, page = self._blocks[block_hash]
        return BlockStored((block_hash,), parent, array("q", page).tolist(), self._page_size)

    def block_hashes(self, node: TreeNode) -> list[int]:
        """The hash of each page of ``node``, each chained to the page before it."""
        last = _hash_before(node)
        if last is not None:
            before = last.to_bytes(_HASH_BYTES, "little")
        else:
            # Different namespaces must not share hashes.
            before = blake2b(node.key.namespace(), digest_size=_HASH_BYTES).digest()
        hashes = []
        raw = node.key.raw
        for start in range(0, len(raw), self._page_bytes):
            page = raw[start : start + self._page_bytes]
            digest = blake2b(page, digest_size=_HASH_BYTES, key=before).digest()
            # The sign marks removals, which leaves 63 bits for the hash.
            block_hash = int.from_bytes(digest, "little") >> 1
            before = block_hash.to_bytes(_HASH_BYTES, "little")
            hashes.append(block_hash)
        return hashes


def _hash_before(node: TreeNode) -> int | None:
    """The hash of the block before the first one of ``node``; None at the top of the tree."""
    parent = node.parent
    return parent.hash_value[-1] if parent is not None and parent.hash_value else None
