"""Transfers between a device pool and a host pool: nothing is lost, whenever and however they end.

The state machine models the pools as plain dicts: the content and place of each run of tokens.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hybridbench.engine.memory.extra_pools import StatePool
from hybridbench.engine.memory.hicache_controller import HiCacheController
from hybridbench.engine.memory.host_pool import MambaPoolHost, MHATokenToKVPoolHost, host_size
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool, MHATokenToKVPool
from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams, Mamba2StateShape, MambaPool
from hybridbench.engine.memory.owners import FREE, HOST, REQ, TREE, OwnershipError
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.slots import MambaSlotAllocator
from hybridbench.engine.memory.transfers import ThreadedTransfers, Transfers
from tests.host_transfers import ChosenTransfers

PAGES = 8


def make_controller(
    transfers: Transfers, page_size: int = 1, host_pages: int = PAGES, hybrid: bool = True
) -> HiCacheController:
    size, dtype = PAGES * page_size, torch.float64
    pool: HybridLinearKVPool | MHATokenToKVPool
    if hybrid:
        pool = HybridLinearKVPool(size, dtype, page_size, 1, 2, [1, 3], "cpu", None)
    else:
        pool = MHATokenToKVPool(size, page_size, dtype, 1, 2, 2, "cpu")
    allocator: TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator
    if page_size == 1:
        allocator = TokenToKVPoolAllocator(size, dtype, "cpu", pool)
    else:
        allocator = PagedTokenToKVPoolAllocator(size, page_size, dtype, "cpu", pool)
    host = MHATokenToKVPoolHost(pool, host_pages * page_size)
    return HiCacheController(allocator, host, transfers)


def fill(controller: HiCacheController, tokens: int, value: float) -> IntArray:
    """Allocate a run of tokens for the tree, with KV ``value``, ``value`` + 1, ..."""
    indices = controller.mem_pool_device_allocator.alloc(tokens, TREE)
    assert indices is not None
    device_rows(controller)[indices] = value + torch.arange(tokens, dtype=torch.float64)[:, None]
    return indices


def device_rows(controller: HiCacheController) -> torch.Tensor:
    """Return the last layer's values by slot."""
    pool = controller.mem_pool_device
    kv = pool.full_kv_pool if isinstance(pool, HybridLinearKVPool) else pool
    return kv.v_buffer[-1][:, 0, :]


def content(controller: HiCacheController, indices: IntArray) -> list[float]:
    rows: list[float] = device_rows(controller)[indices][:, 0].tolist()
    return rows


def settle_all(controller: HiCacheController) -> list[bool]:
    """Settle all acknowledged transfers; return whether each succeeded."""
    succeeded = []
    for queue in (controller.ack_write_queue, controller.ack_load_queue):
        while queue:
            ack = queue.popleft()
            controller.settle(ack)
            succeeded.append(ack.succeeded)
    return succeeded


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("hybrid", [False, True])
def test_kv_comes_back_as_it_went(page_size: int, hybrid: bool) -> None:
    controller = make_controller(ThreadedTransfers(), page_size, hybrid=hybrid)
    tokens = 3 * page_size
    indices = fill(controller, tokens, 5.0)
    written = content(controller, indices)

    write = controller.write(indices, node_id=1)
    assert write is not None
    controller.wait()
    assert settle_all(controller) == [True]
    controller.evict_device(indices)
    device_rows(controller)[:] = 0.0
    load = controller.load(write.host_indices, node_id=1)
    assert load is not None
    controller.wait()

    assert settle_all(controller) == [True]
    assert content(controller, load.device_indices) == written
    assert controller.mem_pool_host.allocator.held(TREE) == tokens


def test_a_full_pool_refuses_and_nothing_begins() -> None:
    transfers = ChosenTransfers()
    controller = make_controller(transfers, host_pages=2)
    indices = fill(controller, 3, 0.0)

    assert controller.write(indices, node_id=1) is None
    assert controller.load(np.arange(1, 7), node_id=1) is None

    assert transfers.started == len(controller) == 0
    assert controller.mem_pool_host.available_size() == 2


