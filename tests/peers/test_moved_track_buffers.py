"""SGLang's tests of a hybrid pool's extra buffer, run on ours through the shim."""

from __future__ import annotations

import pytest
import torch

from tests.peers import shim
from tests.peers.shim import (
    CacheInitParams,
    HybridReqToTokenPool,
    Mamba2CacheParams,
    Mamba2StateShape,
    MambaRadixCache,
    Req,
    TokenToKVPoolAllocator,
)

SHAPE = Mamba2StateShape.create(
    tp_world_size=1, intermediate_size=64, n_groups=2, num_heads=4, head_dim=8, state_size=8,
    conv_kernel=4,
)  # fmt: skip


def make_pool(overlap: bool = True, lazy: bool = False) -> HybridReqToTokenPool:
    return HybridReqToTokenPool(
        size=4,
        mamba_size=12,
        mamba_spec_state_size=4,
        max_context_len=64,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(shape=SHAPE, layers=[0, 1]),
        mamba_layer_ids=[0, 1],
        enable_mamba_extra_buffer=True,
        enable_mamba_extra_buffer_lazy=lazy,
        speculative_num_draft_tokens=None,
        enable_overlap_schedule=overlap,
    )


@pytest.mark.parametrize(("overlap", "each"), [(True, 3), (False, 2)])
def test_alloc_and_free_mamba_cache(overlap: bool, each: int) -> None:
    pool = make_pool(overlap)
    reqs = [Req(str(i), "", [1, 2, 3]) for i in range(2)]

    assert pool.alloc(reqs) is not None
    assert pool.mamba_allocator.available_size() == 12 - 2 * each
    assert pool.mamba_ping_pong_track_buffer_size == each - 1
    for req in reqs:
        pool.free_mamba_cache(req)
        pool.free(req)

    assert pool.mamba_allocator.available_size() == 12
    assert pool.available_size() == 4


def test_the_other_index_turns_around_in_a_buffer_of_two_only() -> None:
    assert [make_pool(True).get_mamba_ping_pong_other_idx(i) for i in (0, 1)] == [1, 0]
    assert make_pool(False).get_mamba_ping_pong_other_idx(0) == 0


def test_keeping_one_entry_frees_the_others() -> None:
    pool = make_pool()
    req = Req("0", "", [1, 2, 3])
    pool.alloc([req])
    req.mamba_next_track_idx = 1
    keep_idx = pool.get_mamba_ping_pong_keep_idx(req)

    pool.free_mamba_cache(req, mamba_ping_pong_track_buffer_to_keep=keep_idx)

    assert keep_idx == 0
    assert pool.mamba_allocator.available_size() == 11
    assert req.mamba_ping_pong_track_buffer is None


def test_a_finished_request_leaves_the_kept_slot_in_the_tree() -> None:
    pool = make_pool()
    allocator = TokenToKVPoolAllocator(64, torch.float32, "cpu")
    tree = MambaRadixCache(
        CacheInitParams(pool, allocator, page_size=1, enable_mamba_extra_buffer=True)
    )
    req = Req("0", "", list(range(10)))
    rows = pool.alloc([req])
    assert rows is not None
    indices = allocator.alloc(10)
    assert indices is not None
    pool.write((rows[0], slice(0, 10)), indices)
    req.kv_committed_len = req.kv_allocated_len = 10
    # SGLang's scheduler does this after a tracked step.
    req.mamba_last_track_seqlen = 8
    req.mamba_next_track_idx = pool.get_mamba_ping_pong_other_idx(req.mamba_next_track_idx)
    assert req.mamba_ping_pong_track_buffer is not None
    kept = int(req.mamba_ping_pong_track_buffer[0])

    tree.cache_finished_req(req)

    matched = tree.match(shim.RadixKey(list(range(10))))
    assert len(matched.device_indices) == 8
    assert torch.equal(matched.device_indices, indices[:8])
    assert matched.last_device_node.mamba_value == kept
    assert allocator.available_size() == 64 - 8
    assert pool.mamba_allocator.available_size() == 11
