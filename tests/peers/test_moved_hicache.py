"""SGLang's tests of the host tier, run on the unified tree and on the dedicated ones.

One suite over every combination of components; theirs omits windows in tests with real copies.
Tests of several ranks and of a node's internals are left out (docs/reference/sglang-shim.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
import torch

from hybridbench.engine.cache.host_part import HostPart, HostStates
from hybridbench.engine.cache.host_tier import HostTier
from hybridbench.engine.cache.host_window import HostWindows
from hybridbench.engine.cache.storage_tier import StorageRules
from hybridbench.engine.memory.extra_pools import StatePool, WindowPool
from hybridbench.engine.memory.hicache_controller import HiCacheController
from hybridbench.engine.memory.hicache_storage import HiCacheMemory
from hybridbench.engine.memory.host_pool import MambaPoolHost, MHATokenToKVPoolHost
from hybridbench.engine.memory.storage_controller import StorageController
from tests.host_transfers import ChosenStorageIO, ChosenTransfers
from tests.peers.shim import (
    CacheInitParams,
    EvictParams,
    HiMambaRadixCache,
    HiRadixCache,
    HiUnifiedRadixCache,
    HybridLinearKVPool,
    HybridReqToTokenPool,
    InsertParams,
    Mamba2CacheParams,
    Mamba2StateDType,
    Mamba2StateShape,
    MatchPrefixParams,
    PagedTokenToKVPoolAllocator,
    RadixKey,
    ReqToTokenPool,
    SWAKVPool,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
    TreeNode,
)

Tree: TypeAlias = HiRadixCache | HiMambaRadixCache | HiUnifiedRadixCache


@dataclass(frozen=True)
class Config:
    """The components of a tree besides full KV, and its kind."""

    page_size: int = 1
    states: bool = False
    windows: bool = False
    unified: bool = True


CONFIGS = {
    "full": Config(),
    "full, pages of 4": Config(4),
    "full, pages of 64": Config(64),
    "states": Config(states=True),
    "windows": Config(windows=True),
    "windows, pages of 4": Config(4, windows=True),
    "windows and states": Config(states=True, windows=True),
    "HiRadixCache, pages of 4": Config(4, unified=False),
    "HiMambaRadixCache": Config(states=True, unified=False),
}
EVERY = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
PARTS = pytest.mark.parametrize("config", [c for c in CONFIGS.values() if c.states or c.windows])
STATES = pytest.mark.parametrize("config", [c for c in CONFIGS.values() if c.states])
WINDOWS = pytest.mark.parametrize(
    "config", [c for c in CONFIGS.values() if c.windows and not c.states]
)


class World:
    """A tree with a host tier over real pools that copies only on request."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.page_size = config.page_size
        size = 64 * self.page_size
        sizes: dict[str, Any] = {"dtype": torch.float32, "device": "cpu", "need_sort": False}
        self.rows = self._hybrid_rows() if config.states else ReqToTokenPool(4, 128, "cpu", False)
        states = self.rows.mamba_pool if isinstance(self.rows, HybridReqToTokenPool) else None
        self.pool: Any
        self.kv: Any
        if config.windows:
            self.pool = SWAKVPool(size, size, self.page_size, torch.float32, 1, 2, [1], [0], "cpu")
            self.kv = SWATokenToKVPoolAllocator(
                size=size, size_swa=size, page_size=self.page_size, kvcache=self.pool, **sizes
            )
        else:
            self.pool = HybridLinearKVPool(
                size, torch.float32, self.page_size, 1, 2, [0], "cpu", states
            )
            paged = {} if self.page_size == 1 else {"page_size": self.page_size}
            allocator: Any = PagedTokenToKVPoolAllocator if paged else TokenToKVPoolAllocator
            self.kv = allocator(size=size, kvcache=self.pool, **paged, **sizes)
        self.window = 4 * self.page_size
        self.host = MHATokenToKVPoolHost(self.pool, size)
        self.tree = self._build_tree(size)

    def _hybrid_rows(self) -> HybridReqToTokenPool:
        shape = Mamba2StateShape.create(
            tp_world_size=1, intermediate_size=16, n_groups=1, num_heads=2, head_dim=8,
            state_size=4, conv_kernel=4,
        )  # fmt: skip
        dtype = Mamba2StateDType(conv=torch.float32, temporal=torch.float32)
        return HybridReqToTokenPool(
            size=4, mamba_size=16, mamba_spec_state_size=4, max_context_len=128, device="cpu",
            enable_memory_saver=False, mamba_layer_ids=[0, 1],
            cache_params=Mamba2CacheParams(shape=shape, layers=[0, 1], dtype=dtype),
            enable_mamba_extra_buffer=False, speculative_num_draft_tokens=3,
        )  # fmt: skip

    def _build_tree(self, size: int) -> Tree:
        params = CacheInitParams(
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.kv,
            page_size=self.page_size,
            sliding_window_size=self.window,
        )
        controller = HiCacheController(self.kv, self.host, ChosenTransfers())
        parts: list[HostPart] = []
        states: HostStates | None = None
        if self.config.windows:
            host = MHATokenToKVPoolHost(self.pool.swa_kv_pool, size)
            parts.append(HostWindows(WindowPool(self.kv, host), self.window))
        if isinstance(self.rows, HybridReqToTokenPool):
            pool = self.rows.mamba_pool
            host_states = MambaPoolHost(pool, 16)
            states = HostStates(StatePool(self.rows.mamba_allocator, pool, host_states))
            parts.append(states)
        if self.config.unified:
            return HiUnifiedRadixCache(params, controller, parts)
        if states is not None:
            return HiMambaRadixCache(params, controller, states)
        return self._full_tree(params, controller)

    def _full_tree(self, params: CacheInitParams, controller: HiCacheController) -> HiRadixCache:
        return HiRadixCache(params, controller)

    @property
    def pages_of_a_window(self) -> int:
        """Pages of window that a match needs before its end; the window includes the next token."""
        return -(-(self.window - 1) // self.page_size)

    def pages(self, start: int, count: int) -> list[int]:
        """Return the tokens of ``count`` whole pages."""
        return list(range(start, start + count * self.page_size))

    def insert(self, ids: list[int]) -> TreeNode:
        """Insert new KV, and a state if the tree has states; return the node where ``ids`` end."""
        params = InsertParams(RadixKey(ids), self.kv.alloc(len(ids)))
        if isinstance(self.rows, HybridReqToTokenPool):
            params.mamba_value = self.rows.mamba_allocator.alloc(1)
        self.tree.insert(params)
        return self.node(ids)

    def node(self, ids: list[int]) -> TreeNode:
        """Return the node where a match ends, on device or host."""
        found = self.tree.match_prefix(MatchPrefixParams(key=RadixKey(ids)))
        assert found.last_host_node is not self.tree.root_node
        return found.last_host_node

    def hits(self, ids: list[int]) -> tuple[int, int]:
        """Return the numbers of tokens that hit on the device, and beyond them on the host."""
        found = self.tree.match_prefix(MatchPrefixParams(key=RadixKey(ids)))
        return len(found.device_indices), found.host_hit_length

    def backup(self, *nodes: TreeNode) -> None:
        for node in nodes:
            assert self.tree.write_backup(node, write_back=True) > 0
            self.tree.writing_check(write_back=True)

    def load_back(self, node: TreeNode) -> None:
        assert self.tree.load_back(node)
        self.tree.loading_check(wait=True)

    def evict(self, tokens: int, states: int = 0, windows: int = 0) -> int:
        return self.tree.evict(EvictParams(tokens, states, windows)).num_tokens_evicted

    def content(self, node: TreeNode) -> list[list[float]]:
        """Return a node's device contents: full-attention KV, window KV and state."""
        found = [self.pool.full_kv_pool.k_buffer[0][node.value]]
        if self.config.windows:
            swa = self.kv.translate_loc_from_full_to_swa(node.value)
            found.append(self.pool.swa_kv_pool.v_buffer[0][swa])
        if isinstance(self.rows, HybridReqToTokenPool):
            assert node.mamba_value is not None
            cache = self.rows.mamba_pool.mamba_cache
            found += [cache.temporal[:, node.mamba_value], cache.conv[0][:, node.mamba_value]]
        return [part.flatten().tolist() for part in found]

    def fill(self, marker: float) -> None:
        """Overwrite everything on the device, with a different number for each row."""
        pools = [self.pool.full_kv_pool] + ([self.pool.swa_kv_pool] if self.config.windows else [])
        for pool in pools:
            for buffer in (*pool.k_buffer, *pool.v_buffer):
                buffer[:] = marker + torch.arange(len(buffer), dtype=torch.float32)[:, None, None]
        if isinstance(self.rows, HybridReqToTokenPool):
            cache = self.rows.mamba_pool.mamba_cache
            for state in (cache.temporal, *cache.conv):
                state[:] = marker + torch.arange(state.numel()).reshape(state.shape)


def leaves(tree: Tree) -> tuple[set[int], set[int]]:
    """Return the nodes that can be evicted next on the device, and those on the host."""
    nodes = list(tree.iter_nodes())
    below = {n.id for n in nodes if not n.evicted and all(c.evicted for c in n.children.values())}
    return below, {node.id for node in tree._evictable_host_leaves}


@EVERY
def test_a_node_is_on_the_device_and_then_on_both_sides(config: Config) -> None:
    world = World(config)
    node = world.insert(world.pages(1, 5))
    assert (node.host_value, node.evicted) == (None, False)

    world.backup(node)

    assert node.host_value is not None
    assert not node.evicted
    world.tree.sanity_check()


@EVERY
def test_an_eviction_leaves_a_node_that_is_backed_up_on_the_host_alone(config: Config) -> None:
    world = World(config)
    ids = world.pages(1, 5)
    node = world.insert(ids)
    world.backup(node)

    assert world.evict(len(ids)) >= len(ids)

    assert node.evicted
    assert node.host_value is not None
    on_device, on_host = leaves(world.tree)
    assert node.id not in on_device
    assert node.id in on_host
    assert world.hits(ids) == (0, len(ids))
    world.tree.sanity_check()


@EVERY
def test_a_match_goes_through_what_is_on_either_side(config: Config) -> None:
    world = World(config)
    base = world.pages(1, 5)
    whole = base + world.pages(500, 5)
    world.backup(world.insert(base), world.insert(whole))
    leaf = world.node(whole)
    lock = world.tree.inc_lock_ref(leaf)

    world.evict(len(base))

    world.tree.dec_lock_ref(leaf, lock.to_dec_params())
    assert world.hits(whole) == (len(whole), 0)
    world.evict(len(whole) - len(base))
    assert sum(world.hits(whole)) == len(whole)
    world.tree.sanity_check()


@EVERY
def test_what_can_go_on_the_device_and_on_the_host_are_different_nodes(config: Config) -> None:
    """This also holds after a mixture of backups, evictions and inserts."""
    world = World(config)
    texts = [world.pages(1 + 100 * n * config.page_size, 5) for n in range(5)]
    nodes = [world.insert(ids) for ids in texts]
    world.backup(*nodes[:3])

    world.evict(2 * len(texts[0]))
    world.tree.sanity_check()
    for n in range(3):
        world.insert(world.pages(1 + 1000 * (n + 1) * config.page_size, 3))

    on_device, on_host = leaves(world.tree)
    assert on_device
    assert on_host == {nodes[0].id, nodes[1].id}
    assert not on_device & on_host
    world.tree.sanity_check()


@EVERY
def test_what_the_host_evicts_is_out_of_the_tree(config: Config) -> None:
    world = World(config)
    ids = world.pages(1, 5)
    world.backup(world.insert(ids))
    world.evict(len(ids))

    assert world.tree.evict_host(len(ids)) == len(ids)

    assert world.tree.node_count() == 0
    assert world.host.available_size() == world.host.size
    world.tree.sanity_check()


@EVERY
def test_a_load_restores_what_was_backed_up(config: Config) -> None:
    world = World(config)
    ids = world.pages(1, 4)
    node = world.insert(ids)
    world.fill(3)
    before = world.content(node)
    world.backup(node)
    world.evict(len(ids))
    world.fill(1000)

    world.load_back(node)

    assert not node.evicted
    assert len(world.tree.ongoing_load_back) == 0
    assert world.content(node) == before
    assert world.hits(ids) == (len(ids), 0)
    world.tree.sanity_check()


@EVERY
def test_what_is_backed_up_reaches_from_the_root_without_a_gap(config: Config) -> None:
    """Holds because ``write_through`` stops at the first node that does not fit on the host."""
    world = World(config)
    chain = world.pages(1, 8)
    for count in (2, 4, 8):
        world.insert(chain[: count * config.page_size])
    taken = world.host.alloc(60 * config.page_size)
    assert taken is not None

    HostTier._write_through(world.tree, list(world.tree.iter_nodes()))
    world.tree.writing_check(write_back=True)

    backed_up = [node for node in world.tree.iter_nodes() if node.host_value is not None]
    assert 0 < len(backed_up) < world.tree.node_count()
    for node in backed_up:
        parent = node.parent
        assert parent is world.tree.root_node or (parent and parent.host_value is not None)


@PARTS
def test_the_order_of_a_component_passes_from_the_device_to_the_host(config: Config) -> None:
    world = World(config)
    ids = world.pages(1, 5)
    node = world.insert(ids)
    parts = world.tree.host_parts
    assert all(part.on_device(node) and node not in part.queue for part in parts)
    world.backup(node)

    world.evict(len(ids))

    assert not any(part.on_device(node) for part in parts)
    assert all(node in part.queue for part in parts)
    world.tree.sanity_check()


@WINDOWS
def test_a_load_brings_the_suffix_of_windows_that_is_needed(config: Config) -> None:
    world = World(config)
    nodes = [world.insert(world.pages(1, count)) for count in range(1, 8)]
    world.backup(*nodes)
    world.evict(7 * config.page_size)
    (part,) = world.tree.host_parts

    runs = part.to_load(nodes[-1])

    needed = world.pages_of_a_window
    assert [run.node for run in runs] == nodes[-needed:]
    world.load_back(nodes[-1])
    assert [part.on_device(node) for node in nodes] == [False] * (7 - needed) + [True] * needed


@WINDOWS
def test_the_two_pools_of_the_host_are_independent(config: Config) -> None:
    world = World(config)
    ids = world.pages(1, 5)
    world.backup(world.insert(ids))
    leaf = world.insert([*ids, *world.pages(500, 5)])
    world.backup(leaf)
    world.evict(2 * len(ids))
    (part,) = world.tree.host_parts

    assert world.tree.evict_host_part(part, 1) == len(ids)

    base = leaf.parent
    assert base is not None
    assert base.host_value is not None
    assert not part.has_value(base)
    assert part.has_value(leaf)
    world.tree.sanity_check()


@WINDOWS
@pytest.mark.parametrize("inside", [True, False])
def test_a_tombstone_counts_if_it_is_inside_of_the_window(config: Config, inside: bool) -> None:
    """If it is outside, the device has all that a match needs, and nothing is loaded."""
    world = World(config)
    for count in range(1, 8):
        world.backup(world.insert(world.pages(1, count)))
    whole = world.pages(1, 7)
    assert world.hits(whole) == (len(whole), 0)
    outside = 7 - world.pages_of_a_window
    world.evict(0, windows=(outside + inside) * config.page_size)

    device, host = world.hits(whole)

    assert device + host == len(whole)
    assert (host > 0) == inside


@WINDOWS
def test_a_load_of_windows_renews_the_mapping(config: Config) -> None:
    world = World(config)
    ids = world.pages(1, 5)
    node = world.insert(ids)
    world.backup(node)
    world.evict(len(ids))
    evictable = world.tree.swa_evictable_size()

    world.load_back(node)

    swa = world.kv.translate_loc_from_full_to_swa(node.value)
    assert (swa >= config.page_size).all()
    assert len(set(swa.tolist())) == len(ids)
    assert world.tree.swa_evictable_size() - evictable == len(ids)
    assert node in list(world.tree.swa.window.lru_list)  # type: ignore[union-attr]


@STATES
def test_a_lock_of_a_tombstone_gives_no_later_lock_of_the_state_back(config: Config) -> None:
    world = World(config)
    ids = world.pages(1, 5)
    node = world.insert(ids)
    world.insert([*ids, *world.pages(500, 5)])
    world.backup(node)
    world.evict(0, states=1)
    assert node.mamba_value is None
    early = world.tree._lock_for_transfer(node)
    assert node.mamba_lock_ref == 0

    world.load_back(node)
    request, other = (world.tree.inc_lock_ref(node).to_dec_params() for _ in range(2))
    assert node.mamba_lock_ref == 2
    world.tree.dec_lock_ref(node, early)
    assert node.mamba_lock_ref == 2

    world.tree.dec_lock_ref(node, request)
    world.tree.dec_lock_ref(node, other)
    assert node.mamba_lock_ref == 0
    world.tree.sanity_check()


@WINDOWS
def test_a_lock_of_a_tombstone_gives_no_later_lock_of_the_window_back(config: Config) -> None:
    world = World(config)
    ids = world.pages(1, 5)
    node = world.insert(ids)
    world.insert([*ids, *world.pages(500, 5)])
    world.backup(node)
    world.evict(0, windows=len(ids))
    assert node.swa_tombstone
    early = world.tree._lock_for_transfer(node)
    assert node.swa_lock_ref == 0

    world.load_back(node)
    request, other = (world.tree.inc_lock_ref(node).to_dec_params() for _ in range(2))
    assert node.swa_lock_ref == 2
    world.tree.dec_lock_ref(node, early)
    assert node.swa_lock_ref == 2

    world.tree.dec_lock_ref(node, request)
    world.tree.dec_lock_ref(node, other)
    assert node.swa_lock_ref == 0
    world.tree.sanity_check()


class StorageWorld(World):
    """A ``HiRadixCache`` and storage with a prefix; the tree has the prefix's first two pages."""

    def __init__(self, stored_pages: int) -> None:
        super().__init__(CONFIGS["HiRadixCache, pages of 4"])
        assert isinstance(self.tree, HiRadixCache)
        self.storage_tree = self.tree
        self.ids = self.pages(1, 6)
        self.backup(self.insert(self.ids[: stored_pages * self.page_size]))
        self.poll()  # writes the host's KV to the storage
        self.tree.evict(EvictParams(len(self.ids)))
        self.tree.evict_host(len(self.ids))
        assert self.host.available_size() == self.host.size
        self.anchor = self.insert(self.ids[: 2 * self.page_size])
        self.backup(self.anchor)
        self.poll()

    def _full_tree(self, params: CacheInitParams, controller: HiCacheController) -> HiRadixCache:
        storage = HiCacheMemory(self.pool.full_kv_pool, 64, self.page_size)
        behind = StorageController(
            self.host, storage, self.page_size, ChosenStorageIO(), self.page_size
        )
        rules = StorageRules("wait_complete", 0.0, lambda: 0.0)
        return HiRadixCache(params, controller, "write_through", behind, rules)

    def poll(self) -> None:
        self.storage_tree.check_hicache_events()

    def prefetch(self) -> None:
        self.storage_tree.prefetch_from_storage(1, RadixKey(self.ids))
        assert self.anchor.host_ref_counter == 1
        assert self.storage_tree.prefetching_size() == 4 * self.page_size

    def check_over(self) -> None:
        """Check that the prefetch has ended and that everything it loaded can be evicted."""
        assert self.storage_tree.ongoing_prefetch == {}
        assert self.anchor.host_ref_counter == 0
        assert self.storage_tree.prefetching_size() == 0
        self.tree.sanity_check()
        self.tree.evict(EvictParams(self.kv.size))
        self.tree.evict_host(self.host.size)
        assert self.host.available_size() == self.host.size


@pytest.mark.parametrize("stored", [6, 5])
def test_all_that_a_prefetch_brought_is_in_the_tree_and_none_of_its_slots_is_lost(
    stored: int,
) -> None:
    world = StorageWorld(stored)
    world.prefetch()

    world.poll()

    assert world.hits(world.ids) == (2 * world.page_size, (stored - 2) * world.page_size)
    world.check_over()


def test_a_prefetch_that_finds_nothing_releases_its_anchor_and_its_slots() -> None:
    world = StorageWorld(2)
    world.prefetch()

    world.poll()

    assert world.hits(world.ids) == (2 * world.page_size, 0)
    world.check_over()


@pytest.mark.parametrize("pages", [3, 6])
def test_what_another_request_inserted_meanwhile_is_not_taken_from_a_prefetch(pages: int) -> None:
    world = StorageWorld(6)
    world.prefetch()
    other = world.insert(world.ids[: pages * world.page_size])

    world.poll()

    assert other.value is not None
    assert world.hits(world.ids) == (pages * world.page_size, (6 - pages) * world.page_size)
    world.check_over()


def test_a_request_that_is_aborted_leaves_no_prefetch() -> None:
    world = StorageWorld(6)
    world.prefetch()

    world.storage_tree.release_aborted_request(1)
    world.poll()

    world.check_over()