@pytest.mark.parametrize("is_load", [False, True])
def test_a_failed_transfer_gives_back_what_it_was_to_fill(is_load: bool) -> None:
    controller = make_controller(ChosenTransfers(fails=lambda number: number == 2))
    indices = fill(controller, 3, 7.0)
    first = controller.write(indices, node_id=1)
    assert first is not None
    host_indices = first.host_indices
    controller.poll()
    settle_all(controller)
    free = controller.mem_pool_host.available_size()

    if is_load:
        controller.load(host_indices, node_id=1)
    else:
        controller.write(indices, node_id=1)
    controller.poll()

    assert settle_all(controller) == [False]
    assert controller.failures == 1
    assert content(controller, indices) == [7.0, 8.0, 9.0]
    assert controller.mem_pool_host.available_size() == free
    assert controller.mem_pool_device_allocator.held(HOST) == 0


def test_an_answer_is_late_if_a_poll_came_too_early_for_it() -> None:
    controller = make_controller(ChosenTransfers(delays=iter([0, 1])))
    controller.write(fill(controller, 1, 0.0), node_id=1)
    controller.poll()
    assert (settle_all(controller), controller.late_acks) == ([True], 0)

    controller.write(fill(controller, 1, 0.0), node_id=2)
    controller.poll()
    assert settle_all(controller) == []
    controller.poll()

    assert (settle_all(controller), controller.late_acks) == ([True], 1)


def test_the_host_pool_refuses_a_second_release() -> None:
    controller = make_controller(ChosenTransfers())
    write = controller.write(fill(controller, 2, 0.0), node_id=1)
    assert write is not None
    controller.poll()
    settle_all(controller)
    controller.evict_host(write.host_indices)

    with pytest.raises(OwnershipError):
        controller.evict_host(write.host_indices)


def test_host_sizes_are_whole_pages() -> None:
    assert host_size(100, 2.0, 1) == 200
    assert host_size(96, 0.7, 16) == 64
    assert host_size(16, 0.1, 16) == 16


