"""A host tier with storage behind it, to which it writes nodes, and from which it prefetches them.

A node written to the host is then written to storage; a reference protects its host slots until
that is done.  A new request that finds only part of its prompt in the tree starts a prefetch of the
rest into host slots, and is not admitted before the prefetch has ended, or may be ended.  The
result is inserted into the tree below the *anchor*, the node at which the match ended; a reference
protects the anchor until then.  From there it is loaded like all other KV that only the host has.

Source: SGLang's HiRadixCache with a storage backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from hybridbench.engine.cache.base import (
    CacheInitParams,
    CacheSanityError,
    MatchPrefixParams,
)
from hybridbench.engine.cache.host_part import Run, last_nodes
from hybridbench.engine.cache.host_tier import HostTier, Ongoing
from hybridbench.engine.cache.radix_key import TOKEN_BYTES, RadixKey
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode
from hybridbench.engine.memory.hicache_controller import CacheOperation, HiCacheController
from hybridbench.engine.memory.hicache_storage import PageHash
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import HOST, TREE
from hybridbench.engine.memory.storage_controller import PrefetchOperation, StorageController
from hybridbench.foundation.engine_config import HiCacheWritePolicy, PrefetchPolicy

_HASH_BYTES = 16
# Prefetches hold at most this share of the host pool, so that prefetched KV stays for a while.
_PREFETCH_SHARE = 0.8


@dataclass(frozen=True)
class StorageRules:
    """When prefetches may be ended, and the clock that is used."""

    prefetch_policy: PrefetchPolicy
    prefetch_timeout_s: float
    now_s: Callable[[], float]


class Prefetch(NamedTuple):
    """A prefetch of the tokens of ``key`` after the first ``start``, which end at the anchor."""

    operation: PrefetchOperation
    anchor: Run
    key: RadixKey
    start: int
    began_s: float


class StorageTier(HostTier):
    """A host tier that may have storage behind it.

    Attributes:
        storage_controller: reads and writes; None without storage.
        ongoing_prefetch: prefetches by their request's ``arrival``, since its id may be reused.
        ongoing_backup: the runs being written, by the number of the write.
    """

    def __init__(
        self,
        params: CacheInitParams,
        cache_controller: HiCacheController,
        write_policy: HiCacheWritePolicy = "write_through",
        storage_controller: StorageController | None = None,
        rules: StorageRules | None = None,
    ) -> None:
        super().__init__(params, cache_controller, write_policy)
        self.storage_controller = storage_controller
        self._rules = rules
        self.ongoing_prefetch: dict[int, Prefetch] = {}
        self.ongoing_backup: dict[int, Run] = {}

    @property
    def has_transfers(self) -> bool:
        controller = self.storage_controller
        return super().has_transfers or (controller is not None and len(controller) > 0)

    def prefetching_size(self) -> int:
        controller = self.storage_controller
        return 0 if controller is None else controller.prefetching_size()

    def check_hicache_events(self) -> None:
        super().check_hicache_events()
        controller = self.storage_controller
        if controller is not None and len(controller):
            controller.poll()
            self.drain_storage_control_queues()

    def drain_storage_control_queues(self) -> None:
        """Insert finished prefetches, and release the protection of finished writes."""
        controller = self.storage_controller
        assert controller is not None
        while controller.ack_backup_queue:
            written = self.ongoing_backup.pop(controller.ack_backup_queue.popleft())
            self._release_host(last_nodes(written))
        over = [
            arrival
            for arrival, prefetch in self.ongoing_prefetch.items()
            if prefetch.operation.is_done
        ]
        for arrival in over:
            self._end_prefetch(arrival)

    def write_backup_storage(self, node: TreeNode) -> None:
        """Start writing the host's KV of ``node`` to storage."""
        controller, host_value = self.storage_controller, node.host_value
        if controller is None or host_value is None:
            return
        pages = len(node.key) // self.page_size
        hashes = page_hashes(self._path_key(node), self.page_size)[-pages:]
        self.events.storage_backups += 1
        self._protect_host([node])
        number = controller.write_storage(host_value, hashes)
        self.ongoing_backup[number] = Run(node, len(node.key))

    def prefetch_from_storage(self, arrival: int, key: RadixKey) -> None:
        """Start fetching from the storage what the tree lacks of ``key``.

        Do nothing if that is less than the threshold, if the host does not have the node above it,
        or if there is no room on the host.
        """
        controller = self.storage_controller
        key = key.page_aligned(self.page_size)
        if controller is None or not key.raw:
            return
        found = self.match_prefix(MatchPrefixParams(key))
        anchor, start = found.last_host_node, found.prefix_len + found.host_hit_length
        missing = len(key) - start
        on_host = anchor is self.root_node or anchor.host_value is not None
        if missing < controller.prefetch_threshold or not on_host:
            return
        covered = Run(anchor, len(anchor.key))
        # Protect first: evictions from the host to make room must not remove the anchor.
        self._protect_host(last_nodes(covered))
        host_indices = self._alloc_for_prefetch(controller, missing)
        if host_indices is None:
            self._release_host(last_nodes(covered))
            return
        hashes = page_hashes(key, self.page_size)[start // self.page_size :]
        operation = controller.prefetch(host_indices, hashes)
        now_s = self._storage_rules.now_s()
        self.ongoing_prefetch[arrival] = Prefetch(operation, covered, key, start, now_s)
        self.events.storage_prefetches += 1

    def check_prefetch_progress(self, arrival: int) -> bool:
        """Whether a request's prefetch is over; this ends it if that is allowed."""
        prefetch = self.ongoing_prefetch.get(arrival)
        if prefetch is None:
            return True
        if not self._can_terminate_prefetch(prefetch):
            return False
        self.events.storage_early_stops += 1
        self._end_prefetch(arrival)
        return True

    def release_aborted_request(self, arrival: int) -> None:
        """End the prefetch of a request that is gone; the tree keeps what has arrived."""
        if arrival in self.ongoing_prefetch:
            self.events.storage_early_stops += 1
            self._end_prefetch(arrival)

    @property
    def _storage_rules(self) -> StorageRules:
        assert self._rules is not None, "storage needs rules"
        return self._rules

    def _alloc_for_prefetch(self, controller: StorageController, tokens: int) -> IntArray | None:
        """Allocate slots for a prefetch, evicting from the host if necessary."""
        host = controller.mem_pool_host
        if controller.prefetching_size() + tokens > _PREFETCH_SHARE * host.size:
            return None
        host_indices = host.alloc(tokens)
        if host_indices is None:
            self.evict_host(tokens - host.available_size())
            host_indices = host.alloc(tokens)
        if host_indices is None:
            self._check_refused_tokens(tokens)
        return host_indices

    def _can_terminate_prefetch(self, prefetch: Prefetch) -> bool:
        """Whether a prefetch that is still running may be ended for its request."""
        rules = self._storage_rules
        if rules.prefetch_policy == "best_effort":
            return True
        waited_s = rules.now_s() - prefetch.began_s
        return rules.prefetch_policy == "timeout" and waited_s >= rules.prefetch_timeout_s

    def _end_prefetch(self, arrival: int) -> None:
        controller, prefetch = self.storage_controller, self.ongoing_prefetch.pop(arrival)
        assert controller is not None
        completed_tokens = controller.terminate_prefetch(prefetch.operation)
        if completed_tokens:
            self._take_prefetched(prefetch, completed_tokens)
        self._release_host(last_nodes(prefetch.anchor))

    def _take_prefetched(self, prefetch: Prefetch, tokens: int) -> None:
        """Insert what the tree lacks of the first ``tokens`` fetched; free duplicates."""
        host = self.cache_controller.mem_pool_host
        host_indices = prefetch.operation.host_indices[:tokens]
        path, length, _ = self._walk(prefetch.key[: prefetch.start + tokens])
        present = length - prefetch.start
        assert present >= 0, "the anchor of a prefetch has gone"
        host.free(host_indices[:present], HOST)
        self.events.storage_prefetched_tokens += tokens - present
        if present < tokens:
            rest = prefetch.key[length : prefetch.start + tokens]
            parent = path[-1] if path else self.root_node
            self._add_host_leaf(parent, rest, host_indices[present:])

    def _add_host_leaf(self, parent: TreeNode, key: RadixKey, host_indices: IntArray) -> None:
        """Add a node that only the host has; it takes over slots of a prefetch."""
        node = self._new_node(key, NO_TOKENS, parent)
        node.host_value = self._clone_host_indices(host_indices)
        self.cache_controller.mem_pool_host.allocator.transfer(node.host_value, HOST, TREE)
        self._host_size += len(key)
        parent.children[self._child_key(parent, key)] = node
        self._evictable_host_leaves.discard(parent)
        self._evictable_host_leaves.add(node)
        self._note_stored(node)

    def _attach_written(self, ongoing: Ongoing, operation: CacheOperation) -> None:
        super()._attach_written(ongoing, operation)
        for node in last_nodes(ongoing.run):
            self.write_backup_storage(node)

    def _check_host(self, nodes: list[TreeNode]) -> None:
        known = {node.id for node in nodes} | {self.root_node.id}
        reading = [prefetch.anchor for prefetch in self.ongoing_prefetch.values()]
        reading += self.ongoing_backup.values()
        gone = [covered.node.id for covered in reading if covered.node.id not in known]
        if gone:
            raise CacheSanityError("nodes were removed while a storage transfer used them", gone)
        super()._check_host(nodes)

    def _leads_to_protected(self, node: TreeNode) -> bool:
        """Whether host slots below ``node`` are protected."""
        if self._host_protected_size == 0:
            return False
        below = list(node.children.values())
        for child in below:
            if self._is_host_protected(child):
                return True
            below += child.children.values()
        return False

    def _path_key(self, node: TreeNode) -> RadixKey:
        """All tokens from the root to the end of ``node``."""
        raws = []
        on_path: TreeNode | None = node
        while on_path is not None and on_path is not self.root_node:
            raws.append(on_path.key.raw)
            on_path = on_path.parent
        return RadixKey.from_raw(b"".join(reversed(raws)), node.key.extra_key)


def page_hashes(key: RadixKey, page_size: int) -> list[PageHash]:
    """The key of each page of a prefix, each chained to the page before it.

    ``key`` begins at the root and is whole pages long.
    """
    width = page_size * TOKEN_BYTES
    # Different namespaces must not share keys.
    before = blake2b(key.namespace(), digest_size=_HASH_BYTES).digest()
    hashes = []
    for start in range(0, len(key.raw), width):
        page = key.raw[start : start + width]
        before = blake2b(page, digest_size=_HASH_BYTES, key=before).digest()
        hashes.append(before)
    return hashes
