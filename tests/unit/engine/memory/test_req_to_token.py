"""Rows of requests, with and without state slots."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from hybridbench.engine.memory.mamba_pool import (
    Mamba2CacheParams,
    Mamba2StateDType,
    Mamba2StateShape,
    MambaPool,
)
from hybridbench.engine.memory.owners import REQ, TREE, OwnershipError
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool, ReqToTokenPool
from hybridbench.engine.req import ReqKv


@dataclass
class Row:
    rid: str = "r"
    kv: ReqKv = field(default_factory=ReqKv)


def hybrid(size: int, mamba_size: int) -> HybridReqToTokenPool:
    shape = Mamba2StateShape.gated_delta_net(
        num_k_heads=1, num_v_heads=1, head_k_dim=2, head_v_dim=2, conv_kernel=2
    )
    states = MambaPool(mamba_size, Mamba2CacheParams(shape, (0,)), (0,), "cpu")
    return HybridReqToTokenPool(size, mamba_size, 8, "cpu", states)


def test_row_zero_is_padding_and_never_handed_out() -> None:
    pool = ReqToTokenPool(size=2, max_context_len=4)

    assert pool.req_to_token.shape == (3, 4)
    assert pool.req_to_token.dtype == np.int32
    assert pool.alloc([Row(), Row()]) == [1, 2]
    assert pool.alloc([Row()]) is None


def test_a_continuing_request_keeps_its_row() -> None:
    pool = ReqToTokenPool(size=2, max_context_len=4)
    old, new = Row(), Row()
    pool.alloc([old])

    assert pool.alloc([old, new]) == [1, 2]
    assert pool.available_size() == 0


def test_write_sets_positions_of_a_row() -> None:
    pool = ReqToTokenPool(size=1, max_context_len=4)

    pool.write((1, slice(1, 3)), np.array([7, 8]))

    assert pool.req_to_token[1].tolist() == [0, 7, 8, 0]


def test_freeing_twice_is_refused() -> None:
    pool = ReqToTokenPool(size=1, max_context_len=4)
    req = Row("a")
    pool.alloc([req])
    pool.free(req)

    assert req.kv.req_pool_idx is None
    with pytest.raises(OwnershipError, match="request a has no row"):
        pool.free(req)


def test_a_hybrid_row_brings_a_state_slot_unless_the_request_has_one() -> None:
    pool = hybrid(3, 5)
    matched, fresh = Row(kv=ReqKv(mamba_pool_idx=4)), Row()

    rows = pool.alloc([matched, fresh])

    assert rows == [1, 2]
    assert fresh.kv.mamba_pool_idx == 1
    assert pool.get_mamba_indices([1, 2, 3]).tolist() == [4, 1, 0]
    assert pool.mamba_allocator.held(REQ) == 1


def test_with_too_few_state_slots_no_row_is_taken() -> None:
    pool = hybrid(3, 1)
    reqs = [Row(), Row()]

    assert pool.alloc(reqs) is None

    assert (pool.available_size(), pool.mamba_allocator.available_size()) == (3, 1)
    assert reqs == [Row(), Row()]


def test_with_too_few_rows_no_state_slot_is_taken() -> None:
    pool = hybrid(1, 3)
    reqs = [Row(), Row()]

    assert pool.alloc(reqs) is None

    assert (pool.available_size(), pool.mamba_allocator.available_size()) == (1, 3)
    assert reqs == [Row(), Row()]


def test_state_slots_come_from_an_open_group() -> None:
    pool = hybrid(2, 2)

    with pool.mamba_allocator.group(2):
        assert pool.alloc([Row(), Row()]) == [1, 2]

    assert pool.mamba_allocator.held(REQ) == 2


def test_free_mamba_cache_twice_is_refused() -> None:
    pool = hybrid(1, 1)
    req = Row("a")
    pool.alloc([req])
    pool.free_mamba_cache(req)

    assert pool.get_mamba_indices([1]).tolist() == [0]
    with pytest.raises(OwnershipError, match="request a holds no state slot"):
        pool.free_mamba_cache(req)


def test_a_slot_taken_over_by_the_tree_is_forgotten_by_request_and_row() -> None:
    pool = hybrid(1, 1)
    req = Row()
    pool.alloc([req])
    pool.mamba_allocator.transfer([1], REQ, TREE)

    pool.forget_mamba_cache(req)

    assert req.kv.mamba_pool_idx is None
    assert pool.get_mamba_indices([1]).tolist() == [0]
    assert pool.mamba_allocator.held(TREE) == 1


def test_freeing_the_row_alone_leaves_the_state_slot_held() -> None:
    pool = hybrid(1, 2)
    req = Row()
    pool.alloc([req])

    pool.free(req)

    assert pool.available_size() == 1
    assert req.kv.mamba_pool_idx == 1
    assert pool.mamba_allocator.available_size() == 1
    assert pool.get_mamba_indices([1]).tolist() == [0]


def test_more_slots_than_the_state_pool_has_are_refused() -> None:
    states = hybrid(1, 2).mamba_pool

    with pytest.raises(ValueError, match="3 state slots do not fit a pool of 2"):
        HybridReqToTokenPool(1, 3, 8, torch.device("cpu"), states)


def test_clear_frees_rows_and_slots() -> None:
    pool = hybrid(2, 2)
    pool.alloc([Row(), Row()])

    pool.clear()

    assert (pool.available_size(), pool.mamba_allocator.available_size()) == (2, 2)
    assert pool.get_mamba_indices([1, 2]).tolist() == [0, 0]


def test_states_are_made_from_cache_params_when_none_are_given() -> None:
    shape = Mamba2StateShape.gated_delta_net(
        num_k_heads=1, num_v_heads=1, head_k_dim=2, head_v_dim=2, conv_kernel=2
    )
    types = Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float16)
    pool = HybridReqToTokenPool(
        size=1,
        mamba_size=3,
        max_context_len=8,
        device="cpu",
        cache_params=Mamba2CacheParams(shape, [0, 2], types),
    )

    assert pool.mamba_pool.size == pool.mamba_allocator.available_size() == 3
    assert list(pool.mamba_map) == [0, 2]
    assert pool.mamba_pool.mamba_cache.conv[0].dtype == torch.bfloat16
    assert pool.mamba_pool.mamba_cache.temporal.dtype == torch.float16


def test_a_table_needs_states_or_what_to_make_them_from() -> None:
    with pytest.raises(ValueError, match="mamba_pool, or cache_params"):
        HybridReqToTokenPool(1, 1, 8, "cpu")
