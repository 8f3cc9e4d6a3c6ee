"""How a hybrid tree gives memory back: KV leaf by leaf, states one by one.

Evicting KV takes the oldest unlocked leaf with its state.  Evicting a state takes the oldest
unlocked state anywhere: inside the tree the node stays as a tombstone, a leaf goes as a whole.
Which is the oldest, the LRU lists say, and nothing else.
After a leaf, tombstones above it that have no child left go too, since nothing can hit them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hybridbench.engine.cache.base import (
    CacheInitParams,
    CacheSanityError,
    EvictParams,
    EvictResult,
)
from hybridbench.engine.cache.lru import LIST_ENDS, FullLRUList, MambaLRUList
from hybridbench.engine.cache.tree import PrefixTree
from hybridbench.engine.cache.tree_node import TreeNode, empty_root
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import TREE
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool


class MambaTreeEviction(PrefixTree):
    """The part of a hybrid tree that evicts its nodes, in the order of the two LRU lists.

    Attributes:
        full_lru_list: all nodes but the root; mamba_lru_list: those with a state.
        mamba_evictable_size_, mamba_protected_size_: states without and with a lock.
    """

    def __init__(self, params: CacheInitParams) -> None:
        super().__init__(params)
        rows = params.req_to_token_pool
        if not isinstance(rows, HybridReqToTokenPool):
            raise TypeError(
                f"a hybrid tree needs a HybridReqToTokenPool, not {type(rows).__name__}"
            )
        if params.eviction_policy != "lru":
            raise ValueError(f"a hybrid tree evicts by lru only, not {params.eviction_policy!r}")
        self._refresh_path = params.state_refresh == "path"
        self._hybrid_rows = rows
        self.mamba_pool = rows.mamba_pool
        self.mamba_allocator = rows.mamba_allocator
        self._start_order()

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
        """Free at least ``num_tokens`` KV tokens, then what is still missing of ``mamba_num``."""
        self.events.evict_calls += 1
        tokens, states = self.evict_full(params.num_tokens)
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

    def _oldest_leaves(self) -> Iterator[TreeNode]:
        """Leaves without a lock, oldest first; each is to be evicted before the next is asked for.

        Finding one costs the same however many there are.
        """
        while (leaf := self.full_lru_list.get_leaf_lru_no_lock()) is not None:
            yield leaf

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
        _check_same({n.id for n in nodes}, {n.id for n in self.full_lru_list}, "full list")
        with_state = {node.id for node in nodes if node.mamba_value is not None}
        _check_same(with_state, {n.id for n in self.mamba_lru_list}, "mamba list")
        leaves = {node.id for node in nodes if not node.children and node.full_lock_ref == 0}
        _check_same(leaves, {n.id for n in self.full_lru_list.evictable()}, "evictable leaves")
        unlocked = {n.id for n in nodes if n.mamba_value is not None and n.mamba_lock_ref == 0}
        _check_same(unlocked, {n.id for n in self.mamba_lru_list.evictable()}, "evictable states")
        for node in nodes:
            if not node.children and node.full_lock_ref == 0 and node.mamba_value is None:
                raise CacheSanityError("a leaf without a state", [node.id])
            if node.mamba_value is None and node.mamba_lock_ref:
                raise CacheSanityError("a lock on a state that is gone", [node.id])
        counted = (self.mamba_evictable_size_, self.mamba_protected_size_)
        if counted != (len(unlocked), len(with_state) - len(unlocked)):
            raise CacheSanityError(
                f"{len(unlocked)} states of {len(with_state)} are unlocked, counted are "
                f"{counted[0]} evictable and {counted[1]} protected"
            )

    def _evict_leaf(self, leaf: TreeNode, freed: list[IntArray]) -> int:
        """Evict an unlocked leaf and the childless tombstones above it; the tokens they held."""
        self.events.evict_leaf += 1
        tokens = len(leaf.value)
        if leaf.mamba_value is not None:
            self._free_state(leaf)
        parent = self._remove_leaf(leaf, freed)
        return tokens + self._evict_cascade(parent, freed)

    def _evict_cascade(self, node: TreeNode, freed: list[IntArray]) -> int:
        """Evict ``node`` and its parents as long as they are childless, unlocked tombstones."""
        tokens = 0
        while not node.children and node.full_lock_ref == 0 and node is not self.root_node:
            if node.mamba_value is not None:
                self.full_lru_list.release(node)
                break
            self.events.evict_cascade += 1
            tokens += len(node.value)
            node = self._remove_leaf(node, freed)
        return tokens

    def _evict_internal_state(self, node: TreeNode) -> None:
        """Make a tombstone: the state goes, the KV stays for the longer prefixes."""
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
        """Take an unlocked leaf without a state out of everything; its parent."""
        freed.append(leaf.value)
        self.full_evictable_size_ -= len(leaf.value)
        self.full_lru_list.remove_node(leaf)
        return self._unlink_from_parent(leaf)

    def _became_evictable_leaf(self, node: TreeNode) -> None:
        """A leaf lost its last lock; without a state nothing can hit it, and it goes at once."""
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
        # Those above the last have children.
        self.full_lru_list.reset_path_mru(path[-1:])
        self._refresh_states(path)

    def _refresh_states(self, path: list[TreeNode]) -> None:
        """Make the states a hit has used the youngest: all on its path, or only the last."""
        self._make_states_youngest(path if self._refresh_path else path[-1:])

    def _make_states_youngest(self, path: list[TreeNode]) -> None:
        for node in path:
            if node.mamba_value is not None:
                node.state_access_time = node.last_access_time
        self.mamba_lru_list.reset_path_mru(path)

    def _after_split(self, upper: TreeNode, lower: TreeNode) -> None:
        """The upper half is a tombstone; the lower is touched to stay the younger of the two."""
        self.events.tombstones += 1
        self.full_lru_list.insert_mru(upper)
        self.full_lru_list.hold(upper)
        lower.last_access_time = self._tick()
        self.full_lru_list.reset_path_mru([lower])
        self._make_states_youngest([lower])

    def _start_order(self) -> None:
        self.full_lru_list = FullLRUList()
        self.mamba_lru_list = MambaLRUList()
        self.mamba_evictable_size_ = 0
        self.mamba_protected_size_ = 0


def _check_same(walked: set[int], listed: set[int], name: str) -> None:
    if walked != listed:
        raise CacheSanityError(f"{name}: not what the tree says", sorted(walked ^ listed))
