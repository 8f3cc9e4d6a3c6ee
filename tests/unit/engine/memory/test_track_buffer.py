"""Track buffers of requests: allocated with the row, filled in turn, donated, freed."""

from __future__ import annotations

import pytest

from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams, Mamba2StateShape, MambaPool
from hybridbench.engine.memory.owners import FREE, REQ, TRACK, TREE, OwnershipError
from hybridbench.engine.memory.req_to_token import NOT_TAKEN, HybridReqToTokenPool
from hybridbench.engine.req import Req
from tests.builders import make_req


def table(
    slots: int, *, rows: int = 3, overlap: bool = True, lazy: bool = False
) -> HybridReqToTokenPool:
    shape = Mamba2StateShape.gated_delta_net(
        num_k_heads=1, num_v_heads=1, head_k_dim=2, head_v_dim=2, conv_kernel=2
    )
    return HybridReqToTokenPool(
        rows,
        slots,
        8,
        "cpu",
        MambaPool(slots, Mamba2CacheParams(shape, (0,)), (0,), "cpu"),
        enable_mamba_extra_buffer=True,
        enable_mamba_extra_buffer_lazy=lazy,
        enable_overlap_schedule=overlap,
    )


def held(pool: HybridReqToTokenPool) -> tuple[int, int, int]:
    """Return how many slots requests hold, their buffers hold, and are free."""
    allocator = pool.mamba_allocator
    return allocator.held(REQ), allocator.held(TRACK), allocator.held(FREE)


def admitted(pool: HybridReqToTokenPool) -> Req:
    req = make_req()
    assert pool.alloc([req]) is not None
    return req


def buffer_of(req: Req) -> list[int]:
    assert req.kv.mamba_ping_pong_track_buffer is not None
    return req.kv.mamba_ping_pong_track_buffer


def mapped(pool: HybridReqToTokenPool, row: int) -> list[int]:
    slots: list[int] = pool.req_index_to_mamba_ping_pong_track_buffer_mapping[row].tolist()
    return slots


@pytest.mark.parametrize(
    ("overlap", "lazy", "expected"),
    [(True, False, [2, 3]), (False, False, [2]), (True, True, [2, NOT_TAKEN]), (False, True, [2])],
)
def test_a_request_gets_its_buffer_with_its_row(
    overlap: bool, lazy: bool, expected: list[int]
) -> None:
    pool = table(5, overlap=overlap, lazy=lazy)

    req = admitted(pool)

    assert (req.kv.mamba_pool_idx, req.kv.mamba_ping_pong_track_buffer) == (1, expected)
    assert mapped(pool, 1) == expected
    assert pool.mamba_ping_pong_track_buffer_size == len(expected)
    assert pool.track_slots_at_alloc == sum(slot != NOT_TAKEN for slot in expected)
    assert (req.kv.mamba_next_track_idx, req.kv.mamba_last_track_seqlen) == (0, None)


def test_the_map_of_buffers_has_an_entry_for_each_row_whatever_the_slots() -> None:
    assert table(2, rows=7).req_index_to_mamba_ping_pong_track_buffer_mapping.shape == (8, 2)


def test_a_request_keeps_the_slot_of_its_match_and_its_buffer() -> None:
    pool = table(7)
    req = make_req()
    [req.kv.mamba_pool_idx] = pool.mamba_allocator.alloc(1, REQ) or [0]

    pool.alloc([req])
    before = list(buffer_of(req))
    pool.alloc([req])

    assert req.kv.mamba_pool_idx == 1
    assert buffer_of(req) == before == [2, 3]
    assert held(pool) == (1, 2, 4)


@pytest.mark.parametrize(("slots", "rows"), [(5, 2), (1, 2), (6, 1)])
def test_with_too_few_slots_or_rows_nothing_is_taken(slots: int, rows: int) -> None:
    pool = table(slots, rows=rows)
    reqs = [make_req("a"), make_req("b")]

    assert pool.alloc(reqs) is None

    assert held(pool) == (0, 0, slots)
    assert pool.available_size() == rows
    assert all(req.kv.is_empty for req in reqs)


