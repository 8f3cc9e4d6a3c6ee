"""How requests hand their KV and states to the tree: between chunks, at the end, when dropped."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hybridbench.engine.cache.base import (
    CacheInitParams,
    EvictParams,
    EvictResult,
    InsertParams,
    MatchPrefixParams,
)
from hybridbench.engine.cache.chunk_cache import ChunkCache
from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.memory.owners import REQ, TRACK, TREE
from tests.unit.engine.cache.trees import Buffers, HybridTree, PagedTree, TreeReq, tokens_in


def start(tree: HybridTree, ids: Sequence[int], rid: str = "r") -> TreeReq:
    """Match, lock and take a row, as admission does, without computing anything."""
    req = TreeReq(rid, list(ids))
    matched = tree.cache.match_prefix(
        MatchPrefixParams(RadixKey(req.fill_ids[:-1]), cow_mamba=True, req=req)
    )
    tree.cache.inc_lock_ref(matched.last_device_node)
    req.kv.last_node = matched.last_device_node
    rows = tree.rows.alloc([req])
    assert rows is not None
    hit = matched.cache_protected_len
    tree.rows.write((rows[0], slice(0, hit)), matched.device_indices)
    req.kv.cache_protected_len = req.kv.kv_committed_len = req.kv.kv_allocated_len = hit
    return req


def compute(tree: HybridTree | PagedTree, req: TreeReq, end: int) -> None:
    """Allocate positions up to ``end`` and mark them as committed."""
    row, begin = req.kv.req_pool_idx, req.kv.kv_allocated_len
    assert row is not None
    last = int(tree.rows.req_to_token[row, begin - 1]) if begin else -1
    fresh = tree.kv.alloc_extend([begin], [end], [last], end - begin)
    assert fresh is not None
    tree.rows.write((row, slice(begin, end)), fresh)
    req.kv.kv_committed_len = req.kv.kv_allocated_len = end


def row(tree: HybridTree | PagedTree, req: TreeReq, end: int) -> list[int]:
    assert req.kv.req_pool_idx is not None
    indices: list[int] = tree.rows.req_to_token[req.kv.req_pool_idx, :end].tolist()
    return indices


def test_a_finished_request_gives_its_kv_and_its_very_slot_to_the_tree() -> None:
    tree = HybridTree()
    req = start(tree, [1, 2, 3])
    slot = req.kv.mamba_pool_idx
    compute(tree, req, 3)

    tree.cache.cache_finished_req(req)

    assert tree.node([1, 2, 3]).mamba_value == slot
    assert req.kv.mamba_pool_idx is None
    assert req.kv.last_node is None
    assert (tree.kv.held(REQ), tree.mamba.held(REQ)) == (0, 0)
    assert tree.rows.get_mamba_indices([1]).tolist() == [0]
    tree.rows.free(req)
    tree.audit()


def test_a_finished_request_whose_prefix_is_there_frees_duplicates_and_slot() -> None:
    tree = HybridTree()
    twins = [start(tree, [1, 2, 3], rid) for rid in "ab"]
    for req in twins:
        compute(tree, req, 3)

    for req in twins:
        tree.cache.cache_finished_req(req)

    assert tokens_in(tree.cache) == 3
    assert (tree.kv.held(REQ), tree.mamba.held(REQ), tree.mamba.held(TREE)) == (0, 0, 1)
    tree.audit()


def test_a_dropped_request_frees_what_is_its_own_and_leaves_the_prefix() -> None:
    tree = HybridTree()
    tree.insert([1, 2])
    req = start(tree, [1, 2, 3, 4])
    compute(tree, req, 4)

    tree.cache.cache_finished_req(req, is_insert=False)

    assert tokens_in(tree.cache) == 2
    assert (tree.kv.held(REQ), tree.mamba.held(REQ)) == (0, 0)
    assert tree.cache.protected_size() == 0
    tree.audit()


def test_positions_allocated_but_never_committed_are_freed_at_the_end() -> None:
    tree = HybridTree()
    req = start(tree, [1, 2, 3])
    compute(tree, req, 3)
    req.kv.kv_committed_len = 2

    tree.cache.cache_finished_req(req)

    assert tokens_in(tree.cache) == 2
    assert tree.kv.held(REQ) == 0
    tree.audit()


def test_only_committed_tokens_reach_the_tree_outputs_among_them() -> None:
    tree = HybridTree()
    req = start(tree, [1, 2])
    compute(tree, req, 2)
    req.output_ids = [7, 8]
    compute(tree, req, 3)

    tree.cache.cache_finished_req(req)

    assert len(tree.match([1, 2, 7, 8]).device_indices) == 3


def test_between_chunks_the_tree_gets_a_copy_and_the_request_a_lock() -> None:
    tree = HybridTree()
    req = start(tree, [1, 2, 3, 4, 5])
    slot = req.kv.mamba_pool_idx
    assert slot is not None
    compute(tree, req, 3)
    tree.states.mamba_cache.temporal[:, slot] = 4.0

    tree.cache.cache_unfinished_req(req, chunked=True)

    node = tree.node([1, 2, 3])
    assert req.kv.mamba_pool_idx == slot
    assert node.mamba_value not in (None, slot)
    assert bool((tree.states.mamba_cache.temporal[:, node.mamba_value] == 4).all())
    assert (req.kv.last_node, req.kv.cache_protected_len) == (node, 3)
    assert req.kv.prefix_indices.tolist() == [1, 2, 3]
    assert node.full_lock_ref == 1
    assert (tree.kv.held(REQ), tree.kv.held(TREE)) == (0, 3)
    # The request continues in its own slot; its later state must not change the tree's copy.
    tree.states.mamba_cache.temporal[:, slot] = 9.0
    assert bool((tree.states.mamba_cache.temporal[:, node.mamba_value] == 4).all())
    compute(tree, req, 5)
    tree.cache.cache_finished_req(req)
    assert tree.cache.protected_size() == 0
    tree.audit()


def test_a_chunk_that_somebody_else_cached_first_is_read_from_the_tree() -> None:
    tree = HybridTree()
    late, early = start(tree, [1, 2, 3, 4]), start(tree, [1, 2, 3, 4])
    for req in (late, early):
        compute(tree, req, 3)
    assert row(tree, late, 3) == [1, 2, 3]

    tree.cache.cache_unfinished_req(early)
    tree.cache.cache_unfinished_req(late)

    assert row(tree, late, 3) == row(tree, early, 3) == [4, 5, 6]
    assert tree.kv.owner_of(1) not in (REQ, TREE)
    assert tree.node([1, 2, 3]).full_lock_ref == 2
    assert (tree.mamba.held(REQ), tree.mamba.held(TREE)) == (2, 1)
    tree.audit()


def test_for_the_copy_another_state_is_evicted_if_none_is_free() -> None:
    tree = HybridTree(mamba_slots=2)
    tree.insert([7, 8])
    req = start(tree, [1, 2, 3])
    compute(tree, req, 2)

    tree.cache.cache_unfinished_req(req, chunked=True)

    assert len(tree.match([7, 8]).device_indices) == 0
    assert req.kv.cache_protected_len == 2
    tree.audit()


def test_without_a_slot_for_the_copy_the_chunk_is_simply_not_cached() -> None:
    tree = HybridTree(mamba_slots=1)
    req = start(tree, [1, 2, 3])
    compute(tree, req, 2)

    tree.cache.cache_unfinished_req(req, chunked=True)

    assert tree.cache.node_count() == 0
    assert req.kv.cache_protected_len == 0
    assert req.kv.prefix_indices.tolist() == [1, 2]
    assert (tree.kv.held(REQ), tree.mamba.held(REQ)) == (2, 1)
    compute(tree, req, 3)
    tree.cache.cache_finished_req(req)
    assert tokens_in(tree.cache) == 3
    tree.audit()


def test_pages_that_are_not_full_stay_with_the_request_until_it_ends() -> None:
    tree = PagedTree(page_size=4)
    req = TreeReq("r", [*range(1, 11)])
    tree.rows.alloc([req])
    compute(tree, req, 6)

    tree.cache.cache_unfinished_req(req)

    assert req.kv.cache_protected_len == 4
    assert len(req.kv.prefix_indices) == 6
    assert (tree.kv.held(TREE), tree.kv.held(REQ)) == (4, 4)
    compute(tree, req, 10)
    tree.cache.cache_finished_req(req)
    assert tokens_in(tree.cache) == 8
    assert tree.kv.held(REQ) == 0
    assert tree.cache.protected_size() == 0
    tree.audit()


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_two_requests_with_one_prompt_share_its_whole_pages(page_size: int) -> None:
    tree = PagedTree(kv_tokens=1024, page_size=page_size)
    ids = [*range(1, 151)]
    for rid in "ab":
        req = TreeReq(rid, ids)
        tree.rows.alloc([req])
        compute(tree, req, 150)
        tree.cache.cache_unfinished_req(req)
        tree.cache.cache_finished_req(req)
        tree.rows.free(req)
        tree.audit()

    assert tokens_in(tree.cache) == 150 // page_size * page_size
    assert tree.kv.held(REQ) == 0
    assert len(tree.match(ids).device_indices) == 150 // page_size * page_size


def test_a_dropped_request_of_a_paged_tree_frees_its_pages() -> None:
    tree = PagedTree(page_size=4)
    req = TreeReq("r", [1, 2, 3, 4, 5])
    tree.rows.alloc([req])
    compute(tree, req, 5)

    tree.cache.cache_finished_req(req, is_insert=False)

    assert tree.kv.available_size() == 64
    assert tree.cache.node_count() == 0


def test_the_chunk_cache_reuses_nothing_and_frees_everything() -> None:
    tree = HybridTree()
    cache = ChunkCache(CacheInitParams(tree.rows, tree.kv, 1))
    req = TreeReq("r", [1, 2, 3])
    tree.rows.alloc([req])
    matched = cache.match_prefix(MatchPrefixParams(RadixKey([1, 2]), cow_mamba=True, req=req))
    req.kv.last_node = matched.last_device_node
    cache.inc_lock_ref(matched.last_device_node)
    compute(tree, req, 2)

    cache.cache_unfinished_req(req, chunked=True)
    assert req.kv.prefix_indices.tolist() == row(tree, req, 2)
    compute(tree, req, 3)
    cache.cache_finished_req(req)

    assert (tree.kv.held(REQ), tree.mamba.held(REQ)) == (0, 0)
    assert len(cache.match_prefix(MatchPrefixParams(RadixKey([1, 2]))).device_indices) == 0
    assert cache.evict(EvictParams(num_tokens=5, mamba_num=5)) == EvictResult(0, 0)
    assert cache.insert(InsertParams(RadixKey([1]), [1], 1)) == (0, 0, True)
    assert (cache.node_count(), len(cache.tree_slots().kv_indices)) == (0, 0)


def tracking_tree(page_size: int = 4, mamba_slots: int = 16) -> HybridTree:
    return HybridTree(mamba_slots=mamba_slots, page_size=page_size, buffers=Buffers(grid=4))


def track(tree: HybridTree, req: TreeReq, seqlen: int) -> int:
    """Save the state of ``req`` after ``seqlen`` tokens, as a step does; return its slot."""
    slot = tree.rows.take_track_slot(req)
    assert slot is not None
    tree.rows.complete_track(req, seqlen)
    return slot


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_tracked_request_ends_with_its_saved_state_and_the_kv_up_to_it(page_size: int) -> None:
    tree = tracking_tree(page_size)
    req = start(tree, list(range(11)))
    compute(tree, req, 10)
    track(tree, req, 4)
    slot = track(tree, req, 8)

    tree.cache.cache_finished_req(req)

    assert tree.node(range(8)).mamba_value == slot
    assert (tree.kv.held(REQ), tree.kv.held(TREE)) == (0, 8)
    assert (tree.mamba.held(REQ), tree.mamba.held(TRACK), tree.mamba.held(TREE)) == (0, 0, 1)
    assert tree.cache.events.track_donations == 1
    tree.rows.free(req)
    tree.audit()


def test_a_request_without_a_saved_state_leaves_nothing_new() -> None:
    tree = tracking_tree()
    req = start(tree, [1, 2, 3])
    compute(tree, req, 3)

    tree.cache.cache_finished_req(req)

    assert tree.cache.node_count() == 0
    assert (tree.kv.held(REQ), tree.mamba.available_size()) == (0, 16)


def test_a_saved_state_that_the_tree_has_comes_back_with_the_rest() -> None:
    tree = tracking_tree()
    twins = [start(tree, list(range(9)), rid) for rid in "ab"]
    for req in twins:
        compute(tree, req, 9)
        track(tree, req, 8)

    for req in twins:
        tree.cache.cache_finished_req(req)
        tree.rows.free(req)

    assert tree.cache.events.track_donations == 1
    assert (tree.mamba.held(TRACK), tree.mamba.held(TREE), tree.kv.held(TREE)) == (0, 1, 8)
    tree.audit()


def test_between_chunks_a_tracked_request_keeps_the_kv_behind_its_saved_state() -> None:
    tree = tracking_tree()
    req = start(tree, list(range(20)))
    compute(tree, req, 11)
    slot = track(tree, req, 8)
    before = row(tree, req, 11)

    tree.cache.cache_unfinished_req(req, chunked=True)

    assert tree.node(range(8)).mamba_value == slot
    assert (req.kv.cache_protected_len, req.kv.mamba_last_track_seqlen) == (8, None)
    assert req.kv.prefix_indices.tolist() == row(tree, req, 11) == before
    assert slot not in (req.kv.mamba_ping_pong_track_buffer or [])
    assert (tree.kv.held(TREE), tree.kv.held(REQ), tree.mamba.held(TRACK)) == (8, 4, 2)
    assert tree.cache.protected_size() == 8


def test_without_a_slot_to_replace_it_a_saved_state_is_not_donated() -> None:
    tree = tracking_tree(mamba_slots=3)
    req = start(tree, list(range(20)))
    compute(tree, req, 9)
    slot = track(tree, req, 8)

    tree.cache.cache_unfinished_req(req)

    assert tree.cache.node_count() == 0
    assert req.kv.mamba_last_track_seqlen == 8
    assert slot in (req.kv.mamba_ping_pong_track_buffer or [])
    tree.cache.cache_finished_req(req)
    assert tree.node(range(8)).mamba_value == slot


def test_a_dropped_request_gives_its_track_buffer_back() -> None:
    tree = tracking_tree()
    req = start(tree, list(range(9)))
    compute(tree, req, 9)
    track(tree, req, 8)

    tree.cache.cache_finished_req(req, is_insert=False)

    assert (tree.mamba.available_size(), tree.kv.held(REQ)) == (16, 0)


def test_a_match_ends_at_a_page_border_and_branching_is_a_line_of_the_grid() -> None:
    tree = tracking_tree()
    req = start(tree, list(range(17)))
    compute(tree, req, 16)
    track(tree, req, 16)
    tree.cache.cache_finished_req(req)

    whole = tree.match([*range(16), 90, 91])
    forked = tree.match([*range(11), 90])

    assert (whole.cache_protected_len, whole.mamba_branching_seqlen) == (16, None)
    assert (forked.cache_protected_len, forked.mamba_branching_seqlen) == (0, 8)


def test_a_state_inside_a_page_is_refused() -> None:
    tree = tracking_tree()
    value, slots = tree.kv.alloc(8), tree.mamba.alloc(1, TRACK)
    assert value is not None
    assert slots is not None

    with pytest.raises(ValueError, match="a state after 6 tokens is inside a page of 4"):
        tree.cache.insert(InsertParams(RadixKey(range(6)), value[:6], slots[0], mamba_owner=TRACK))


def test_tree_and_rows_must_agree_on_track_buffers_and_chunks_on_pages() -> None:
    plain, tracking = HybridTree(), tracking_tree()

    with pytest.raises(ValueError, match="the same for the tree and the rows"):
        MambaRadixCache(CacheInitParams(plain.rows, plain.kv, 1, enable_mamba_extra_buffer=True))
    with pytest.raises(ValueError, match="mamba_cache_chunk_size 64 is not a multiple of page_si"):
        MambaRadixCache(
            CacheInitParams(tracking.rows, tracking.kv, 3, enable_mamba_extra_buffer=True)
        )
