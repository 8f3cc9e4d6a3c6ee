"""SGLang's tests of sliding-window pools and trees, and of UnifiedRadixCache, run on ours.

Like theirs, one suite over every combination of components.  The host tier has its own file; tests
of the Rust core and of a node's internals are left out (docs/reference/sglang-shim.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from hybridbench.engine.cache.kv_events import BlockRemoved, BlockStored
from tests.peers.shim import (
    CacheInitParams,
    EvictParams,
    EvictResult,
    HybridReqToTokenPool,
    InsertParams,
    Mamba2CacheParams,
    Mamba2StateDType,
    Mamba2StateShape,
    MatchResult,
    PagedTokenToKVPoolAllocator,
    RadixKey,
    Req,
    ReqToTokenPool,
    SWAKVPool,
    SWARadixCache,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
    UnifiedRadixCache,
)


@dataclass(frozen=True)
class Config:
    """The components of a tree besides full KV."""

    page_size: int = 1
    states: bool = False
    windows: bool = False


CONFIGS = {
    "full": Config(),
    "full, pages of 4": Config(4),
    "states": Config(states=True),
    "windows": Config(windows=True),
    "windows, pages of 4": Config(4, windows=True),
    "windows and states": Config(states=True, windows=True),
}
EVERY = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
PAGED = pytest.mark.parametrize("config", [c for c in CONFIGS.values() if c.page_size > 1])
STATES = pytest.mark.parametrize("config", [c for c in CONFIGS.values() if c.states])
WINDOWS = pytest.mark.parametrize("config", [c for c in CONFIGS.values() if c.windows])


class World:
    """A unified tree with its pools, and requests that hold rows."""

    def __init__(self, config: Config) -> None:
        self.page_size = config.page_size
        self.rows: HybridReqToTokenPool | ReqToTokenPool = (
            self._hybrid_rows() if config.states else self._plain_rows()
        )
        sizes: dict[str, Any] = {
            "dtype": torch.bfloat16,
            "device": "cpu",
            "kvcache": None,
            "need_sort": False,
        }
        self.kv: Any
        if config.windows:
            self.kv = SWATokenToKVPoolAllocator(
                size=256, size_swa=256, page_size=config.page_size, **sizes
            )
        elif config.page_size == 1:
            self.kv = TokenToKVPoolAllocator(size=256, **sizes)
        else:
            self.kv = PagedTokenToKVPoolAllocator(size=256, page_size=config.page_size, **sizes)
        self.tree = UnifiedRadixCache(
            params=CacheInitParams(
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.kv,
                page_size=config.page_size,
                disable=False,
                sliding_window_size=4 * config.page_size,
                enable_kv_cache_events=True,
            )
        )

    def _plain_rows(self) -> ReqToTokenPool:
        return ReqToTokenPool(size=16, max_context_len=128, device="cpu", enable_memory_saver=False)

    def _hybrid_rows(self) -> HybridReqToTokenPool:
        shape = Mamba2StateShape.create(
            tp_world_size=1, intermediate_size=16, n_groups=1, num_heads=2, head_dim=8,
            state_size=4, conv_kernel=4,
        )  # fmt: skip
        dtype = Mamba2StateDType(conv=torch.bfloat16, temporal=torch.bfloat16)
        return HybridReqToTokenPool(
            size=16, mamba_size=32, mamba_spec_state_size=16, max_context_len=128, device="cpu",
            enable_memory_saver=False, mamba_layer_ids=[0, 1],
            cache_params=Mamba2CacheParams(shape=shape, layers=[0, 1], dtype=dtype),
            enable_mamba_extra_buffer=False, speculative_num_draft_tokens=3,
        )  # fmt: skip

    def pages(self, start: int, count: int) -> list[int]:
        """Return the tokens of ``count`` whole pages."""
        return list(range(start, start + count * self.page_size))

    def insert(self, ids: list[int], prev_prefix_len: int = 0) -> int:
        """Insert new KV, and a state if the tree has states; return the known prefix's length."""
        value = self.kv.alloc(len(ids))
        params = InsertParams(RadixKey(ids), value, prev_prefix_len=prev_prefix_len)
        if isinstance(self.rows, HybridReqToTokenPool):
            params.mamba_value = self.rows.mamba_allocator.alloc(1)
        return self.tree.insert(params).prefix_len

    def match(self, ids: list[int]) -> MatchResult:
        return self.tree.match(RadixKey(ids))

    def matched(self, ids: list[int]) -> int:
        return len(self.match(ids).device_indices)

    def request(self, ids: list[int]) -> Req:
        """Return a request that has computed all of ``ids``."""
        req = Req(rid=str(ids), origin_input_text="", origin_input_ids=ids)
        assert self.rows.alloc([req]) is not None
        missing = -len(ids) % self.page_size
        indices = self.kv.alloc(len(ids) + missing)[: len(ids)]
        assert req.req_pool_idx is not None
        self.rows.write((req.req_pool_idx, slice(0, len(ids))), indices)
        req.kv_committed_len = req.kv_allocated_len = len(ids)
        return req


