"""SGLang's tests of hybrid pools and of MambaRadixCache, run on ours through the shim.

The constructors are called with exactly the keywords of SGLang 0.5.13; only the shapes are small.
"""

from __future__ import annotations

from array import array

import pytest
import torch

from hybridbench.engine.memory.owners import FREE
from tests.peers.shim import (
    CacheInitParams,
    EvictParams,
    HybridLinearKVPool,
    HybridReqToTokenPool,
    InsertParams,
    LRUList,
    Mamba2CacheParams,
    Mamba2StateDType,
    Mamba2StateShape,
    MambaRadixCache,
    RadixKey,
    Req,
    TokenToKVPoolAllocator,
    TreeNode,
)

FULL_LAYERS = [3, 7]
MAMBA_LAYERS = [layer for layer in range(8) if layer not in FULL_LAYERS]


class World:
    """A tree, its pools, and requests that hold a row and a state."""

    def __init__(self, rows: int = 10, mamba_size: int = 20) -> None:
        shape = Mamba2StateShape.create(
            tp_world_size=1,
            intermediate_size=16,
            n_groups=1,
            num_heads=2,
            head_dim=8,
            state_size=4,
            conv_kernel=4,
        )
        dtype = Mamba2StateDType(conv=torch.bfloat16, temporal=torch.bfloat16)
        self.rows = HybridReqToTokenPool(
            size=rows,
            mamba_size=mamba_size,
            mamba_spec_state_size=rows,
            max_context_len=32,
            device="cpu",
            enable_memory_saver=False,
            cache_params=Mamba2CacheParams(shape=shape, layers=MAMBA_LAYERS, dtype=dtype),
            mamba_layer_ids=MAMBA_LAYERS,
            enable_mamba_extra_buffer=False,
            speculative_num_draft_tokens=3,
        )
        self.states = self.rows.mamba_pool
        self.slots = self.rows.mamba_allocator
        self.kv_pool = HybridLinearKVPool(
            size=128,
            dtype=torch.bfloat16,
            page_size=1,
            head_num=2,
            head_dim=4,
            full_attention_layer_ids=FULL_LAYERS,
            enable_kvcache_transpose=False,
            device="cpu",
            enable_memory_saver=False,
            mamba_pool=self.states,
        )
        self.kv = TokenToKVPoolAllocator(
            size=128, dtype=torch.bfloat16, device="cpu", kvcache=self.kv_pool, need_sort=False
        )
        self.tree = MambaRadixCache(
            params=CacheInitParams(
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.kv,
                page_size=1,
                disable=False,
                enable_kv_cache_events=False,
            )
        )

    def req(self) -> Req:
        made = Req(rid="0", origin_input_text="", origin_input_ids=array("q"))
        assert self.rows.alloc([made]) is not None
        return made

    def put(self, ids: list[int], prev_prefix_len: int = 0) -> int:
        params = InsertParams(
            key=RadixKey(array("q", ids)),
            value=self.kv.alloc(len(ids)),
            mamba_value=self.req().mamba_pool_idx.unsqueeze(0),
            prev_prefix_len=prev_prefix_len,
        )
        return self.tree.insert(params).prefix_len

    def hit(self, ids: list[int]) -> tuple[int, TreeNode]:
        found = self.tree.match(RadixKey(ids))
        return len(found.device_indices), found.last_device_node


def test_only_full_attention_layers_have_kv() -> None:
    pool = World().kv_pool

    assert pool._transfer_full_attention_id(3) == 0
    assert pool._transfer_full_attention_id(7) == 1
    with pytest.raises(ValueError, match="layer_id=1 not in full attention layers:"):
        pool._transfer_full_attention_id(1)


def test_a_request_takes_a_row_and_a_state_and_gives_them_back_apart() -> None:
    world = World()
    req = world.req()
    assert (world.rows.available_size(), world.slots.available_size()) == (9, 19)
    world.rows.free_mamba_cache(req)
    world.rows.free(req)
    assert (world.rows.available_size(), world.slots.available_size()) == (10, 20)

    world.rows.alloc([req])
    world.rows.free(req)
    assert (world.rows.available_size(), world.slots.available_size()) == (10, 19)
    kept = req.mamba_pool_idx
    world.rows.alloc([req])

    assert req.mamba_pool_idx is kept
    assert (world.rows.available_size(), world.slots.available_size()) == (9, 19)
    assert world.rows.get_mamba_indices([req.req_pool_idx or 0]).tolist() == [int(kept)]


