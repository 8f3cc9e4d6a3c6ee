"""The recurrent states of a unified tree: which nodes have one, and their order of eviction.

A state cannot be cut in two, so the upper half of a split has none, and a match ends at the deepest
node that has one.  When an inner node's state is evicted, the node stays as a tombstone; when
a tombstone loses its last child, it stays as well, as a leaf, until its KV is evicted.

Source: the MambaComponent of SGLang's UnifiedRadixCache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybridbench.engine.cache.base import (
    BasePrefixCache,
    CacheableReq,
    CacheEvents,
    CacheInitParams,
    CacheSanityError,
    DecLockRefParams,
    EvictParams,
    IncLockRefResult,
    InsertParams,
    InsertResult,
)
from hybridbench.engine.cache.lru import LIST_ENDS, MambaLRUList
from hybridbench.engine.cache.mamba_radix_cache import check_refusals, check_same, hybrid_rows
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.cache.unified_component import CachingReq, Evicted, TreeComponent
from hybridbench.engine.lineage import joined
from hybridbench.engine.memory.indices import IntArray, as_single_index
from hybridbench.engine.memory.owners import REQ, TRACK, TREE, Owner


class UnifiedMambaLRUList(MambaLRUList):
    """A list with its own ``_remove_node``, as upstream, so that a defect can affect it alone."""

    def _remove_node(self, node: TreeNode) -> None:
        node.mamba_prev.mamba_next = node.mamba_next
        node.mamba_next.mamba_prev = node.mamba_prev
        node.mamba_prev = None  # type: ignore[assignment]
        node.mamba_next = None  # type: ignore[assignment]


class MambaComponent(TreeComponent):
    """States at nodes, their locks and LRU list, and the exchange of state slots with requests."""

    name = "mamba"
    list_ends = LIST_ENDS

    def __init__(self, params: CacheInitParams, events: CacheEvents) -> None:
        """Raise ValueError if pages, track buffers and chunk size are inconsistent."""
        self._events = events
        self._rows = hybrid_rows(params)
        self._pool = self._rows.mamba_pool
        self._allocator = self._rows.mamba_allocator
        self._chunk_size = max(params.mamba_cache_chunk_size, params.page_size)
        self._tracked = params.enable_mamba_extra_buffer
        self._needless_refusals = 0
        self._start()

    def evictable_size(self) -> int:
        return self._evictable

    def protected_size(self) -> int:
        return self._protected

    def reset(self) -> None:
        self.lru_list.dismantle()
        self._start()

    def has_value(self, node: TreeNode) -> bool:
        return node.mamba_value is not None

    def match_end(self, path: Sequence[TreeNode], end: int) -> int:
        while end and path[end - 1].mamba_value is None:
            end -= 1
        return end

    def branching_seqlen(self, prefix_len: int, walked_len: int) -> int | None:
        """``mamba_branching_seqlen`` for a hit of ``prefix_len`` of the ``walked_len`` tokens."""
        branching = walked_len // self._chunk_size * self._chunk_size
        return branching if branching > prefix_len else None

    def finalize_match_result(
        self, tree: BasePrefixCache, req: CacheableReq, node: TreeNode
    ) -> bool:
        """Copy the node's state into the request's slot, which is allocated if it has none."""
        if req.kv.mamba_pool_idx is None:
            slot = self._alloc_beside(tree, node)
            if slot is None:
                return False
            req.kv.mamba_pool_idx = slot
        assert node.mamba_value is not None, f"{node} was hit without a state"
        self._pool.copy_from(node.mamba_value, req.kv.mamba_pool_idx)
        self._events.cow_copies += 1
        return True

    def touch(self, path: Sequence[TreeNode]) -> None:
        """Refresh only the state at the end of a path, which is the one that is read."""
        used = path[-1]
        if used.mamba_value is not None:
            used.state_access_time = used.last_access_time
            self.lru_list.reset_path_mru(path[-1:])

    def redistribute_on_node_split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Count the upper half as a tombstone: a state belongs to a node's last token."""
        self._events.tombstones += 1
        self.touch([lower])

    def commit_insert_component_data(self, node: TreeNode, params: InsertParams) -> bool:
        if params.mamba_value is None or node.mamba_value is not None:
            return False
        slot = as_single_index(params.mamba_value, self._allocator.device)
        self._allocator.transfer([slot], params.mamba_owner, TREE)
        self._give(node, slot, node.last_access_time)
        if node.writers != params.writers:
            node.writers = joined(params.writers[:1], node.writers, params.writers[1:])
        return True

    def acquire_component_lock(self, node: TreeNode, lock: IncLockRefResult) -> IncLockRefResult:
        if node.mamba_value is None:
            return lock
        if node.mamba_lock_ref == 0:
            self._evictable -= 1
            self._protected += 1
        node.mamba_lock_ref += 1
        return IncLockRefResult(lock.delta, True, lock.swa_locked_len)

    def release_component_lock(self, node: TreeNode, receipt: DecLockRefParams | None) -> None:
        if not (node.mamba_lock_ref > 0 if receipt is None else receipt.mamba_locked):
            return
        assert node.mamba_lock_ref > 0, f"the state of {node} was not locked"
        node.mamba_lock_ref -= 1
        if node.mamba_lock_ref == 0:
            self.lru_list.release(node)
            self._evictable += 1
            self._protected -= 1

    def drive_eviction(self, params: EvictParams, evicted: Evicted) -> Iterator[TreeNode]:
        while evicted.states < params.mamba_num:
            oldest = self.lru_list.get_lru_no_lock()
            if oldest is None:
                return
            yield oldest

    def evict_component(self, node: TreeNode, evicted: Evicted) -> None:
        if node.mamba_value is None:
            return
        self._free_slot(node.mamba_value)
        self.lru_list.remove_node(node)
        node.mamba_value = None
        self._evictable -= 1
        evicted.states += 1

    def make_tombstone(self, node: TreeNode, evicted: Evicted) -> None:
        self._events.evict_internal_state += 1
        self._events.tombstones += 1
        self.evict_component(node, evicted)

    def take_loaded(self, node: TreeNode, slots: IntArray, time: int) -> None:
        self._give(node, int(slots[0]), time)

    def cacheable_len(self, req: CacheableReq) -> int:
        if self._tracked:
            return req.kv.mamba_last_track_seqlen or 0
        return req.kv.kv_committed_len if req.kv.mamba_pool_idx is not None else 0

    def prepare_for_caching_req(self, tree: BasePrefixCache, caching: CachingReq) -> bool:
        """Offer the last saved state; without track buffers, the request's own or a copy of it.

        A request that ends offers its own state.  For one that continues, a slot is allocated
        first: for the copy, or to replace the saved state's slot in the track buffer.
        """
        req, params = caching.req, caching.params
        assert params is not None, f"request {req.rid} hands over nothing"
        if not caching.finished:
            caching.spare_slot = self._alloc(tree, TRACK if self._tracked else REQ)
            if caching.spare_slot is None:
                return False
        if self._tracked:
            buffer = req.kv.mamba_ping_pong_track_buffer
            assert buffer is not None, f"request {req.rid} has a saved state but no track buffer"
            start = req.kv.cache_protected_len
            assert len(params.key) > start, f"request {req.rid} kept a state that the tree has"
            params.mamba_value = buffer[self._rows.get_mamba_ping_pong_keep_idx(req)]
            params.mamba_owner = TRACK
        elif caching.spare_slot is None:
            params.mamba_value = req.kv.mamba_pool_idx
        else:
            assert req.kv.mamba_pool_idx is not None, f"request {req.rid} has no state to copy"
            # Copy first: once the tree has the slot, a host tier may start reading it.
            self._pool.copy_from(req.kv.mamba_pool_idx, caching.spare_slot)
            params.mamba_value = caching.spare_slot
        return True

    def cleanup_after_caching_req(self, caching: CachingReq, result: InsertResult | None) -> None:
        taken = result is not None and not result.mamba_exist
        if caching.finished:
            self._free_slots_of(caching.req, taken)
        elif caching.spare_slot is not None:
            self._use_spare(caching.req, caching.spare_slot, taken)

    def sanity_check(self, nodes: Sequence[TreeNode]) -> None:
        self.lru_list.sanity_check()
        with_state = {node.id for node in nodes if node.mamba_value is not None}
        check_same(with_state, {node.id for node in self.lru_list}, "mamba list")
        unlocked = {n.id for n in nodes if n.mamba_value is not None and not n.mamba_lock_ref}
        check_same(unlocked, {n.id for n in self.lru_list.evictable()}, "evictable states")
        check_refusals(self._needless_refusals)
        for node in nodes:
            if node.mamba_value is None and node.mamba_lock_ref:
                raise CacheSanityError("a lock on a state that is gone", [node.id])
        counted = (self._evictable, self._protected)
        if counted != (len(unlocked), len(with_state) - len(unlocked)):
            raise CacheSanityError(
                f"{len(unlocked)} states of {len(with_state)} are unlocked, but the counters "
                f"say {counted[0]} evictable and {counted[1]} protected"
            )

    def _give(self, node: TreeNode, slot: int, time: int) -> None:
        """Give a node the state in ``slot``, which the tree owns; it becomes the youngest."""
        node.mamba_value = slot
        node.state_access_time = time
        self.lru_list.insert_mru(node)
        self._evictable += 1

    def _free_slot(self, slot: int) -> None:
        """Free a slot of the tree."""
        self._allocator.free([slot], TREE)

    def _free_slots_of(self, req: CacheableReq, taken: bool) -> None:
        """Free the slots of a request that ended, except one that the tree has taken."""
        if self._tracked and taken:
            self._events.track_donations += 1
            self._rows.free_mamba_cache(req, self._rows.get_mamba_ping_pong_keep_idx(req))
        elif taken:
            self._rows.forget_mamba_cache(req)
        elif req.kv.mamba_pool_idx is not None:
            self._rows.free_mamba_cache(req)

    def _use_spare(self, req: CacheableReq, spare: int, taken: bool) -> None:
        """Put the spare slot into the track buffer, in place of the slot that the tree took.

        Free it if the tree took nothing.  Without track buffers, the tree took the spare slot.
        """
        if not taken:
            self._allocator.free([spare], TRACK if self._tracked else REQ)
        elif self._tracked:
            self._events.track_donations += 1
            self._rows.donate_mamba_ping_pong_slot(req, spare)
        if self._tracked:
            req.kv.mamba_last_track_seqlen = None

    def _alloc_beside(self, tree: BasePrefixCache, node: TreeNode) -> int | None:
        """Allocate one slot for REQ without ever evicting the state of ``node``."""
        slots = self._allocator.alloc(1, REQ)
        if slots is not None:
            return slots[0]
        lock = tree.inc_lock_ref(node)
        slot = self._alloc(tree, REQ)
        tree.dec_lock_ref(node, lock.to_dec_params())
        return slot

    def _alloc(self, tree: BasePrefixCache, owner: Owner) -> int | None:
        """Allocate one slot for ``owner``, evicting a state if necessary; None if that fails."""
        slots = self._allocator.alloc(1, owner)
        if slots is None:
            evictable = self._evictable
            tree.evict(EvictParams(mamba_num=1))
            slots = self._allocator.alloc(1, owner)
            evicted = evictable - self._evictable
            self._needless_refusals += slots is None and evictable > 0 and not evicted
        return None if slots is None else slots[0]

    def _start(self) -> None:
        self.lru_list = UnifiedMambaLRUList()
        self._evictable = 0
        self._protected = 0