@EVERY
def test_what_was_inserted_is_matched_as_far_as_it_goes(config: Config) -> None:
    world = World(config)
    short = world.pages(1, 2)
    long = short + world.pages(1000, 1)
    world.insert(short)

    assert world.insert(long) == len(short)

    assert world.matched(long) == len(long)
    assert world.matched(short + world.pages(9000, 1)) == len(short)
    assert world.matched(world.pages(5000, 2)) == 0
    world.tree.sanity_check()


@EVERY
def test_branches_share_the_prefix_that_they_have_in_common(config: Config) -> None:
    world = World(config)
    base = world.pages(1, 3)
    world.insert(base)
    branches = [base + world.pages(start, 2) for start in (100, 200, 300)]

    assert [world.insert(branch) for branch in branches] == [len(base)] * 3

    assert [world.matched(branch) for branch in branches] == [len(b) for b in branches]
    assert world.matched(base + world.pages(999, 1)) == len(base)
    world.tree.sanity_check()


@EVERY
def test_an_eviction_frees_as_much_as_it_is_asked_for_and_says_what(config: Config) -> None:
    world = World(config)
    first, second = world.pages(1, 2), world.pages(500, 2)
    world.insert(first)
    world.insert(second)
    before = world.tree.full_evictable_size()
    assert before == len(first) + len(second)

    result = world.tree.evict(EvictParams(num_tokens=len(first)))

    assert result.num_tokens_evicted == before - world.tree.full_evictable_size() == len(first)
    assert (result.mamba_num_evicted > 0) == config.states
    assert (result.swa_num_tokens_evicted > 0) == config.windows
    world.tree.sanity_check()


@EVERY
def test_a_lock_keeps_a_prefix_until_it_is_released(config: Config) -> None:
    world = World(config)
    kept, other = world.pages(1, 3), world.pages(500, 2)
    world.insert(kept)
    world.insert(other)
    node = world.match(kept).last_device_node
    lock = world.tree.inc_lock_ref(node)

    everything = EvictParams(num_tokens=len(kept) + len(other))
    assert world.tree.evict(everything).num_tokens_evicted == len(other)

    assert world.matched(kept) == len(kept)
    world.tree.dec_lock_ref(node, lock.to_dec_params())
    assert world.tree.evict(EvictParams(num_tokens=1)).num_tokens_evicted == len(kept)
    world.tree.sanity_check()


@EVERY
def test_an_empty_tree_has_nothing_to_evict(config: Config) -> None:
    world = World(config)

    assert world.tree.evict(EvictParams(10, 5, 10)) == EvictResult(0, 0, 0)
    world.tree.sanity_check()


@EVERY
def test_everything_can_be_evicted_and_the_tree_filled_again(config: Config) -> None:
    world = World(config)
    chain = world.pages(1, 6)
    for end in (2, 4, 6):
        world.insert(chain[: end * config.page_size])
    for start in range(200, 500, 100):
        world.insert(world.pages(start, 2))
    total = world.tree.full_evictable_size()

    assert world.tree.evict(EvictParams(num_tokens=2 * total)).num_tokens_evicted == total

    assert not world.tree.root_node.children
    assert world.tree.mamba_evictable_size() == world.tree.swa_evictable_size() == 0
    assert world.matched(chain) == 0
    world.insert(chain)
    assert world.matched(chain) == len(chain)
    world.tree.sanity_check()


