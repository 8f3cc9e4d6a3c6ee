"""The prefix tree of hybrid models: KV is shared per token, recurrent states per node.

A state cannot be cut in two, so KV and states are evicted independently: a node may lose its state
and keep its KV (a tombstone), and a match ends at the deepest node that has a state.

The scheduler's strategy determines the source of the states.  Without extra buffers, a request's
own slot moves into the tree when it ends, or a copy of it between two chunks.  Such a state can
follow any token, so pages must have one token.  With extra buffers, a request provides copies that
steps have saved at aligned lengths: the tree takes the slot of the last copy, the KV up to its
length, and nothing beyond.  Pages can then have any size, and a request's own state never enters
the tree.

Evicting KV removes the oldest unlocked leaf with its state.  Evicting a state frees the oldest
unlocked state anywhere: an inner node stays as a tombstone, a leaf is evicted as a whole.  Only the
LRU lists determine which is the oldest.  After a leaf, the tombstones above it that are left
without children are evicted as well, since nothing can hit them.

Source: SGLang's MambaRadixCache, whose behaviour this follows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hybridbench.engine.cache.base import (
    CacheableReq,
    CacheInitParams,
    CacheSanityError,
    DecLockRefParams,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    IncLockRefResult,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
)
from hybridbench.engine.cache.lru import LIST_ENDS, FullLRUList, MambaLRUList
from hybridbench.engine.cache.radix_key import TOKEN_BYTES, RadixKey
from hybridbench.engine.cache.tree import PrefixTree, join
from hybridbench.engine.cache.tree_node import TreeNode, empty_root
from hybridbench.engine.memory.indices import IntArray, as_index_array, as_single_index
from hybridbench.engine.memory.owners import REQ, TRACK, TREE, Owner
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool


class MambaRadixCache(PrefixTree):
    """A prefix tree with KV at every node, and states at some.

    A hit copies the state at its end into the request's own slot (copy-on-write).

    Attributes:
        full_lru_list: all nodes but the root; mamba_lru_list: those with a state.
        mamba_evictable_size_, mamba_protected_size_: number of states without and with a lock.
    """

    def __init__(self, params: CacheInitParams) -> None:
        """Raise ValueError if pages, track buffers and chunk size are inconsistent."""
        super().__init__(params)
        rows = hybrid_rows(params)
        if params.eviction_policy != "lru":
            raise ValueError(f"a hybrid tree evicts by lru only, not {params.eviction_policy!r}")
        self._refresh_path = params.state_refresh == "path"
        self._hybrid_rows = rows
        self.mamba_pool = rows.mamba_pool
        self.mamba_allocator = rows.mamba_allocator
        self._start_order()
        self._needless_state_refusals = 0
        self.enable_mamba_extra_buffer = params.enable_mamba_extra_buffer
        self.mamba_cache_chunk_size = max(params.mamba_cache_chunk_size, params.page_size)

    def supports_mamba(self) -> bool:
        return True

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        if self.disable or not params.key.raw:
            return self._no_match()
        result = self._match(params.key)
        req = params.req
        hit_tokens = len(result.device_indices)
        if hit_tokens == 0 or req is None:
            return result
        if params.cow_mamba and not self._copy_state(req, result.last_device_node):
            return self._no_match()
        self.events.prefix_hits += 1
        self.events.prefix_hit_tokens += hit_tokens
        return result

    def insert(self, params: InsertParams) -> InsertResult:
        """Insert a prefix and the state after it.

        Raises:
            ValueError: not exactly one state slot, not one KV index per token, or a state after a
                token that does not end a page.
        """
        key = params.key
        if params.mamba_value is None:
            raise ValueError("a hybrid tree keeps no prefix without a state: mamba_value is None")
        if self.disable or not key.raw:
            return InsertResult(0, 0, mamba_exist=True)
        assert params.value is not None, "a hybrid tree keeps no prefix without KV"
        value = as_index_array(params.value, self.mamba_allocator.device)
        state = as_single_index(params.mamba_value, self.mamba_allocator.device)
        total = len(key)
        if len(value) != total:
            raise ValueError(f"{total} tokens, but {len(value)} KV indices")
        if total % self.page_size:
            raise ValueError(f"a state after {total} tokens is inside a page of {self.page_size}")
        path, prefix_len, split_off = self._walk(key)
        # The split-off end is touched after the half above it: children must be younger.
        below = [] if split_off is None else [split_off]
        self._touch_path(path)
        self._take_or_free(path, value[:prefix_len], params.prev_prefix_len)
        if prefix_len < total:
            self._touch_path(below)
            path.append(self._add_leaf(path, key, value, prefix_len))
        mamba_exist = path[-1].mamba_value is not None
        if not mamba_exist:
            self._give_state(path[-1], state, params.mamba_owner)
            self._sign(path[-1], params.writers)
        if prefix_len == total:
            self._touch_path(below)
        self._after_insert(path, params)
        return InsertResult(prefix_len, total, mamba_exist)

    def inc_lock_ref(self, node: TreeNode) -> IncLockRefResult:
        if self.disable or node is self.root_node:
            return IncLockRefResult(0)
        mamba_locked = node.mamba_value is not None
        if mamba_locked:
            self._lock_state(node)
        if self._is_leaf(node):
            self.full_lru_list.hold(node)
        return IncLockRefResult(self._lock_path(node), mamba_locked)

    def dec_lock_ref(
        self, node: TreeNode, params: DecLockRefParams | None = None
    ) -> DecLockRefResult:
        if self.disable or node is self.root_node:
            return DecLockRefResult(0)
        mamba_locked = node.mamba_lock_ref > 0 if params is None else params.mamba_locked
        if mamba_locked:
            self._unlock_state(node)
        delta = self._unlock_path(node)
        if node.full_lock_ref == 0 and self._is_leaf(node):
            self._became_evictable_leaf(node)
        return DecLockRefResult(delta)

    def cache_finished_req(self, req: CacheableReq, is_insert: bool = True) -> None:
        if is_insert and not self.disable:
            self._insert_finished(req)
        else:
            self._free_row_from(req, req.kv.cache_protected_len)
            if req.kv.mamba_pool_idx is not None:
                self._hybrid_rows.free_mamba_cache(req)
        self._give_lock_back(req)

    def cache_unfinished_req(self, req: CacheableReq, chunked: bool = False) -> None:
        """Give the tree a state, and move the request's lock to the longer prefix.

        Without extra buffers, the state is a copy of the request's own, after all tokens computed;
        with them, it is the last saved copy, and the request keeps the KV beyond its length.  If
        there is no free slot for the copy, or to replace the saved one, nothing is cached.
        """
        value = self._row_indices(req, req.kv.kv_committed_len)
        req.kv.prefix_indices = value
        length = self._len_with_state(req)
        if self.disable or length == 0:
            return
        key = self._committed_key(req, length)
        share = self._share_tracked if self.enable_mamba_extra_buffer else self._share_copy
        params = InsertParams(key, value[:length], chunked=chunked, writers=req.writers)
        if not share(req, params):
            return
        matched = self._match(key)
        assert len(matched.device_indices) == length, f"request {req.rid}: the tree lost it"
        self._move_to_tree(req, matched)
        req.kv.prefix_indices = np.concatenate((matched.device_indices, value[length:]))

    def reset(self) -> None:
        self.full_lru_list.dismantle()
        self.mamba_lru_list.dismantle()
        self._dismantle_nodes()
        self.root_node = empty_root()
        self._node_count = 0
        self.full_evictable_size_ = 0
        self.full_protected_size_ = 0
        self._start_order()

    def live_node_count(self) -> int:
        return self._node_count + 1 + 2 * LIST_ENDS

    def mamba_evictable_size(self) -> int:
        return self.mamba_evictable_size_

    def mamba_protected_size(self) -> int:
        return self.mamba_protected_size_

    def evict(self, params: EvictParams) -> EvictResult:
        """Free at least ``num_tokens`` KV tokens, then whatever is missing of ``mamba_num``."""
        self.events.evict_calls += 1
        tokens, states, _ = self.evict_full(params.num_tokens)
        if params.mamba_num > states:
            more = self.evict_mamba(params.mamba_num - states)
            return EvictResult(tokens + more.num_tokens_evicted, states + more.mamba_num_evicted)
        return EvictResult(tokens, states)

    def evict_full(self, num_tokens: int) -> EvictResult:
        """Evict leaves, oldest first, until ``num_tokens`` KV tokens are free."""
        freed: list[IntArray] = []
        tokens = states = 0
        for leaf in self._oldest_leaves():
            if tokens >= num_tokens:
                break
            states += leaf.mamba_value is not None
            tokens += self._evict_leaf(leaf, freed)
        self._free_kv(freed)
        return EvictResult(tokens, states)

    def evict_mamba(self, mamba_num: int) -> EvictResult:
        """Evict states, oldest first, until ``mamba_num`` slots are free."""
        freed: list[IntArray] = []
        tokens = states = 0
        while states < mamba_num:
            node = self.mamba_lru_list.get_lru_no_lock()
            if node is None:
                break
            states += 1
            if node.children or node.full_lock_ref > 0:
                self._evict_internal_state(node)
            else:
                tokens += self._evict_leaf(node, freed)
        self._free_kv(freed)
        return EvictResult(tokens, states)

    def sanity_check(self) -> None:
        nodes = self._check_structure()
        self.full_lru_list.sanity_check()
        self.mamba_lru_list.sanity_check()
        on_device = {node.id for node in nodes if not node.evicted}
        check_same(on_device, {n.id for n in self.full_lru_list}, "full list")
        with_state = {node.id for node in nodes if node.mamba_value is not None}
        check_same(with_state, {n.id for n in self.mamba_lru_list}, "mamba list")
        leaves = {node.id for node in nodes if node.full_lock_ref == 0 and self._is_leaf(node)}
        check_same(leaves, {n.id for n in self.full_lru_list.evictable()}, "evictable leaves")
        unlocked = {n.id for n in nodes if n.mamba_value is not None and n.mamba_lock_ref == 0}
        check_same(unlocked, {n.id for n in self.mamba_lru_list.evictable()}, "evictable states")
        check_refusals(self._needless_state_refusals)
        for node in nodes:
            if not (node.children or node.full_lock_ref or self._is_wanted(node)):
                raise CacheSanityError("a leaf without a state", [node.id])
            if node.mamba_value is None and node.mamba_lock_ref:
                raise CacheSanityError("a lock on a state that is gone", [node.id])
        counted = (self.mamba_evictable_size_, self.mamba_protected_size_)
        if counted != (len(unlocked), len(with_state) - len(unlocked)):
            raise CacheSanityError(
                f"{len(unlocked)} states of {len(with_state)} are unlocked, but the counters "
                f"say {counted[0]} evictable and {counted[1]} protected"
            )

    # Transfer from requests.

    def _len_with_state(self, req: CacheableReq) -> int:
        """The length of ``req`` at which it has a state for the tree; 0 without one."""
        if self.enable_mamba_extra_buffer:
            return req.kv.mamba_last_track_seqlen or 0
        return req.kv.kv_committed_len if req.kv.mamba_pool_idx is not None else 0

    def _share_copy(self, req: CacheableReq, params: InsertParams) -> bool:
        """Insert with a copy of the request's own state; False if there is no slot for it."""
        copy = self._alloc_state(REQ)
        if copy is None:
            return False
        assert req.kv.mamba_pool_idx is not None, f"request {req.rid} has no state to copy"
        # Copy first: once the tree has the slot, a host tier may start reading it.
        self.mamba_pool.copy_from(req.kv.mamba_pool_idx, copy)
        params.mamba_value = copy
        params.prev_prefix_len = req.kv.cache_protected_len
        if self.insert(params).mamba_exist:
            self.mamba_allocator.free([copy], REQ)
        return True

    def _share_tracked(self, req: CacheableReq, params: InsertParams) -> bool:
        """Insert with the last saved state, and replace its slot in the track buffer.

        False if there is no slot to replace it.
        """
        fresh = self._alloc_state(TRACK)
        if fresh is None:
            return False
        if self._insert_tracked(req, params):
            self._hybrid_rows.donate_mamba_ping_pong_slot(req, fresh)
        else:
            self.mamba_allocator.free([fresh], TRACK)
        req.kv.mamba_last_track_seqlen = None
        return True

    def _insert_tracked(self, req: CacheableReq, params: InsertParams) -> bool:
        """Insert with the last saved state; return whether the tree took its slot."""
        buffer, start = req.kv.mamba_ping_pong_track_buffer, req.kv.cache_protected_len
        assert buffer is not None, f"request {req.rid} has a saved state but no track buffer"
        assert len(params.key) > start, f"request {req.rid} kept a state that the tree has"
        params.mamba_value = buffer[self._hybrid_rows.get_mamba_ping_pong_keep_idx(req)]
        params.mamba_owner = TRACK
        params.prev_prefix_len = start
        taken = not self.insert(params).mamba_exist
        self.events.track_donations += taken
        return taken

    def _match(self, key: RadixKey) -> MatchResult:
        """Match up to the deepest state, and make the matched nodes the youngest of all."""
        path, matched, _ = self._walk(key.page_aligned(self.page_size))
        reusable = len(path)
        while reusable and path[reusable - 1].mamba_value is None:
            reusable -= 1
        used = path[:reusable]
        self._touch_path(used)
        indices = join(used)
        node = used[-1] if used else self.root_node
        branching = matched // self.mamba_cache_chunk_size * self.mamba_cache_chunk_size
        return MatchResult(
            indices,
            node,
            node,
            branching if branching > len(indices) else None,
            len(indices),
        )

    def _copy_state(self, req: CacheableReq, node: TreeNode) -> bool:
        """Copy a hit node's state into the request's slot; False if no slot can be allocated."""
        if req.kv.mamba_pool_idx is None:
            slot = self._alloc_state_beside(node)
            if slot is None:
                return False
            req.kv.mamba_pool_idx = slot
        assert node.mamba_value is not None, f"{node} was hit without a state"
        self.mamba_pool.copy_from(node.mamba_value, req.kv.mamba_pool_idx)
        self.events.cow_copies += 1
        return True

    def _alloc_state_beside(self, node: TreeNode) -> int | None:
        """Allocate one slot for REQ without ever evicting the state of ``node``."""
        slots = self.mamba_allocator.alloc(1, REQ)
        if slots is not None:
            return slots[0]
        lock = self.inc_lock_ref(node)
        slot = self._alloc_state(REQ)
        self.dec_lock_ref(node, lock.to_dec_params())
        return slot

    def _alloc_state(self, owner: Owner) -> int | None:
        """Allocate one slot for ``owner``, evicting a state if necessary; None if that fails."""
        slots = self.mamba_allocator.alloc(1, owner)
        if slots is None:
            evictable = self.mamba_evictable_size_
            self.evict_mamba(1)
            slots = self.mamba_allocator.alloc(1, owner)
            evicted = evictable - self.mamba_evictable_size_
            self._needless_state_refusals += slots is None and evictable > 0 and not evicted
        return None if slots is None else slots[0]

    def _take_or_free(self, path: list[TreeNode], value: IntArray, start: int) -> None:
        """Free the KV of ``value`` from ``start`` on: the tree already has it in ``path``."""
        del path
        self._free_duplicates(value, start, len(value))

    def _after_insert(self, path: list[TreeNode], params: InsertParams) -> None:
        """Hook, called after an insert that used the nodes of ``path``; does nothing here."""

    def _add_leaf(
        self, path: list[TreeNode], key: RadixKey, value: IntArray, prefix_len: int
    ) -> TreeNode:
        kept = value[prefix_len:].copy()
        self.token_to_kv_pool_allocator.transfer(kept, REQ, TREE)
        parent = path[-1] if path else self.root_node
        rest = RadixKey.from_raw(key.raw[prefix_len * TOKEN_BYTES :], key.extra_key)
        node = self._new_node(rest, kept, parent)
        if parent is not self.root_node:
            self.full_lru_list.hold(parent)
        parent.children[self._child_key(parent, rest)] = node
        self.full_lru_list.insert_mru(node)
        self.full_evictable_size_ += len(kept)
        self._note_stored(node)
        return node

    def _give_state(self, node: TreeNode, slot: int, giver: Owner) -> None:
        """Give a state to a new leaf or a tombstone; its path has just been touched."""
        self.mamba_allocator.transfer([slot], giver, TREE)
        node.mamba_value = slot
        node.state_access_time = node.last_access_time
        self.mamba_lru_list.insert_mru(node)
        self.mamba_evictable_size_ += 1

    def _insert_finished(self, req: CacheableReq) -> None:
        if self.enable_mamba_extra_buffer:
            self._insert_finished_tracked(req)
            return
        committed = req.kv.kv_committed_len
        slot = req.kv.mamba_pool_idx
        assert slot is not None, f"request {req.rid} finished without a state slot"
        inserted = self.insert(
            InsertParams(
                self._committed_key(req),
                self._row_indices(req, committed),
                slot,
                prev_prefix_len=req.kv.cache_protected_len,
                writers=req.writers,
            )
        )
        self._free_row_from(req, max(committed, req.kv.cache_protected_len))
        if inserted.mamba_exist:
            self._hybrid_rows.free_mamba_cache(req)
        else:
            self._hybrid_rows.forget_mamba_cache(req)

    def _insert_finished_tracked(self, req: CacheableReq) -> None:
        """Give the tree the last saved state and the KV up to it; free everything else.

        That includes the request's own state, which covers its last token.
        """
        length = self._len_with_state(req)
        keep_idx = None
        if length:
            key = self._committed_key(req, length)
            params = InsertParams(key, self._row_indices(req, length), writers=req.writers)
            if self._insert_tracked(req, params):
                keep_idx = self._hybrid_rows.get_mamba_ping_pong_keep_idx(req)
        self._free_row_from(req, max(length, req.kv.cache_protected_len))
        self._hybrid_rows.free_mamba_cache(req, keep_idx)

    # Eviction, and its order.

    def _oldest_leaves(self) -> Iterator[TreeNode]:
        """Yield unlocked leaves, oldest first; evict each before taking the next.

        Finding one takes the same time however many there are.
        """
        while (leaf := self.full_lru_list.get_leaf_lru_no_lock()) is not None:
            yield leaf

    def _evict_leaf(self, leaf: TreeNode, freed: list[IntArray]) -> int:
        """Evict an unlocked leaf and childless tombstones above it; return the tokens freed."""
        self.events.evict_leaf += 1
        tokens = len(leaf.value)
        if leaf.mamba_value is not None:
            self._free_state(leaf)
        parent = self._remove_leaf(leaf, freed)
        return tokens + self._evict_cascade(parent, freed)

    def _evict_cascade(self, node: TreeNode, freed: list[IntArray]) -> int:
        """Evict ``node`` and its parents while they are childless, unlocked tombstones."""
        tokens = 0
        while node.full_lock_ref == 0 and self._is_leaf(node) and node is not self.root_node:
            if self._is_wanted(node):
                self.full_lru_list.release(node)
                break
            self.events.evict_cascade += 1
            tokens += len(node.value)
            node = self._remove_leaf(node, freed)
        return tokens

    def _is_leaf(self, node: TreeNode) -> bool:
        """Whether evicting ``node`` removes no other KV from the device."""
        return not node.children

    def _is_wanted(self, node: TreeNode) -> bool:
        """Whether a request can hit this leaf, or a node below it."""
        return node.mamba_value is not None

    def _evict_internal_state(self, node: TreeNode) -> None:
        """Turn a node into a tombstone: free its state, keep its KV for longer prefixes."""
        self.events.evict_internal_state += 1
        self.events.tombstones += 1
        self._free_state(node)

    def _free_state(self, node: TreeNode) -> None:
        slot = node.mamba_value
        assert slot is not None, f"{node} has no state to free"
        self.mamba_allocator.free([slot], TREE)
        self.mamba_lru_list.remove_node(node)
        node.mamba_value = None
        self.mamba_evictable_size_ -= 1

    def _remove_leaf(self, leaf: TreeNode, freed: list[IntArray]) -> TreeNode:
        """Remove an unlocked leaf without a state from all structures; return its parent."""
        freed.append(leaf.value)
        self.full_evictable_size_ -= len(leaf.value)
        self.full_lru_list.remove_node(leaf)
        return self._unlink_from_parent(leaf)

    def _became_evictable_leaf(self, node: TreeNode) -> None:
        """Handle a leaf that lost its last lock; without a state it is evicted at once."""
        freed: list[IntArray] = []
        self._evict_cascade(node, freed)
        self._free_kv(freed)

    def _free_kv(self, freed: list[IntArray]) -> None:
        if freed:
            indices = freed[0] if len(freed) == 1 else np.concatenate(freed)
            self.token_to_kv_pool_allocator.free(indices, TREE)

    def _lock_state(self, node: TreeNode) -> None:
        if node.mamba_lock_ref == 0:
            self.mamba_evictable_size_ -= 1
            self.mamba_protected_size_ += 1
        node.mamba_lock_ref += 1

    def _unlock_state(self, node: TreeNode) -> None:
        assert node.mamba_lock_ref > 0, f"the state of {node} was not locked"
        node.mamba_lock_ref -= 1
        if node.mamba_lock_ref == 0:
            self.mamba_lru_list.release(node)
            self.mamba_evictable_size_ += 1
            self.mamba_protected_size_ -= 1

    def _touch_path(self, path: list[TreeNode]) -> None:
        """Make a path the youngest in both lists, each child younger than its parent."""
        if not path:
            return
        self._stamp_path(path)
        # Only the last node can be evictable: those above it have children.
        self.full_lru_list.reset_path_mru(path[-1:])
        self._refresh_states(path)

    def _refresh_states(self, path: list[TreeNode]) -> None:
        """Make the states that a hit used the youngest: all on its path, or only the last."""
        self._make_states_youngest(path if self._refresh_path else path[-1:])

    def _make_states_youngest(self, path: list[TreeNode]) -> None:
        for node in path:
            if node.mamba_value is not None:
                node.state_access_time = node.last_access_time
        self.mamba_lru_list.reset_path_mru(path)

    def _after_split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Count the upper half as a tombstone, and make the lower half the younger one."""
        self.events.tombstones += 1
        self.full_lru_list.insert_mru(upper)
        self.full_lru_list.hold(upper)
        lower.last_access_time = self._tick()
        self.full_lru_list.reset_path_mru([lower])
        self._make_states_youngest([lower])

    def _full_list(self) -> FullLRUList:
        return FullLRUList()

    def _start_order(self) -> None:
        self.full_lru_list = self._full_list()
        self.mamba_lru_list = MambaLRUList()
        self.mamba_evictable_size_ = 0
        self.mamba_protected_size_ = 0


def hybrid_rows(params: CacheInitParams) -> HybridReqToTokenPool:
    """Return the rows for a tree that keeps states, after checking the parameters.

    Raises:
        TypeError: the rows have no states.
        ValueError: pages, track buffers and chunk size are inconsistent.
    """
    rows, page_size = params.req_to_token_pool, params.page_size
    if not isinstance(rows, HybridReqToTokenPool):
        raise TypeError(f"a hybrid tree needs a HybridReqToTokenPool, not {type(rows).__name__}")
    if page_size != 1 and not params.enable_mamba_extra_buffer:
        raise ValueError(f"a hybrid tree without track buffers needs page_size 1, not {page_size}")
    if params.enable_mamba_extra_buffer != rows.enable_mamba_extra_buffer:
        raise ValueError("enable_mamba_extra_buffer must be the same for the tree and the rows")
    chunk_size = max(params.mamba_cache_chunk_size, page_size)
    if chunk_size % page_size:
        raise ValueError(
            f"mamba_cache_chunk_size {chunk_size} is not a multiple of page_size {page_size}"
        )
    return rows


def check_same(walked: set[int], listed: set[int], name: str) -> None:
    """Raise CacheSanityError, naming the nodes in only one of the sets, unless they are equal."""
    if walked != listed:
        raise CacheSanityError(f"{name}: inconsistent with the tree", sorted(walked ^ listed))


def check_refusals(needless: int) -> None:
    """Raise CacheSanityError if state slots were refused and nothing evictable was evicted."""
    if needless:
        raise CacheSanityError(
            f"{needless} state slot(s) were refused although states without a lock could have been "
            "evicted"
        )
