"""A world of requests around one prefix tree, in which every number can be checked.

Nothing is computed, but every write happens: each KV position, and each state, holds a number that
stands for the prefix up to it.  A position that was freed too early, a state copied from the wrong
node, or a stale row is detected as a wrong number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridbench.engine.cache.base import (
    DecLockRefParams,
    EvictParams,
    EvictResult,
    MatchPrefixParams,
)
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.memory.owners import FREE, HOST, REQ, TRACK, TREE
from hybridbench.engine.memory.req_to_token import NOT_TAKEN
from tests.unit.engine.cache.trees import (
    AnyHybridTree,
    AnyPagedTree,
    AnyWindowTree,
    HybridTree,
    TreeReq,
    WindowTree,
    prefixes,
)


@dataclass
class Part:
    """The part of a node with its own age: its state, or its KV in the window pool."""

    is_there: bool
    size: int
    locks: int
    time: int


@dataclass
class NodeView:
    """A node's facts for the naive model of eviction."""

    time: int
    tokens: int
    children: int
    parent: tuple[int, ...]
    full_locks: int
    part: Part


class TreeWorld:
    """Requests that match, compute, share, finish or are dropped, and the laws that must hold."""

    def __init__(self, tree: AnyHybridTree | AnyPagedTree | AnyWindowTree) -> None:
        self.tree = tree
        self.requests: list[TreeReq] = []
        self.locked: list[tuple[TreeNode, DecLockRefParams]] = []
        self._names: dict[tuple[int, ...], int] = {}
        self._kv = self._kv_numbers()

    def _kv_numbers(self) -> NDArray[Any]:
        """Return the array of the positions' numbers, which is written in place."""
        return np.zeros(self.tree.kv.size + self.tree.kv.page_size, dtype=np.int64)

    def loading_pages(self) -> list[int]:
        """Return the pages that are being filled from the host."""
        return []

    def loading_states(self) -> list[int]:
        """Return the state slots that are being filled from the host."""
        return []

    def name(self, prefix: Sequence[int]) -> int:
        """Return the number that stands for a prefix."""
        return self._names.setdefault(tuple(prefix), len(self._names) + 1)

    def start(self, ids: list[int]) -> bool:
        """Match, lock and admit a request; False, with nothing held, if it does not fit."""
        tree = self.tree
        req = TreeReq(f"r{len(self._names)}", ids)
        key = RadixKey(ids[:-1])
        matched = tree.cache.match_prefix(MatchPrefixParams(key, cow_mamba=True, req=req))
        hit = matched.cache_protected_len
        assert len(matched.device_indices) == hit
        lock = tree.cache.inc_lock_ref(matched.last_device_node).to_dec_params()
        if isinstance(tree, AnyHybridTree):
            own = req.kv.mamba_pool_idx is None
            self.make_state_room(own + tree.rows.track_slots_at_alloc)
        rows = tree.rows.alloc([req])
        if rows is None:
            tree.cache.dec_lock_ref(matched.last_device_node, lock)
            if isinstance(tree, AnyHybridTree) and req.kv.mamba_pool_idx is not None:
                tree.rows.free_mamba_cache(req)
            return False
        req.kv.last_node, req.kv.lock_receipt = matched.last_device_node, lock
        req.kv.prefix_indices = matched.device_indices
        req.kv.cache_protected_len = req.kv.kv_committed_len = req.kv.kv_allocated_len = hit
        tree.rows.write((rows[0], slice(0, hit)), matched.device_indices)
        if isinstance(tree, AnyHybridTree) and hit == 0:
            assert req.kv.mamba_pool_idx is not None
            tree.states.clear_slots(req.kv.mamba_pool_idx)
        self.requests.append(req)
        return True

    def compute(self, req: TreeReq, count: int) -> bool:
        """Extend a request by ``count`` tokens of its prompt, then of its output."""
        tree, begin = self.tree, req.kv.kv_allocated_len
        end = begin + count
        while len(req.fill_ids) < end:
            req.output_ids.append(50 + len(req.output_ids))
        if end > tree.rows.max_context_len:
            return False
        self.make_kv_room(count + tree.kv.page_size)
        row = req.kv.req_pool_idx
        assert row is not None
        last = int(tree.rows.req_to_token[row, begin - 1]) if begin else -1
        fresh = tree.kv.alloc_extend([begin], [end], [last], count)
        if fresh is None:
            return False
        tree.rows.write((row, slice(begin, end)), fresh)
        for position, idx in enumerate(fresh.tolist(), start=begin):
            self._kv[idx] = self.name(req.fill_ids[: position + 1])
        req.kv.kv_allocated_len = req.kv.kv_committed_len = end
        if isinstance(tree, AnyHybridTree):
            assert req.kv.mamba_pool_idx is not None
            self.set_state(req.kv.mamba_pool_idx, req.fill_ids[:end])
            self._save_state(tree, req, begin)
        return True

    def _save_state(self, tree: AnyHybridTree, req: TreeReq, begin: int) -> None:
        """If states are tracked, save the one at the last multiple of the grid just passed."""
        if tree.buffers is None:
            return
        aligned = req.kv.kv_committed_len // tree.buffers.grid * tree.buffers.grid
        slot = tree.rows.take_track_slot(req) if aligned > begin else None
        if slot is not None:
            self.set_state(slot, req.fill_ids[:aligned])
            tree.rows.complete_track(req, aligned)

    def share(self, req: TreeReq, chunked: bool) -> None:
        """Share a request's KV with the tree, as between two chunks."""
        self.tree.cache.cache_unfinished_req(req, chunked=chunked)
        assert len(req.kv.prefix_indices) == req.kv.kv_committed_len

    def finish(self, req: TreeReq, is_insert: bool) -> None:
        """Finish a request, or drop it without an insert."""
        self.requests.remove(req)
        self.tree.cache.cache_finished_req(req, is_insert=is_insert)
        assert req.kv.mamba_pool_idx is None
        assert req.kv.mamba_ping_pong_track_buffer is None
        self.tree.rows.free(req)

    def set_state(self, slot: int, prefix: Sequence[int]) -> None:
        assert isinstance(self.tree, AnyHybridTree)
        self.tree.states.mamba_cache.temporal[:, slot] = float(self.name(prefix))

    def state(self, slot: int) -> int:
        assert isinstance(self.tree, AnyHybridTree)
        return int(self.tree.states.mamba_cache.temporal[0, slot, 0, 0, 0])

    def lockable(self) -> list[TreeNode]:
        """Return the nodes at which a match can end, sorted by prefix."""
        return [node for _, node in sorted(prefixes(self.tree.cache).items())]

    def lock(self, node: TreeNode) -> None:
        """Lock a node without a request."""
        self.locked.append((node, self.tree.cache.inc_lock_ref(node).to_dec_params()))

    def unlock(self, number: int) -> None:
        self.tree.cache.dec_lock_ref(*self.locked.pop(number))

    def make_kv_room(self, need: int) -> None:
        short = need - self.tree.kv.available_size()
        if short > 0:
            self.tree.cache.evict(EvictParams(num_tokens=short))

    def make_state_room(self, need: int) -> None:
        assert isinstance(self.tree, AnyHybridTree)
        short = need - self.tree.mamba.available_size()
        if short > 0:
            self.tree.cache.evict(EvictParams(mamba_num=short))

    def evict(self, params: EvictParams) -> EvictResult:
        """Evict, and compare the victims with a naive model that scans the whole tree."""
        expected, result = self._naive(params)

        evicted = self.tree.cache.evict(params)

        left = {prefix: view.part.is_there for prefix, view in self._views().items()}
        assert left == expected
        assert evicted == result
        return evicted

    def check_laws(self) -> None:
        """Check holders' records against the ledgers, and every readable number."""
        tree = self.tree
        tree.cache.sanity_check()
        events = tree.cache.events
        counted = events.evict_leaf + events.evict_cascade + events.host_evictions
        assert events.nodes_removed == counted
        held = tree.cache.tree_slots()
        own = [idx for req in self.requests for idx in self._own_pages(req)]
        free = [*tree.kv.free_pages.tolist(), *tree.kv.release_pages.tolist()]
        in_tree = sorted({idx // tree.kv.page_size for idx in held.kv_indices.tolist()})
        assert len(held.kv_indices) == len(in_tree) * tree.kv.page_size
        loading = self.loading_pages()
        assert sorted([*own, *in_tree, *free, *loading]) == list(range(1, tree.kv.num_pages + 1))
        for owner, pages in ((REQ, own), (TREE, in_tree), (FREE, free), (HOST, loading)):
            booked = {idx // tree.kv.page_size for idx in tree.kv.slots_of(owner).tolist()}
            assert booked == set(pages)
        self._check_contents()
        if isinstance(tree, AnyHybridTree):
            self._check_states(tree, held.mamba_slots)

    def _own_pages(self, req: TreeReq) -> set[int]:
        assert req.kv.req_pool_idx is not None
        row = self.tree.rows.req_to_token[req.kv.req_pool_idx]
        own: list[int] = row[req.kv.cache_protected_len : req.kv.kv_allocated_len].tolist()
        return {idx // self.tree.kv.page_size for idx in own}

    def _check_contents(self) -> None:
        for req in self.requests:
            assert req.kv.req_pool_idx is not None
            row = self.tree.rows.req_to_token[req.kv.req_pool_idx]
            for position in range(req.kv.kv_committed_len):
                prefix = req.fill_ids[: position + 1]
                assert self._kv[row[position]] == self.name(prefix)
        for path, node in prefixes(self.tree.cache).items():
            start = len(path) - len(node.value)
            for offset, idx in enumerate(node.value.tolist(), start=1):
                assert self._kv[idx] == self.name(path[: start + offset])

    def _check_states(self, tree: AnyHybridTree, in_tree: list[int]) -> None:
        own = [req.kv.mamba_pool_idx for req in self.requests if req.kv.mamba_pool_idx is not None]
        assert len(own) == len(self.requests)
        free = list(tree.mamba.free_slots)
        buffers = [req.kv.mamba_ping_pong_track_buffer or [] for req in self.requests]
        saved = [slot for buffer in buffers for slot in buffer if slot != NOT_TAKEN]
        loading = self.loading_states()
        everywhere = [*own, *saved, *in_tree, *free, *loading]
        assert sorted(everywhere) == list(range(1, tree.mamba.size + 1))
        held = ((REQ, own), (TRACK, saved), (TREE, in_tree), (FREE, free), (HOST, loading))
        for owner, slots in held:
            assert tree.mamba.slots_of(owner) == sorted(slots)
        for req in self.requests:
            assert req.kv.mamba_pool_idx is not None
            expected = self.name(req.fill_ids[: req.kv.kv_committed_len])
            assert self.state(req.kv.mamba_pool_idx) == (expected if req.kv.kv_committed_len else 0)
            if req.kv.mamba_last_track_seqlen is not None:
                assert req.kv.mamba_ping_pong_track_buffer is not None
                keep = tree.rows.get_mamba_ping_pong_keep_idx(req)
                kept = self.state(req.kv.mamba_ping_pong_track_buffer[keep])
                assert kept == self.name(req.fill_ids[: req.kv.mamba_last_track_seqlen])
        for path, node in prefixes(tree.cache).items():
            if node.mamba_value is not None:
                assert self.state(node.mamba_value) == self.name(path)

    def _naive(self, params: EvictParams) -> tuple[dict[tuple[int, ...], bool], EvictResult]:
        """Return the nodes left (and whether with their part), by scanning for each victim."""
        ages_apart = not isinstance(self.tree, AnyPagedTree)
        # In a unified tree, a tombstone that lost its last child stays until its KV is evicted.
        cascades = isinstance(self.tree, HybridTree | WindowTree)
        views = self._views()
        tokens = parts = 0

        def remove(path: tuple[int, ...]) -> None:
            nonlocal tokens, parts
            view = views.pop(path)
            tokens += view.tokens
            parts += view.part.size if view.part.is_there else 0
            parent = views.get(view.parent)
            if parent is None:
                return
            parent.children -= 1
            if cascades and not (parent.children or parent.part.is_there or parent.full_locks):
                remove(view.parent)

        while tokens < params.num_tokens:
            leaves = [p for p, v in views.items() if not v.children and not v.full_locks]
            if not leaves:
                break
            remove(min(leaves, key=lambda path: views[path].time))
        while ages_apart and parts < self._parts_wanted(params):
            unlocked = [p for p, v in views.items() if v.part.is_there and not v.part.locks]
            if not unlocked:
                break
            path = min(unlocked, key=lambda path: views[path].part.time)
            if views[path].children or views[path].full_locks:
                views[path].part.is_there = False
                parts += views[path].part.size
            else:
                remove(path)
        return {p: v.part.is_there for p, v in views.items()}, self._result(tokens, parts)

    def _parts_wanted(self, params: EvictParams) -> int:
        return params.mamba_num

    def _result(self, tokens: int, parts: int) -> EvictResult:
        return EvictResult(tokens, parts)

    def _views(self) -> dict[tuple[int, ...], NodeView]:
        return {
            path: NodeView(
                time=node.last_access_time,
                tokens=len(node.value),
                children=len(node.children),
                parent=path[: len(path) - len(node.value)],
                full_locks=node.full_lock_ref,
                part=self._part(node),
            )
            for path, node in prefixes(self.tree.cache).items()
        }

    def _part(self, node: TreeNode) -> Part:
        return Part(node.mamba_value is not None, 1, node.mamba_lock_ref, node.state_access_time)