@EVERY
def test_duplicates_are_freed_but_for_what_was_the_trees_before(config: Config) -> None:
    world = World(config)
    start = world.kv.available_size()
    one, two, three = (world.pages(1, count) for count in (1, 2, 3))

    world.insert(one)
    assert world.kv.available_size() == start - len(one)
    world.insert(two)
    assert world.kv.available_size() == start - len(two)
    before = world.kv.available_size()
    world.insert(three, prev_prefix_len=len(two))

    # The caller remains responsible for the positions of the first two pages.
    assert world.kv.available_size() == before - len(three)
    world.tree.sanity_check()


@EVERY
def test_a_request_that_ends_leaves_its_whole_pages(config: Config) -> None:
    world = World(config)
    ids = world.pages(1, 4)
    req = world.request(ids)

    world.tree.cache_finished_req(req, is_insert=True)

    assert world.matched(ids) == len(ids)
    assert world.tree.protected_size() == 0
    world.tree.sanity_check()


@EVERY
def test_a_request_that_is_dropped_leaves_nothing(config: Config) -> None:
    world = World(config)
    before = world.kv.available_size()
    ids = world.pages(1, 2)
    req = world.request(ids)

    world.tree.cache_finished_req(req, is_insert=False)

    assert world.kv.available_size() == before
    assert world.matched(ids) == 0
    world.tree.sanity_check()


@EVERY
def test_between_chunks_a_request_shares_and_locks_what_it_has(config: Config) -> None:
    world = World(config)
    req = world.request(world.pages(1, 3))

    world.tree.cache_unfinished_req(req)

    assert req.cache_protected_len == len(req.prefix_indices) == 3 * config.page_size
    assert req.last_node is not None
    assert world.tree.protected_size() == 3 * config.page_size
    world.tree.dec_lock_ref(req.last_node, req.lock_receipt)
    assert world.tree.protected_size() == 0
    world.tree.sanity_check()


@PAGED
def test_keys_count_in_whole_pages(config: Config) -> None:
    world = World(config)
    ids = world.pages(1, 2)
    world.insert(ids[: config.page_size])
    world.insert(ids)

    assert world.matched([*ids, *range(9000, 9000 + config.page_size - 1)]) == len(ids)
    assert world.matched(ids[: config.page_size - 1]) == 0
    assert world.matched(ids[: config.page_size] + [9999] * config.page_size) == config.page_size
    assert world.matched([9999, *ids[1:]]) == 0
    world.tree.sanity_check()


@PAGED
def test_the_tail_of_a_page_is_freed_when_its_request_ends(config: Config) -> None:
    world = World(config)
    ids = [*world.pages(1, 1), 8000, 8001]
    before = world.kv.available_size()
    req = world.request(ids)

    world.tree.cache_finished_req(req, is_insert=True)

    assert world.kv.available_size() == before - config.page_size
    assert world.matched(ids) == config.page_size
    world.tree.sanity_check()


@EVERY
def test_the_one_that_was_used_last_goes_last(config: Config) -> None:
    world = World(config)
    old, young = world.pages(1, 2), world.pages(500, 2)
    world.insert(young)
    world.insert(old)
    world.match(young)

    world.tree.evict(EvictParams(num_tokens=len(old)))

    assert (world.matched(old), world.matched(young)) == (0, len(young))
    world.tree.sanity_check()


@EVERY
def test_a_branch_goes_and_the_other_keeps_the_shared_prefix(config: Config) -> None:
    world = World(config)
    base = world.pages(1, 2)
    going, kept = base + world.pages(100, 2), base + world.pages(200, 2)
    world.insert(going)
    world.insert(kept)
    node = world.match(kept).last_device_node
    lock = world.tree.inc_lock_ref(node)

    world.tree.evict(EvictParams(num_tokens=len(going)))

    assert world.matched(kept) == len(kept)
    assert world.tree.protected_size() == len(kept)
    world.tree.dec_lock_ref(node, lock.to_dec_params())
    world.tree.sanity_check()