class TransferMachine(RuleBasedStateMachine):
    """Runs of tokens move to the host and back, with chosen delays and failures."""

    @initialize(page_size=st.sampled_from([1, 4]))
    def build(self, page_size: int) -> None:
        self.page_size = page_size
        self.failing: set[int] = set()
        self.delays: list[int] = []
        chosen = ChosenTransfers(
            iter(lambda: self.delays.pop() if self.delays else 0, None),
            lambda number: number in self.failing,
        )
        self.controller = make_controller(chosen, page_size, host_pages=5)
        # For each run: its content, and its slots on the device and on the host.
        self.texts: dict[int, list[float]] = {}
        self.device: dict[int, IntArray] = {}
        self.host: dict[int, IntArray] = {}
        self.moving: dict[int, int] = {}
        self.runs = self.started = 0

    @rule(pages=st.integers(1, 3))
    def compute(self, pages: int) -> None:
        tokens = pages * self.page_size
        if self.controller.mem_pool_device_allocator.available_size() < tokens:
            return
        self.runs += 1
        indices = fill(self.controller, tokens, 100.0 * self.runs)
        self.device[self.runs] = indices
        self.texts[self.runs] = content(self.controller, indices)

    def _begin(self, data: st.DataObject, source: dict[int, IntArray], *, is_load: bool) -> None:
        idle = sorted(source.keys() - self.moving.keys())
        if not idle:
            return
        run = data.draw(st.sampled_from(idle))
        self.delays.append(data.draw(st.integers(0, 2)))
        if data.draw(st.booleans()):
            self.failing.add(self.started + 1)
        begin = self.controller.load if is_load else self.controller.write
        account = (
            self.controller.mem_pool_device_allocator
            if is_load
            else self.controller.mem_pool_host.allocator
        )
        fits = account.available_size() >= len(source[run])
        operation = begin(source[run], run)
        assert (operation is not None) == fits
        if operation is None:
            self.delays.pop()
            self.failing.discard(self.started + 1)
            return
        self.started += 1
        self.moving[run] = operation.number

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        only_there = {run: at for run, at in self.device.items() if run not in self.host}
        self._begin(data, only_there, is_load=False)

    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        only_there = {run: at for run, at in self.host.items() if run not in self.device}
        self._begin(data, only_there, is_load=True)

    @rule(waits=st.booleans())
    def answer(self, waits: bool) -> None:
        if waits:
            self.controller.wait()
        else:
            self.controller.poll()
        for queue in (self.controller.ack_write_queue, self.controller.ack_load_queue):
            while queue:
                operation, succeeded = ack = queue.popleft()
                self.controller.settle(ack)
                run = operation.node_id
                assert self.moving.pop(run) == operation.number
                assert succeeded == (operation.number not in self.failing)
                if succeeded and operation.is_load:
                    self.device[run] = operation.device_indices
                elif succeeded:
                    self.host[run] = operation.host_indices

    @precondition(lambda self: self.device)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """Evict an idle run from one side; forget the run with its last copy."""
        run = data.draw(st.sampled_from(sorted(self.texts)))
        if run in self.moving:
            return
        sides = [side for side in (self.device, self.host) if run in side]
        side = data.draw(st.sampled_from(sides))
        if side is self.device:
            self.controller.evict_device(self.device.pop(run))
        else:
            self.controller.evict_host(self.host.pop(run))
        if len(sides) == 1:
            del self.texts[run]

    @invariant()
    def every_slot_has_its_holder(self) -> None:
        ongoing = self.controller.ongoing()
        loads = [operation.device_indices for operation in ongoing if operation.is_load]
        writes = [operation.host_indices for operation in ongoing if not operation.is_load]
        device = self.controller.mem_pool_device_allocator
        host = self.controller.mem_pool_host.allocator
        for account, owner, held in (
            (device, TREE, list(self.device.values())),
            (device, HOST, loads),
            (host, TREE, list(self.host.values())),
            (host, HOST, writes),
        ):
            expected = sorted(int(slot) for slots in held for slot in slots)
            assert account.slots_of(owner).tolist() == expected
        for account in (device, host):
            assert account.held(REQ) == 0
            assert account.held(FREE) == account.available_size()

    @invariant()
    def what_is_on_the_device_is_what_was_computed(self) -> None:
        for run, indices in self.device.items():
            assert content(self.controller, indices) == self.texts[run]


TestTransferMachine = TransferMachine.TestCase
TestTransferMachine.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.mark.parametrize(("tokens", "states"), [(5, 1), (4, 2)])
def test_a_copy_without_room_in_one_pool_takes_nothing_of_the_others(
    tokens: int, states: int
) -> None:
    """Host and device each have room for 4 tokens and 1 state."""
    params = Mamba2CacheParams(Mamba2StateShape(((2, 1),), (1, 1, 1), conv_kernel=2), (0,))
    device_states = MambaPool(1, params, (0,), "cpu", torch.float64)
    accounts = MambaSlotAllocator(1), MambaPoolHost(device_states, 1)
    pool = StatePool(accounts[0], device_states, accounts[1])
    kv = MHATokenToKVPool(4, 1, torch.float64, 1, 1, 1, "cpu")
    allocator = TokenToKVPoolAllocator(4, torch.float64, "cpu", kv)
    controller = HiCacheController(allocator, MHATokenToKVPoolHost(kv, 4), ChosenTransfers())
    indices, slots = np.arange(1, tokens + 1), np.arange(1, states + 1)

    assert controller.write(indices, 1, [(pool, slots)]) is None
    assert controller.load(indices, 1, [(pool, slots)]) is None

    assert len(controller) == 0
    for account in (allocator, controller.mem_pool_host.allocator):
        assert account.held(FREE) == 4
    assert [account.held(FREE) for account in (pool.device_account, pool.host_account)] == [1, 1]
