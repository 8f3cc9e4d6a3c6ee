"""SGLang's tests of StreamingSession and SessionSlot, run on ours through the shim.

They use the cache without a scheduler; requests get rows and lengths by hand.
"""

from __future__ import annotations

import pytest
import torch

from hybridbench.engine.cache.base import CacheInitParams, DecLockRefParams
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.memory.owners import FREE
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator
from hybridbench.engine.memory.req_to_token import ReqToTokenPool
from hybridbench.engine.sessions.session_slot import SessionSlot
from tests.peers.session_shim import Req, StreamingSession
from tests.peers.shim import RadixKey


class World:
    """Rows, pages and a session cache around a radix tree."""

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size
        self.rows = ReqToTokenPool(size=4, max_context_len=128)
        self.kv = PagedTokenToKVPoolAllocator(
            1024, page_size, torch.float32, "cpu", kvcache=None, need_sort=False
        )
        params = CacheInitParams(self.rows, self.kv, page_size)
        self.cache = StreamingSession(RadixCache(params))
        self.ample = self.kv.available_size()

    def first_turn(self, committed: int, allocated: int, outputs: int = 0) -> Req:
        """Return a turn that owns its whole row."""
        req = Req("session-a", list(range(committed - outputs)), list(range(outputs)))
        [row] = self.rows.alloc([req]) or []
        locations = self.kv.alloc_extend([0], [allocated], [-1], allocated)
        assert locations is not None
        self.rows.write((row, slice(0, allocated)), locations)
        req.kv.kv_committed_len, req.kv.kv_allocated_len = committed, allocated
        req.kv.last_node = self.cache.root_node
        return req

    def finished(self, req: Req) -> SessionSlot:
        self.cache.cache_finished_req(req)
        return self.cache.slots["session-a"]

    def freed(self) -> int:
        return self.ample - self.kv.available_size()


def test_a_round_trip_keeps_everything_the_request_had() -> None:
    world = World()
    req = world.first_turn(committed=4, allocated=4)
    row, session = req.kv.req_pool_idx, req.session

    slot = world.finished(req)

    assert req.kv.req_pool_idx is None
    assert (slot.kv.req_pool_idx, slot.kv.kv_committed_len, slot.kv.kv_allocated_len) == (row, 4, 4)
    following = Req("session-a", list(range(6)))
    following.session = session
    indices = world.cache.match(RadixKey(list(range(5))), following)
    assert (following.kv.req_pool_idx, following.kv.kv_committed_len) == (row, 4)
    assert indices.dtype == torch.int64
    assert indices.tolist() == world.rows.req_to_token[slot.kv.row, :4].tolist()


def test_a_session_keeps_its_slot_when_an_input_is_refused_before_the_match() -> None:
    world = World(page_size=16)
    slot = world.finished(world.first_turn(committed=48, allocated=48))
    refused = Req("session-a", list(range(64)))
    refused.abort()

    assert not world.cache.take_back(refused)

    assert (slot.kv.kv_committed_len, slot.kv.kv_allocated_len) == (48, 48)
    assert refused.kv.is_empty


def test_an_abort_in_the_first_turn_frees_all_of_it() -> None:
    world = World()
    req = world.first_turn(committed=8, allocated=20)
    req.abort()

    world.cache.cache_finished_req(req)
    world.rows.free(req)

    assert "session-a" not in world.cache.slots
    assert world.freed() == 0
    assert world.rows.available_size() == 4


def test_an_abort_in_a_later_turn_frees_the_sessions_slot() -> None:
    world = World()
    world.finished(world.first_turn(committed=50, allocated=50))
    req = Req("session-a", list(range(61)))
    world.cache.match(RadixKey(list(range(60))), req)
    more = world.kv.alloc(10)
    assert more is not None
    world.rows.write((req.kv.row, slice(50, 60)), more)
    req.kv.kv_committed_len = req.kv.kv_allocated_len = 60
    req.abort()

    world.cache.cache_finished_req(req)
    world.rows.free(req)

    assert world.cache.slots == {}
    assert world.freed() == 0


@pytest.mark.parametrize(("page_size", "left"), [(1, 40), (16, 48)])
def test_what_lies_behind_the_answer_is_trimmed(page_size: int, left: int) -> None:
    world = World(page_size)
    req = world.first_turn(committed=40, allocated=80, outputs=8)

    slot = world.finished(req)

    assert (slot.kv.kv_committed_len, slot.kv.kv_allocated_len) == (40, 40)
    assert world.freed() == left


@pytest.mark.parametrize(("page_size", "left"), [(1, 33), (16, 48)])
def test_a_tail_is_freed_from_the_next_page_on_and_only_once(page_size: int, left: int) -> None:
    world = World(page_size)
    slot = world.finished(world.first_turn(committed=64, allocated=64))
    for _ in range(2):
        again = Req("session-a", list(range(34)))
        assert len(world.cache.match(RadixKey(list(range(33))), again)) == 33
        assert (slot.kv.kv_committed_len, slot.kv.kv_allocated_len) == (33, 33)
        assert world.freed() == left
        assert world.cache.take_back(again)


def test_sessions_hold_whole_pages_but_not_those_of_rows_in_a_batch() -> None:
    world = World(page_size=16)
    slot = world.finished(world.first_turn(committed=40, allocated=40))

    assert world.cache.session_held_tokens() == 48
    assert world.cache.session_held_req_count() == 1
    assert world.cache.session_held_mamba_slots() == 0
    assert world.cache.session_held_tokens({slot.kv.row}) == 0
    assert world.cache.session_held_req_count({slot.kv.row}) == 0
    assert world.cache.session_held_tokens({slot.kv.row + 1}) == 48


def test_a_release_frees_the_row_and_what_is_not_the_trees_and_unlocks_the_rest() -> None:
    world = World(page_size=16)
    req = world.first_turn(committed=40, allocated=40)
    world.cache.inc_lock_ref(world.cache.root_node)
    req.kv.lock_receipt = DecLockRefParams()
    world.cache.cache_unfinished_req(req)
    assert world.cache.protected_size() == req.kv.cache_protected_len == 32
    world.finished(req)

    world.cache.release_session("session-a")
    world.cache.release_session("session-a")

    assert world.cache.slots == {}
    assert (world.cache.protected_size(), world.cache.evictable_size()) == (0, 32)
    assert world.freed() == 32
    assert world.kv.held(FREE) == world.ample - 32
    assert world.rows.available_size() == 4