@EVERY
def test_a_parent_that_lost_its_child_can_go_when_it_is_unlocked(config: Config) -> None:
    world = World(config)
    base = world.pages(1, 2)
    world.insert(base)
    world.insert(base + world.pages(500, 2))
    node = world.match(base).last_device_node
    lock = world.tree.inc_lock_ref(node)

    world.tree.evict(EvictParams(num_tokens=100))

    assert world.tree.full_evictable_size() == 0
    world.tree.dec_lock_ref(node, lock.to_dec_params())
    assert world.tree.full_evictable_size() == len(base)
    assert world.tree.evict(EvictParams(num_tokens=1)).num_tokens_evicted == len(base)
    world.tree.sanity_check()


@STATES
def test_without_states_there_is_kv_and_no_match(config: Config) -> None:
    world = World(config)
    short = world.pages(1, 2)
    world.insert(short)
    world.insert(short + world.pages(500, 2))
    assert world.tree.mamba_evictable_size() == 2

    assert world.tree.evict(EvictParams(mamba_num=1)).mamba_num_evicted == 1
    assert not any(isinstance(event, BlockRemoved) for event in world.tree.take_events())
    assert world.matched(short) == 0
    world.tree.evict(EvictParams(mamba_num=10))

    assert world.tree.mamba_evictable_size() == 0
    assert world.matched(short + world.pages(500, 2)) == 0
    world.tree.sanity_check()


@STATES
def test_a_hit_copies_the_state(config: Config) -> None:
    world = World(config)
    ids = world.pages(1, 2)
    world.insert(ids)
    req = Req(rid="hit", origin_input_text="", origin_input_ids=ids)
    assert isinstance(world.rows, HybridReqToTokenPool)
    states = world.rows.mamba_pool.mamba_cache
    source = world.tree.all_mamba_values_flatten().tolist()
    states.temporal[:, source] = 7.0

    matched = world.tree.match(RadixKey(ids), req)

    assert len(matched.device_indices) == len(ids)
    assert req.mamba_pool_idx not in {None, *source}
    assert torch.all(states.temporal[:, req.mamba_pool_idx] == 7.0)
    world.tree.sanity_check()


@WINDOWS
def test_windows_are_evicted_alone_inside_the_tree(config: Config) -> None:
    world = World(config)
    base = world.pages(1, 4)
    world.insert(base)
    world.insert(base + world.pages(500, 4))
    full = world.tree.full_evictable_size()

    one = world.tree.evict(EvictParams(swa_num_tokens=1))

    assert (one.num_tokens_evicted, one.swa_num_tokens_evicted) == (0, len(base))
    assert not any(isinstance(event, BlockRemoved) for event in world.tree.take_events())
    assert world.tree.full_evictable_size() == full
    assert world.matched(base) == 0
    # A tombstone does not matter if a whole window follows it.
    assert world.matched(base + world.pages(500, 4)) == 2 * len(base)
    world.tree.evict(EvictParams(swa_num_tokens=1000))
    assert world.tree.swa_evictable_size() == 0
    world.tree.sanity_check()


@EVERY
def test_events_tell_of_each_block_what_it_holds_and_what_it_follows(config: Config) -> None:
    world = World(config)
    base = world.pages(1, 2)
    branches = world.pages(500, 2), world.pages(900, 1)
    world.insert(base + branches[0])
    first = [event for event in world.tree.take_events() if isinstance(event, BlockStored)]
    world.insert(base + branches[1])
    second = [event for event in world.tree.take_events() if isinstance(event, BlockStored)]

    told = [token for event in first for token in event.token_ids]
    assert told == base + branches[0]
    assert [event.token_ids for event in second] == [branches[1]]
    # The second branch diverges in the middle of the first one's node.
    assert second[0].parent_block_hash == first[1].block_hashes[0]

    world.tree.evict(EvictParams(num_tokens=1000))
    gone = [e for e in world.tree.take_events() if isinstance(e, BlockRemoved)]
    hashes = sorted(block_hash for event in gone for block_hash in event.block_hashes)
    assert hashes == sorted(event.block_hashes[0] for event in first + second)


