"""A world of requests around one prefix tree with sliding windows: numbers in two pools."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridbench.engine.cache.base import EvictParams, EvictResult
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import FREE, HOST, REQ, TREE
from tests.laws.tree_world import Part, TreeWorld
from tests.unit.engine.cache.trees import AnyWindowTree, TreeReq, WindowTree, prefixes


class WindowWorld(TreeWorld):
    """Each position's number is in both pools, as long as the window pool holds the position."""

    tree: AnyWindowTree

    def __init__(self, tree: AnyWindowTree) -> None:
        super().__init__(tree)
        self._swa = self._swa_numbers()

    def _swa_numbers(self) -> NDArray[Any]:
        """Return ``_kv_numbers`` for the window pool."""
        kv = self.tree.kv
        return np.zeros(kv.swa_attn_allocator.size + kv.page_size, dtype=np.int64)

    def loading_windows(self) -> set[int]:
        """Return the pages of the window pool that are being filled from the host."""
        return set()

    def compute(self, req: TreeReq, count: int) -> bool:
        begin = req.kv.kv_allocated_len
        if not super().compute(req, count):
            return False
        rows = self.swa_row(req)[begin : begin + count].tolist()
        for position, idx in enumerate(rows, start=begin):
            self._swa[idx] = self.name(req.fill_ids[: position + 1])
        return True

    def swa_row(self, req: TreeReq) -> IntArray:
        """Return the window pool's index of each position of a request."""
        assert req.kv.req_pool_idx is not None
        row = self.tree.rows.req_to_token[req.kv.req_pool_idx, : req.kv.kv_allocated_len]
        return self.tree.kv.translate_loc_from_full_to_swa(row.astype(np.int64))

    def leave_behind(self, req: TreeReq, end: int) -> None:
        """Free the window part of positions before ``end``, which will not be read again."""
        page_size = self.tree.kv.page_size
        end = min(end, req.kv.kv_committed_len - self.tree.window - page_size + 1)
        end = max(0, end // page_size * page_size)
        start = max(req.kv.swa_evicted_seqlen, req.kv.cache_protected_len)
        assert req.kv.req_pool_idx is not None
        row = self.tree.rows.req_to_token[req.kv.req_pool_idx]
        self.tree.kv.free_swa(row[start:end].astype(np.int64))
        req.kv.swa_evicted_seqlen = max(req.kv.swa_evicted_seqlen, end)
        if end >= req.kv.cache_protected_len and req.kv.last_node and req.kv.lock_receipt:
            req.kv.lock_receipt = self.tree.cache.dec_swa_lock_only(
                req.kv.last_node, req.kv.lock_receipt
            )

    def lockable(self) -> list[TreeNode]:
        """Return the nodes whose last window, or whole shorter prefix, is in the window pool."""
        nodes = prefixes(self.tree.cache)
        return [node for path, node in sorted(nodes.items()) if self._is_usable(path, nodes)]

    def _is_usable(self, path: tuple[int, ...], nodes: dict[tuple[int, ...], TreeNode]) -> bool:
        wanted = min(len(path), self.tree.window - 1)
        while wanted > 0:
            node = nodes[path]
            if node.swa_tombstone:
                return False
            wanted -= len(node.value)
            path = path[: len(path) - len(node.value)]
        return True

    def match_is_longest(self, ids: list[int]) -> None:
        """Check a match against a naive walk over all prefixes, in whole pages."""
        found = self.tree.match(ids).prefix_len
        nodes = prefixes(self.tree.cache)
        usable = [p for p in nodes if tuple(ids[: len(p)]) == p and self._is_usable(p, nodes)]
        assert found == max(map(len, usable), default=0)

    def make_kv_room(self, need: int) -> None:
        kv = self.tree.kv
        self.tree.cache.evict(
            EvictParams(
                num_tokens=max(0, need - kv.full_available_size()),
                swa_num_tokens=max(0, need - kv.swa_available_size()),
            )
        )

    def check_laws(self) -> None:
        super().check_laws()
        swa = self.tree.kv.swa_attn_allocator
        own: set[int] = set()
        for req in self.requests:
            row = self.swa_row(req)
            own_from = max(req.kv.swa_evicted_seqlen, req.kv.cache_protected_len)
            own |= {idx // swa.page_size for idx in row[own_from:]}
            # The positions that the next token reads, whether the request or the tree holds them.
            first = max(0, req.kv.kv_committed_len - self.tree.window + 1)
            for position in range(first, req.kv.kv_committed_len):
                assert self._swa[row[position]] == self.name(req.fill_ids[: position + 1])
        in_tree = {idx // swa.page_size for idx in self.tree.cache.tree_slots().swa_indices}
        free = {*swa.free_pages.tolist(), *swa.release_pages.tolist()}
        loading = self.loading_windows()
        for owner, pages in ((REQ, own), (TREE, in_tree), (FREE, free), (HOST, loading)):
            assert {idx // swa.page_size for idx in swa.slots_of(owner).tolist()} == pages
        assert len(own) + len(in_tree) + len(free) + len(loading) == swa.num_pages
        for path, node in prefixes(self.tree.cache).items():
            start = len(path) - len(node.value)
            rows = self.tree.kv.translate_loc_from_full_to_swa(node.value).tolist()
            for offset, idx in enumerate(rows, start=1):
                inside = idx >= swa.page_size
                assert inside != node.swa_tombstone
                assert not inside or self._swa[idx] == self.name(path[: start + offset])

    def _parts_wanted(self, params: EvictParams) -> int:
        return params.swa_num_tokens

    def _result(self, tokens: int, parts: int) -> EvictResult:
        return EvictResult(tokens, swa_num_tokens_evicted=parts)

    def _part(self, node: TreeNode) -> Part:
        apart = not isinstance(self.tree, WindowTree)
        time = node.swa_access_time if apart else node.last_access_time
        return Part(not node.swa_tombstone, len(node.value), node.swa_lock_ref, time)