def test_states_are_evicted_inside_the_tree_and_matches_stop_where_one_is_missing() -> None:
    world = World()
    for ids in ([1, 2, 3], [1, 2, 3, 4, 5, 6, 7], [10, 11, 12], [1, 2, 3, 4, 5, 60, 70]):
        world.put(ids)

    assert world.tree.evict(EvictParams(num_tokens=1)).num_tokens_evicted == 3
    first = world.tree.evict(EvictParams(num_tokens=0, mamba_num=1))
    assert (first.num_tokens_evicted, first.mamba_num_evicted) == (0, 1)
    assert world.hit([10, 11, 12])[0] == 0
    assert world.hit([1, 2, 3, 4, 5])[0] == 0
    for ids in ([1, 2, 3, 4, 5, 60, 70], [1, 2, 3, 4, 5, 6, 7]):
        length, node = world.hit(ids)
        assert (length, len(node.key)) == (7, 2)

    assert world.tree.evict(EvictParams(num_tokens=0, mamba_num=1)).mamba_num_evicted == 1
    assert world.hit([1, 2, 3, 4, 5, 60, 70]) == (0, world.tree.root_node)
    assert world.hit([1, 2, 3, 4, 5, 6, 7])[0] == 7
    world.tree.sanity_check()
    assert len(world.tree.all_mamba_values_flatten()) == 1
    assert len(world.tree.all_values_flatten()) == 7


@pytest.mark.parametrize("has_slot", [True, False])
def test_a_hit_copies_the_state_for_the_request_with_and_without_a_slot(has_slot: bool) -> None:
    world = World()
    world.put([1, 2, 3])
    _, node = world.hit([1, 2, 3])
    world.states.mamba_cache.temporal[:, node.mamba_value] = 2.0
    req = world.req()
    if not has_slot:
        world.rows.free_mamba_cache(req)
    free = world.slots.available_size()

    found = world.tree.match(RadixKey([1, 2, 3]), req)

    assert len(found.device_indices) == 3
    assert req.mamba_pool_idx is not None
    assert world.slots.available_size() == free - (not has_slot)
    assert int(req.mamba_pool_idx) != node.mamba_value
    assert (world.states.mamba_cache.temporal[:, req.mamba_pool_idx] == 2.0).all()
    world.rows.free_mamba_cache(req)
    assert req.mamba_pool_idx is None


def test_a_copy_on_a_full_pool_evicts_a_state_but_never_the_one_that_was_hit() -> None:
    world = World(mamba_size=2)
    world.put([1, 2, 3])
    world.put([4, 5])
    req = Req("r", "", [])

    found = world.tree.match(RadixKey([1, 2, 3]), req)

    assert len(found.device_indices) == 3
    assert req.mamba_pool_idx is not None
    assert world.hit([4, 5])[0] == 0
    assert world.slots.available_size() == 0


@pytest.mark.parametrize("wrap", [int, lambda s: [int(s)], lambda s: s.numpy().reshape(1)])
def test_a_state_is_taken_in_any_wrapping(wrap: type) -> None:
    world = World()
    req = world.req()
    world.kv.alloc(1)
    params = InsertParams(key=RadixKey([1]), value=[1], mamba_value=wrap(req.mamba_pool_idx))

    assert not world.tree.insert(params).mamba_exist
    assert world.tree.all_mamba_values_flatten().tolist() == [1]


def test_duplicates_are_freed_from_the_known_prefix_on() -> None:
    world = World()
    world.put([1, 2, 3])
    assert world.kv.available_size() == 128 - 3

    assert world.put([1, 2, 3, 4, 5, 6, 7], prev_prefix_len=0) == 3
    assert world.kv.available_size() == 128 - 7
    assert world.put([1, 2, 3, 4, 5, 6, 7, 8], prev_prefix_len=2) == 7
    assert world.kv.available_size() == 128 - 7 - 3
    assert world.put([1, 2, 3, 4, 5, 6, 7, 8, 9], prev_prefix_len=8) == 8
    assert world.kv.available_size() == 128 - 7 - 3 - 9
    world.tree.sanity_check()


