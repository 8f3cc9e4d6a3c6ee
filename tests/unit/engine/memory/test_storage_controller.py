"""Storage behind a host pool: its contents, the holder of a prefetch's slots, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import repeat

import numpy as np
import pytest
import torch

from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.storage_tier import page_hashes
from hybridbench.engine.memory.free_list import SlicedFreeList
from hybridbench.engine.memory.hicache_storage import (
    HiCacheMemory,
    StorageError,
    UnreliableStorage,
)
from hybridbench.engine.memory.host_pool import MHATokenToKVPoolHost
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.kv_pool import KVHostCopy, MHATokenToKVPool
from hybridbench.engine.memory.owners import FREE, HOST
from hybridbench.engine.memory.storage_controller import StorageController
from tests.host_transfers import ChosenStorageIO

PAGE = 2
NAMES = [b"a", b"b", b"c", b"d"]


def page_of(value: float) -> KVHostCopy:
    rows = torch.full((PAGE, 1, 1), value, dtype=torch.float64)
    return KVHostCopy([rows], [rows + 0.5])


def make_storage(pages: int = 8) -> HiCacheMemory:
    like = MHATokenToKVPool(PAGE, PAGE, torch.float64, 1, 1, 1, "cpu")
    return HiCacheMemory(like, pages, PAGE)


class World:
    """A host pool of 8 tokens, and a storage with the first three of four pages."""

    def __init__(self, paces: Iterator[int] | None = None) -> None:
        pool = MHATokenToKVPool(8, PAGE, torch.float64, 1, 1, 1, "cpu")
        self.host = MHATokenToKVPoolHost(pool, 8)
        self.storage = make_storage()
        for number, name in enumerate(NAMES[:3]):
            self.storage.set(name, page_of(float(number)))
        self.controller = StorageController(
            self.host, self.storage, PAGE, ChosenStorageIO(paces), prefetch_threshold=PAGE
        )

    def alloc(self, tokens: int = 8) -> IntArray:
        indices = self.host.alloc(tokens)
        assert indices is not None
        return indices

    def keys(self, indices: IntArray) -> list[float]:
        keys: list[float] = self.host.rows.k_buffer[0][
            torch.from_numpy(indices.copy()), 0, 0
        ].tolist()
        return keys


def test_a_full_storage_loses_the_page_used_longest_ago() -> None:
    storage = make_storage(pages=2)
    for number, name in enumerate(NAMES[:2]):
        storage.set(name, page_of(float(number)))
    assert storage.get(b"a") is not None

    storage.set(b"c", page_of(2.0))

    assert [storage.exists(name) for name in NAMES[:3]] == [True, False, True]
    kept = storage.get(b"a")
    assert kept is not None
    assert kept.keys[0].flatten().tolist() == [0.0, 0.0]
    assert kept.values[0].flatten().tolist() == [0.5, 0.5]


def test_of_an_unreliable_storage_as_many_calls_fail_as_it_says() -> None:
    storage = UnreliableStorage(make_storage(), error_rate=0.25, seed=3)
    failures = 0
    for _ in range(400):
        try:
            storage.set(b"a", page_of(1.0))
        except StorageError:
            failures += 1

    assert 70 < failures < 130
    assert storage.exists(b"a")


def test_a_page_is_named_by_all_tokens_up_to_its_end() -> None:
    text = page_hashes(RadixKey([1, 2, 3, 4]), PAGE)

    assert page_hashes(RadixKey([1, 2]), PAGE) == text[:1]
    assert page_hashes(RadixKey([9, 2, 3, 4]), PAGE)[1] != text[1]
    assert page_hashes(RadixKey([1, 2, 3, 4], "tenant"), PAGE)[0] != text[0]


def test_a_prefetch_brings_what_there_is_and_gives_the_rest_back() -> None:
    world = World()
    operation = world.controller.prefetch(world.alloc(), NAMES)

    world.controller.poll()

    assert operation.is_done
    assert world.host.allocator.held(HOST) == 6
    tokens = world.controller.terminate_prefetch(operation)
    assert tokens == 6
    assert world.keys(operation.host_indices[:tokens]) == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    assert len(world.controller) == 0


def test_a_prefetch_that_ends_early_holds_its_tail_until_its_thread_has_let_go() -> None:
    world = World(paces=repeat(1))
    operation = world.controller.prefetch(world.alloc(), NAMES)
    world.controller.poll()

    tokens = world.controller.terminate_prefetch(operation)
    assert tokens == PAGE
    assert world.controller.prefetching_size() == 8 - PAGE
    assert world.host.allocator.held(FREE) == 0
    for _ in range(3):
        world.controller.poll()

    assert operation.completed_tokens == PAGE
    assert world.host.allocator.held(HOST) == PAGE
    assert len(world.controller) == 0


def test_less_than_the_threshold_is_not_read() -> None:
    world = World()
    operation = world.controller.prefetch(world.alloc(4), [b"a", b"?"])
    world.controller.prefetch_threshold = 3
    world.controller.poll()

    assert operation.completed_tokens == 0
    assert world.host.allocator.held(FREE) == 8


def test_a_write_that_fails_is_over_and_what_it_wrote_before_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    healthy = world.storage.set

    def fail(key: bytes, value: KVHostCopy) -> None:
        if key == b"e":
            raise StorageError("disk full")
        healthy(key, value)

    monkeypatch.setattr(world.storage, "set", fail)
    number = world.controller.write_storage(world.alloc(6), [b"d", b"e", b"f"])
    world.controller.poll()

    assert list(world.controller.ack_backup_queue) == [number]
    assert world.controller.failures == 1
    assert [world.storage.exists(name) for name in (b"d", b"e", b"f")] == [True, False, False]


@pytest.mark.parametrize(
    ("error", "failure"),
    [(StorageError("disk full"), ""), (ValueError("3 rows for 4 slots"), "ValueError: 3 rows")],
)
def test_only_an_error_that_no_storage_raises_is_a_failed_copy(
    error: Exception, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()

    def fail(key: bytes, value: KVHostCopy) -> None:
        raise error

    monkeypatch.setattr(world.storage, "set", fail)
    world.controller.write_storage(world.alloc(2), [b"d"])
    with suppress(ValueError):  # of the fake, which catches only errors of a storage
        world.controller.poll()

    assert world.controller.failure.startswith(failure)
    assert bool(world.controller.failure) == bool(failure)


def test_what_a_sliced_free_list_gives_is_a_view_of_the_list_as_it_was() -> None:
    free = SlicedFreeList(6)
    first = free.take(2)
    second = free.take(2)
    assert np.shares_memory(first.base, second)

    free.put(first)
    third = free.take(2)

    assert second.tolist() == [3, 4]
    assert third.tolist() == [5, 6]
    assert not np.shares_memory(second, third)
    assert free.snapshot().tolist() == [1, 2]