@WINDOWS
def test_a_lock_keeps_one_window(config: Config) -> None:
    world = World(config)
    ids = world.pages(1, 6)
    world.insert(ids[: 2 * config.page_size])
    world.insert(ids)
    node = world.match(ids).last_device_node

    lock = world.tree.inc_lock_ref(node)

    assert world.tree.swa_protected_size() == 4 * config.page_size
    assert world.tree.full_protected_size() == len(ids)
    world.tree.evict(EvictParams(swa_num_tokens=1000))
    assert world.matched(ids) == len(ids)
    world.tree.dec_lock_ref(node, lock.to_dec_params())
    assert world.tree.swa_protected_size() == 0
    world.tree.sanity_check()


@EVERY
def test_the_tree_says_what_it_has(config: Config) -> None:
    world = World(config)
    world.insert(world.pages(1, 2))

    said = world.tree.available_and_evictable_str()

    assert "full: evictable" in said
    assert ("swa" in said, "mamba" in said) == (config.windows, config.states)
    assert "1 nodes" in world.tree.pretty_print()


def window_pools() -> tuple[SWAKVPool, SWATokenToKVPoolAllocator]:
    """Return pools for twelve layers, every fourth with full attention."""
    pool = SWAKVPool(
        size=128,
        size_swa=64,
        page_size=1,
        dtype=torch.bfloat16,
        head_num=2,
        head_dim=4,
        swa_attention_layer_ids=[layer for layer in range(12) if layer % 4],
        full_attention_layer_ids=[0, 4, 8],
        device="cpu",
    )
    allocator = SWATokenToKVPoolAllocator(
        size=128,
        size_swa=64,
        page_size=1,
        dtype=torch.bfloat16,
        device="cpu",
        kvcache=pool,
        need_sort=False,
    )
    return pool, allocator


def test_a_position_takes_one_of_each_pool_and_its_window_part_goes_first() -> None:
    pool, allocator = window_pools()
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (128, 64)

    index = allocator.alloc(1)

    assert index is not None
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (127, 63)
    assert pool.translate_loc_from_full_to_swa(index).tolist() != [0]
    allocator.free_swa(index)
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (127, 64)
    assert allocator.translate_loc_from_full_to_swa(index).tolist() == [0]
    allocator.free(index)
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (128, 64)


def test_the_window_that_a_prefix_needs_decides_what_matches() -> None:
    """After three evictions from both pools, one prefix is whole and one has lost its window."""
    _, allocator = window_pools()
    tree = SWARadixCache(
        params=CacheInitParams(
            req_to_token_pool=ReqToTokenPool(
                size=10, max_context_len=128, device="cpu", enable_memory_saver=False
            ),
            token_to_kv_pool_allocator=allocator,
            page_size=1,
            disable=False,
            sliding_window_size=4,
        )
    )
    for ids in ([1, 2, 3], [1, 2, 3, 4, 5, 6, 7], [10, 11, 12], [1, 2, 3, 4, 5, 60, 70]):
        tree.insert(InsertParams(key=RadixKey(ids), value=allocator.alloc(len(ids))))

    for full, swa in ((1, 0), (0, 1), (1, 2)):
        tree.evict(EvictParams(num_tokens=full, swa_num_tokens=swa))

    assert len(tree.match(RadixKey([1, 2, 3, 4, 5])).device_indices) == 0
    whole = tree.match(RadixKey([1, 2, 3, 4, 5, 60, 70]))
    assert len(whole.device_indices) == 7
    assert list(whole.last_device_node.key) == [60, 70]
    tree.sanity_check()


def test_what_the_trees_do_not_serve_is_refused_by_name() -> None:
    _, allocator = window_pools()
    rows = ReqToTokenPool(size=1, max_context_len=8, device="cpu", enable_memory_saver=False)

    with pytest.raises(ValueError, match="is_eagle"):
        CacheInitParams(rows, allocator, 1, is_eagle=True, sliding_window_size=4)
    with pytest.raises(ValueError, match="sliding_window_size"):
        UnifiedRadixCache(CacheInitParams(rows, allocator, 1))