def test_a_lock_holds_the_path_but_only_the_last_state() -> None:
    world = World()
    world.put([1, 2])
    world.put([1, 2, 3])
    _, leaf = world.hit([1, 2, 3])
    parent = leaf.parent
    assert parent is not None

    world.tree.inc_lock_ref(leaf)
    assert (leaf.full_lock_ref, leaf.mamba_lock_ref) == (1, 1)
    assert (parent.full_lock_ref, parent.mamba_lock_ref) == (1, 0)
    assert (world.tree.full_protected_size(), world.tree.mamba_protected_size()) == (3, 1)
    assert world.tree.evict(EvictParams(num_tokens=9, mamba_num=9)).mamba_num_evicted == 1
    world.tree.dec_lock_ref(leaf)

    assert (world.tree.full_evictable_size(), world.tree.mamba_evictable_size()) == (3, 1)
    assert parent.mamba_value is None


def test_the_lists_can_be_walked_by_the_names_of_their_pointers() -> None:
    world = World()
    world.put([1, 2])
    world.put([3, 4])
    lru = world.tree.mamba_lru_list

    order, node = [], getattr(lru.head, lru.nxt)
    while lru.in_list(node):
        order.append(list(node.key))
        node = getattr(node, lru.nxt)

    assert order == [[3, 4], [1, 2]]
    assert node is lru.tail
    oldest = lru.get_lru_no_lock()
    assert oldest is not None
    assert list(oldest.key) == [1, 2]
    lru.reset_path_mru([oldest])
    assert [list(node.key) for node in lru] == [[3, 4], [1, 2]]


@pytest.mark.parametrize("mamba", [False, True])
def test_a_node_taken_out_of_a_list_points_at_nobody(mamba: bool) -> None:
    lru = LRUList(mamba=mamba)
    nodes = [TreeNode(id=number) for number in range(3)]
    for node in nodes:
        node.mamba_value = node.id
        lru.insert_mru(node)

    lru.remove_node(nodes[1])

    assert not lru.in_list(nodes[1])
    assert getattr(nodes[1], lru.prv) is None
    assert getattr(nodes[1], lru.nxt) is None
    assert [node.id for node in lru] == [0, 2]


def test_states_go_to_the_host_and_back() -> None:
    world = World()
    states, slots = world.states, world.slots.alloc(3)
    assert slots is not None
    states.mamba_cache.conv[0][:, slots] = 1.0
    states.mamba_cache.temporal[:, slots] = 2.0

    conv, temporal = states.get_cpu_copy(slots)
    states.clear_slots(slots)
    assert not states.mamba_cache.temporal.any()
    states.load_cpu_copy((conv, temporal), slots)

    assert (states.mamba_cache.conv[0][:, slots] == 1.0).all()
    assert (states.mamba_cache.temporal[:, slots] == 2.0).all()


def test_kv_and_states_go_to_the_host_and_back_together() -> None:
    world = World()
    tokens, slots = world.kv.alloc(4), world.slots.alloc(1)
    assert tokens is not None
    assert slots is not None
    world.kv_pool.full_kv_pool.k_buffer[1][tokens] = 3.0
    world.states.mamba_cache.temporal[:, slots] = 6.0

    copy = world.kv.get_cpu_copy(tokens, mamba_indices=slots)
    world.kv_pool.full_kv_pool.k_buffer[1].zero_()
    world.states.clear_slots(slots)
    world.kv.load_cpu_copy(copy, tokens, mamba_indices=slots)

    assert (world.kv_pool.full_kv_pool.k_buffer[1][tokens] == 3.0).all()
    assert (world.states.mamba_cache.temporal[:, slots] == 6.0).all()
    _, states = world.kv_pool.get_cpu_copy(tokens, mamba_indices=None)
    assert states is None


def test_a_finished_request_leaves_its_state_in_the_tree_and_nothing_with_itself() -> None:
    world = World()
    req = world.req()
    req.origin_input_ids, req.kv_committed_len, req.kv_allocated_len = array("q", [1, 2, 3]), 3, 3
    tokens = world.kv.alloc(3)
    assert req.req_pool_idx is not None
    assert tokens is not None
    world.rows.write((req.req_pool_idx, slice(0, 3)), tokens)
    req.last_node = world.tree.root_node

    world.tree.cache_finished_req(req)
    world.rows.free(req)

    assert req.mamba_pool_idx is None
    assert world.hit([1, 2, 3])[0] == 3
    world.tree.evict(EvictParams(num_tokens=3))
    assert world.slots.available_size() == world.slots.held(FREE) == 20
    assert sorted(world.slots.free_slots) == list(range(1, 21))
    assert all(type(slot) is int for slot in world.slots.free_slots)