def test_copies_go_to_the_two_entries_in_turn_and_the_last_complete_one_is_kept() -> None:
    pool = table(3)
    req = admitted(pool)
    slots = []

    for seqlen in (16, 32, 48):
        slots.append(pool.take_track_slot(req))
        pool.complete_track(req, seqlen)
        assert buffer_of(req)[pool.get_mamba_ping_pong_keep_idx(req)] == slots[-1]
        assert req.kv.mamba_last_track_seqlen == seqlen

    assert slots == [2, 3, 2]


def test_a_buffer_of_one_is_overwritten() -> None:
    pool = table(2, overlap=False)
    req = admitted(pool)

    for seqlen in (16, 32):
        assert pool.take_track_slot(req) == 2
        pool.complete_track(req, seqlen)
        assert pool.get_mamba_ping_pong_keep_idx(req) == 0

    assert pool.get_mamba_ping_pong_other_idx(0) == 0


def test_lazily_the_second_slot_is_held_only_from_the_copy_to_its_completion() -> None:
    pool = table(3, lazy=True)
    req = admitted(pool)
    assert pool.take_track_slot(req) == 2
    assert held(pool) == (1, 1, 1)
    pool.complete_track(req, 16)
    assert (buffer_of(req), req.kv.mamba_next_track_idx) == ([2, NOT_TAKEN], 0)

    assert pool.take_track_slot(req) == 3
    assert held(pool) == (1, 2, 0)
    assert mapped(pool, 1) == [2, 3]
    assert pool.get_mamba_ping_pong_keep_idx(req) == 0
    pool.complete_track(req, 32)

    assert held(pool) == (1, 1, 1)
    assert buffer_of(req) == mapped(pool, 1) == [NOT_TAKEN, 3]
    assert pool.get_mamba_ping_pong_keep_idx(req) == 1


def test_lazily_a_copy_without_a_slot_is_refused_and_the_last_one_stays() -> None:
    pool = table(2, lazy=True)
    req = admitted(pool)
    pool.complete_track(req, 16)

    assert pool.take_track_slot(req) is None

    assert buffer_of(req) == [2, NOT_TAKEN]
    assert req.kv.mamba_last_track_seqlen == 16


def test_a_donated_slot_is_replaced_in_the_buffer_and_in_the_map() -> None:
    pool = table(4)
    req = admitted(pool)
    pool.complete_track(req, 16)
    [fresh] = pool.mamba_allocator.alloc(1, TRACK) or [0]

    donated = pool.donate_mamba_ping_pong_slot(req, fresh)

    assert (donated, fresh) == (2, 4)
    assert buffer_of(req) == mapped(pool, 1) == [4, 3]


@pytest.mark.parametrize(("keep_idx", "freed"), [(None, 3), (0, 2), (1, 2)])
def test_all_of_a_buffer_comes_back_but_what_is_kept(keep_idx: int | None, freed: int) -> None:
    pool = table(3)
    req = admitted(pool)
    if keep_idx is not None:
        pool.mamba_allocator.transfer([buffer_of(req)[keep_idx]], TRACK, TREE)

    pool.free_mamba_cache(req, mamba_ping_pong_track_buffer_to_keep=keep_idx)

    assert held(pool) == (0, 0, freed)
    assert pool.mamba_allocator.held(TREE) == 3 - freed
    # A stale reference would make the next alloc skip the request and orphan a slot.
    assert (req.kv.mamba_pool_idx, req.kv.mamba_ping_pong_track_buffer) == (None, None)
    assert mapped(pool, 1) == [0, 0]
    with pytest.raises(OwnershipError, match="holds no state slot"):
        pool.free_mamba_cache(req)


def test_a_row_that_is_freed_names_no_buffer() -> None:
    pool = table(3)
    req = admitted(pool)

    pool.free(req)

    assert mapped(pool, 1) == [0, 0]
    assert held(pool) == (1, 2, 0)


def test_clear_forgets_all_buffers() -> None:
    pool = table(3)
    admitted(pool)

    pool.clear()

    assert held(pool) == (0, 0, 3)
    assert mapped(pool, 1) == [0, 0]
