"""The world of tree_world.py around a tree with a host tier.

The numbers that positions and states hold are in real pools, and transfers copy between these.  KV
that was loaded too early, from the wrong place or not at all is detected as a wrong number, and so
is a host copy that does not belong to its node's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridbench.engine.cache.base import EvictParams, EvictResult
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.owners import FREE, HOST, TREE
from tests.laws.tree_world import TreeWorld
from tests.laws.window_world import WindowWorld
from tests.unit.engine.cache.host_trees import (
    HostHybridTree,
    HostTree,
    HostWindowTree,
)
from tests.unit.engine.cache.trees import prefixes


class HostWorld(TreeWorld):
    """Requests over a tree with a host tier, transfers, and the laws of both sides."""

    tree: HostTree

    def __init__(self, tree: HostTree) -> None:
        super().__init__(tree)
        self.tree = tree

    def _kv_numbers(self) -> NDArray[Any]:
        pool = self.tree.kv.get_kvcache()
        assert isinstance(pool, HybridLinearKVPool)
        return numbers_in(pool.full_kv_pool.k_buffer[0])

    def loading_pages(self) -> list[int]:
        ongoing = self.tree.cache.cache_controller.ongoing()
        loads = [transfer.device_indices for transfer in ongoing if transfer.is_load]
        return sorted({idx // self.tree.kv.page_size for load in loads for idx in load.tolist()})

    def loading_states(self) -> list[int]:
        return self.in_flight("host_mamba", is_load=True)

    def in_flight(self, name: str, *, is_load: bool) -> list[int]:
        """Return the slots of the part ``name`` that ongoing transfers are going to fill."""
        cache = self.tree.cache
        pools = [part.pool for part in cache.host_parts if part.name == name]
        return [
            s for pool in pools for s in cache.cache_controller.in_flight(pool, is_load=is_load)
        ]

    def poll(self) -> None:
        self.tree.cache.check_hicache_events()

    def load_back(self, node: TreeNode) -> bool | None:
        """Load what a match at ``node`` needs; None if it needs nothing or is loading."""
        if node not in self.loadable() or self.tree.cache.is_loading(node):
            return None
        return self.tree.cache.load_back(node)

    def load_back_now(self, node: TreeNode) -> None:
        """Call ``load_back`` and wait; unless a load fails, nothing is missing then."""
        controller = self.tree.cache.cache_controller
        failures = controller.failures
        if not self.load_back(node):
            return
        while len(controller):
            self.poll()
        if controller.failures == failures:
            assert node not in self.loadable()

    def loadable(self) -> list[TreeNode]:
        """Return the nodes where a match ends that needs a load from the host."""
        nodes = prefixes(self.tree.cache)
        ends = [(p, self._naive_end(p, on_host=False), self._naive_end(p, on_host=True))
                for p in sorted(nodes)]  # fmt: skip
        return [nodes[path] for path, device, both in ends if device < both == len(path)]

    def evict_host(self, num_tokens: int) -> int:
        return self.tree.cache.evict_host(num_tokens)

    def evict_host_part(self, slots: int) -> int:
        """Evict slots of the first host part, if there is one."""
        cache = self.tree.cache
        return cache.evict_host_part(cache.host_parts[0], slots) if cache.host_parts else 0

    def evict(self, params: EvictParams) -> EvictResult:
        """Evict without a naive model, as the victims depend on what has been written."""
        return self.tree.cache.evict(params)

    def lockable(self) -> list[TreeNode]:
        return [node for node in super().lockable() if not node.evicted]

    def match_is_longest(self, ids: list[int]) -> None:
        """Check both lengths of a match against a naive walk over all prefixes."""
        found = self.tree.match(ids)
        device, both = (self._naive_end(tuple(ids), on_host=on_host) for on_host in (False, True))
        assert found.prefix_len == device
        assert found.prefix_len + found.host_hit_length == both

    def _naive_end(self, ids: tuple[int, ...], *, on_host: bool) -> int:
        """Return the longest prefix of ``ids`` that can be served, with or without the host."""
        nodes = prefixes(self.tree.cache)
        ends = [p for p in nodes if ids[: len(p)] == p and self._serves(p, nodes, on_host)]
        return max(map(len, ends), default=0)

    def _serves(
        self, path: tuple[int, ...], nodes: dict[tuple[int, ...], TreeNode], on_host: bool
    ) -> bool:
        node = nodes[path]
        if node.evicted and not on_host:
            return False
        if isinstance(self.tree, HostHybridTree):
            return node.mamba_value is not None or (on_host and node.mamba_host_value is not None)
        return True

    def check_laws(self) -> None:
        super().check_laws()
        tree, cache = self.tree, self.tree.cache
        nodes = prefixes(cache)
        held = cache.tree_slots()
        writes = [t.host_indices for t in cache.cache_controller.ongoing() if not t.is_load]
        writing = [idx for write in writes for idx in write.tolist()]
        account(tree.host.allocator, held.host_indices.tolist(), writing)
        names = numbers_in(tree.host.rows.k_buffer[0])
        for path, node in nodes.items():
            if node.host_value is not None:
                self._check_host_numbers(names, path, node.host_value)
        if isinstance(tree, HostHybridTree):
            writing = self.in_flight("host_mamba", is_load=False)
            account(tree.host_states.allocator, held.host_slots["host_mamba"], writing)
            states = tree.host_states.states.mamba_cache.temporal
            for path, node in nodes.items():
                if node.mamba_host_value is not None:
                    assert int(states[0, node.mamba_host_value, 0, 0, 0]) == self.name(path)

    def _check_host_numbers(
        self, names: NDArray[Any], path: tuple[int, ...], slots: NDArray[np.int64]
    ) -> None:
        start = len(path) - len(slots)
        for offset, idx in enumerate(slots.tolist(), start=1):
            assert names[idx] == self.name(path[: start + offset])

    def is_over(self) -> bool:
        """Let all transfers end; return whether nothing is protected."""
        while len(self.tree.cache.cache_controller):
            self.poll()
        cache = self.tree.cache
        protected = [cache.host_protected_size(), *(p.protected_size() for p in cache.host_parts)]
        return not any(protected)


class HostWindowWorld(HostWorld, WindowWorld):
    """A ``HostWorld`` with a window pool on device and host."""

    tree: HostWindowTree

    def _swa_numbers(self) -> NDArray[Any]:
        return numbers_in(self.tree.pool.swa_kv_pool.k_buffer[0])

    def loading_windows(self) -> set[int]:
        return {idx // self.tree.kv.page_size for idx in self.in_flight("host_swa", is_load=True)}

    def _serves(
        self, path: tuple[int, ...], nodes: dict[tuple[int, ...], TreeNode], on_host: bool
    ) -> bool:
        wanted = min(len(path), self.tree.window - 1)
        if nodes[path].evicted and not on_host:
            return False
        while wanted > 0:
            node = nodes[path]
            if node.swa_tombstone and not (on_host and node.swa_host_value is not None):
                return False
            wanted -= len(node.key)
            path = path[: len(path) - len(node.key)]
        return True

    def lockable(self) -> list[TreeNode]:
        nodes = prefixes(self.tree.cache)
        return [node for path, node in sorted(nodes.items()) if self._serves(path, nodes, False)]

    def check_laws(self) -> None:
        super().check_laws()
        held = self.tree.cache.tree_slots().host_slots["host_swa"]
        writing = self.in_flight("host_swa", is_load=False)
        account(self.tree.host_windows.allocator, held, writing)
        names = numbers_in(self.tree.host_windows.rows.k_buffer[0])
        for path, node in prefixes(self.tree.cache).items():
            if node.swa_host_value is not None:
                self._check_host_numbers(names, path, node.swa_host_value)


def make_world(tree: HostTree) -> HostWorld:
    return HostWindowWorld(tree) if isinstance(tree, HostWindowTree) else HostWorld(tree)


def numbers_in(buffer: Any) -> NDArray[Any]:
    """Return a view of the first number in each row of a layer."""
    view: NDArray[Any] = buffer.view(buffer.shape[0], -1)[:, 0].numpy()
    return view


def account(allocator: Any, held: Sequence[int], writing: Sequence[int]) -> None:
    """Check a host allocator's ledger against the slots of nodes and of transfers."""
    assert sorted(allocator.slots_of(TREE)) == sorted(held)
    assert sorted(allocator.slots_of(HOST)) == sorted(writing)
    assert allocator.held(FREE) == allocator.size - len(held) - len(writing)
