"""The common part of the prefix trees: walking a key, splitting, walking all nodes, table rows.

Nodes are numbered and accesses counted per tree; access counts are unique, so the order of
any two nodes is always defined.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hybridbench.engine.cache.base import (
    BasePrefixCache,
    CacheableReq,
    CacheEvents,
    CacheInitParams,
    CacheSanityError,
    InsertParams,
    MatchPrefixParams,
    MatchResult,
    TreeSlots,
    no_indices,
)
from hybridbench.engine.cache.kv_events import KvEventRecorder
from hybridbench.engine.cache.radix_key import TOKEN_BYTES, ChildKey, RadixKey, common_tokens
from hybridbench.engine.cache.tree_node import TreeNode, empty_root
from hybridbench.engine.lineage import MOST_WRITERS, Writers, joined
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import REQ


class Walk(NamedTuple):
    """How far the tree contains a key.

    Attributes:
        path: the nodes from the top, without the root.
        length: tokens they cover.
        split_off: the lower half of the last node, if that had to be split at the key's end.
    """

    path: list[TreeNode]
    length: int
    split_off: TreeNode | None


class PrefixTree(BasePrefixCache):
    """A tree of token runs.  Subclasses decide what a match returns and what may be evicted."""

    def __init__(self, params: CacheInitParams) -> None:
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.page_size = params.page_size
        self.device = params.token_to_kv_pool_allocator.device
        self.disable = params.disable
        self.events = CacheEvents()
        self.kv_events = KvEventRecorder(params.enable_kv_cache_events, params.page_size)
        self.root_node = empty_root()
        self._first_page = params.page_size * TOKEN_BYTES
        self._clock = 0
        self._last_node_id = 0
        self._node_count = 0
        self.full_evictable_size_ = 0
        self.full_protected_size_ = 0

    def evictable_size(self) -> int:
        return self.full_evictable_size_

    def protected_size(self) -> int:
        return self.full_protected_size_

    def node_count(self) -> int:
        return self._node_count

    def iter_nodes(self) -> Iterator[TreeNode]:
        stack = list(self.root_node.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def tree_slots(self) -> TreeSlots:
        values: list[IntArray] = []
        states: list[int] = []
        for node in self.iter_nodes():
            values.append(node.value)
            if node.mamba_value is not None:
                states.append(node.mamba_value)
        kv_indices = np.concatenate(values) if values else no_indices()
        return TreeSlots(kv_indices, states, no_indices())

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        if self.disable or not params.key.raw:
            return self._no_match()
        result = self._match(params.key)
        if params.req is not None and len(result.device_indices):
            self.events.prefix_hits += 1
            self.events.prefix_hit_tokens += len(result.device_indices)
        return result

    def cache_finished_req(self, req: CacheableReq, is_insert: bool = True) -> None:
        kept = req.kv.cache_protected_len
        if is_insert and not self.disable:
            inserted = self.insert(
                InsertParams(
                    self._committed_key(req),
                    self._row_indices(req, req.kv.kv_committed_len),
                    prev_prefix_len=kept,
                    swa_evicted_seqlen=req.kv.swa_evicted_seqlen,
                    writers=req.writers,
                )
            )
            kept = max(kept, inserted.total_len)
        # The range starts on a page border: the tree never owned the partly filled last page.
        self._free_row_from(req, kept)
        self._give_lock_back(req)

    def cache_unfinished_req(self, req: CacheableReq, chunked: bool = False) -> None:
        """Share the whole pages computed so far, and move the lock to the longer prefix."""
        value = self._row_indices(req, req.kv.kv_committed_len)
        req.kv.prefix_indices = value
        key = self._committed_key(req).page_aligned(self.page_size)
        if self.disable or not key.raw:
            return
        start = req.kv.cache_protected_len
        self.insert(
            InsertParams(
                key,
                value,
                prev_prefix_len=start,
                swa_evicted_seqlen=req.kv.swa_evicted_seqlen,
                chunked=chunked,
                writers=req.writers,
            )
        )
        matched = self._match(key)
        indices = matched.device_indices
        assert len(indices) == len(key), f"request {req.rid}: the tree lost its prefix"
        self._move_to_tree(req, matched)
        req.kv.prefix_indices = np.concatenate((indices, value[len(indices) :]))

    @abstractmethod
    def _match(self, key: RadixKey) -> MatchResult:
        """Find the reusable prefix of ``key``, and make it the youngest."""

    @abstractmethod
    def _after_split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Update the bookkeeping of the two halves of a node."""

    def _walk(self, key: RadixKey) -> Walk:
        """Follow ``key`` down, splitting the last node if the key ends or diverges inside it."""
        raw = key.raw
        end = len(raw)
        width = self._first_page
        continues_with = raw.startswith
        children = self.root_node.children
        lookup: ChildKey = key.child_key(self.page_size)
        path: list[TreeNode] = []
        split_off: TreeNode | None = None
        offset = 0
        while offset < end:
            child = children.get(lookup)
            if child is None:
                break
            child_raw = child.key.raw
            if not continues_with(child_raw, offset):
                tokens = common_tokens(raw, offset, child_raw, self.page_size)
                path.append(self._split_node(child, tokens))
                offset += tokens * TOKEN_BYTES
                split_off = child
                break
            path.append(child)
            offset += len(child_raw)
            children = child.children
            lookup = raw[offset : offset + width]
        return Walk(path, offset // TOKEN_BYTES, split_off)

    def _split_node(self, lower: TreeNode, tokens: int) -> TreeNode:
        """Insert a new node with the first ``tokens`` tokens of ``lower`` above it.

        ``lower`` stays the same object, with its state and its id, since requests may have
        locked it.  Both halves own their arrays: a slice would keep the whole array alive.
        """
        parent = _parent_of(lower)
        filed_under = self._child_key(parent, lower.key)
        upper = self._new_node(lower.key[:tokens], lower.value[:tokens].copy(), parent)
        upper.writers = lower.writers
        upper.full_lock_ref = lower.full_lock_ref
        upper.hit_count = lower.hit_count
        upper.priority = lower.priority
        if lower.hash_value is not None:
            pages = tokens // self.page_size
            upper.hash_value, lower.hash_value = lower.hash_value[:pages], lower.hash_value[pages:]
        lower.key = lower.key[tokens:]
        lower.value = lower.value[tokens:].copy()
        lower.parent = upper
        upper.children[self._child_key(upper, lower.key)] = lower
        parent.children[filed_under] = upper
        self.events.node_splits += 1
        self._after_split(upper, lower)
        return upper

    def _new_node(self, key: RadixKey, value: IntArray, parent: TreeNode) -> TreeNode:
        self._last_node_id += 1
        self._node_count += 1
        self.events.nodes_created += 1
        node = TreeNode(self._last_node_id, key, value, parent)
        node.creation_time = node.last_access_time = self._tick()
        return node

    def _sign(self, node: TreeNode, writers: Writers) -> None:
        """Record the writers of ``node``, which is new or has a new state.

        They include the writers of the KV that the tree already had in and above the node.  The
        first of ``writers`` may have recomputed that KV, but its copy was freed as a duplicate.
        """
        above = _parent_of(node).writers
        if node.writers or above[: MOST_WRITERS - 1] != writers[1:]:
            writers = joined(writers[:1], node.writers, above, writers[1:])
        node.writers = writers

    def _unlink_from_parent(self, node: TreeNode) -> TreeNode:
        """Remove a node from the tree; return its parent, which the node still references."""
        parent = _parent_of(node)
        del parent.children[self._child_key(parent, node.key)]
        self._node_count -= 1
        self.events.nodes_removed += 1
        self.kv_events.removed(node)
        return parent

    def _note_stored(self, leaf: TreeNode) -> None:
        """Count and report the pages of a new leaf."""
        self.events.blocks_stored += len(leaf.key) // self.page_size
        self.kv_events.stored(leaf)

    def _child_key(self, parent: TreeNode, key: RadixKey) -> ChildKey:
        if parent is self.root_node:
            return key.child_key(self.page_size)
        return key.raw[: self._first_page]

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _stamp_path(self, path: Sequence[TreeNode]) -> None:
        """Mark the nodes of a path, given from the top, as just used; the lowest is youngest."""
        clock = self._clock
        for node in path:
            clock += 1
            node.last_access_time = clock
        self._clock = clock

    def _dismantle_nodes(self) -> None:
        """Cut parents from children, so that nodes are freed without the garbage collector."""
        for node in [self.root_node, *self.iter_nodes()]:
            node.children = {}
            node.parent = None
        self.kv_events.cleared()

    def _lock_path(self, node: TreeNode) -> int:
        """Lock the KV from ``node`` to the root; return the change in evictable tokens, <= 0."""
        self.events.lock_calls += 1
        delta = 0
        # Only the root, which needs no lock, and the nodes of a tree that was reset have no parent.
        while (parent := node.parent) is not None:
            if node.full_lock_ref == 0:
                delta -= len(node.value)
            node.full_lock_ref += 1
            node = parent
        self.full_evictable_size_ += delta
        self.full_protected_size_ -= delta
        return delta

    def _unlock_path(self, node: TreeNode) -> int:
        """Unlock the KV from ``node`` to the root once; return tokens that became evictable."""
        self.events.unlock_calls += 1
        delta = 0
        while (parent := node.parent) is not None:
            assert node.full_lock_ref > 0, f"{node} was not locked"
            node.full_lock_ref -= 1
            if node.full_lock_ref == 0:
                delta += len(node.value)
            node = parent
        self.full_evictable_size_ += delta
        self.full_protected_size_ -= delta
        return delta

    def _no_match(self) -> MatchResult:
        return MatchResult(no_indices(), self.root_node, self.root_node)

    def _committed_key(self, req: CacheableReq, end: int | None = None) -> RadixKey:
        """The tokens of ``req`` whose KV is final, or the first ``end`` of them."""
        token_ids = array("q", req.origin_input_ids)
        token_ids.extend(req.output_ids)
        return RadixKey(token_ids[: req.kv.kv_committed_len if end is None else end], req.extra_key)

    def _row_indices(self, req: CacheableReq, end: int) -> IntArray:
        """KV indices of positions 0 to ``end`` of a request with a row, as a new array."""
        assert req.kv.req_pool_idx is not None, f"request {req.rid} has no row"
        return self.req_to_token_pool.req_to_token[req.kv.req_pool_idx, :end].astype(np.int64)

    def _free_row_from(self, req: CacheableReq, start: int) -> None:
        """Free the positions of ``req``'s row from ``start`` on."""
        end = max(req.kv.kv_committed_len, req.kv.kv_allocated_len)
        if start < end:
            self.token_to_kv_pool_allocator.free(self._row_indices(req, end)[start:])

    def _free_duplicates(self, value: IntArray, start: int, end: int) -> None:
        """Free KV that the tree already has in other positions."""
        if start < end:
            self.token_to_kv_pool_allocator.free(value[start:end], REQ)

    def _move_to_tree(self, req: CacheableReq, matched: MatchResult) -> None:
        """Make the request read the tree's KV: rewrite its row, move its lock."""
        indices, node = matched.device_indices, matched.last_device_node
        assert req.kv.req_pool_idx is not None, f"request {req.rid} has no row"
        start = req.kv.cache_protected_len
        self.req_to_token_pool.write(
            (req.kv.req_pool_idx, slice(start, len(indices))), indices[start:]
        )
        lock = self.inc_lock_ref(node)
        self._give_lock_back(req)
        req.kv.last_node, req.kv.lock_receipt = node, lock.to_dec_params()
        req.kv.cache_protected_len = len(indices)
        req.goes_on_from(node.writers)

    def _give_lock_back(self, req: CacheableReq) -> None:
        if req.kv.last_node is not None:
            self.dec_lock_ref(req.kv.last_node, req.kv.lock_receipt)
            req.kv.last_node = req.kv.lock_receipt = None

    def _check_structure(self) -> list[TreeNode]:
        """Walk the tree; raise CacheSanityError where parents, keys, values or locks disagree."""
        nodes = list(self.iter_nodes())
        if len(nodes) != self._node_count:
            raise CacheSanityError(f"{len(nodes)} nodes in the tree, {self._node_count} counted")
        for node in nodes:
            self._check_node(node)
        evictable = sum(len(node.value) for node in nodes if node.full_lock_ref == 0)
        protected = sum(len(node.value) for node in nodes if node.full_lock_ref > 0)
        counted = (self.full_evictable_size_, self.full_protected_size_)
        if counted != (evictable, protected):
            raise CacheSanityError(
                f"nodes hold {evictable} evictable and {protected} protected KV tokens, "
                f"but the counters say {counted[0]} and {counted[1]}"
            )
        return nodes

    def _check_node(self, node: TreeNode) -> None:
        parent = _parent_of(node)
        if parent.children.get(self._child_key(parent, node.key)) is not node:
            raise CacheSanityError("a node is missing from its parent's children", [node.id])
        self._check_value(node)
        if len(node.key) % self.page_size != 0:
            raise CacheSanityError(f"{len(node.key)} tokens are not whole pages", [node.id])
        if node.full_lock_ref < 0 or node.mamba_lock_ref < 0:
            raise CacheSanityError("a lock count is negative", [node.id])
        if node.mamba_lock_ref > node.full_lock_ref:
            raise CacheSanityError("more locks on the state than on the KV", [node.id])
        if parent is not self.root_node and parent.full_lock_ref < node.full_lock_ref:
            raise CacheSanityError("a parent has fewer locks than its child", [parent.id, node.id])

    def _check_value(self, node: TreeNode) -> None:
        if len(node.key) != len(node.value) or len(node.key) == 0:
            raise CacheSanityError(
                f"{len(node.key)} tokens, but {len(node.value)} KV indices", [node.id]
            )


def join(path: Sequence[TreeNode]) -> IntArray:
    """The KV indices of a path, in a new array."""
    if len(path) == 1:
        return path[0].value.copy()
    return np.concatenate([node.value for node in path]) if path else no_indices()


def _parent_of(node: TreeNode) -> TreeNode:
    assert node.parent is not None, f"{node} is the root or was removed from the tree"
    return node.parent
