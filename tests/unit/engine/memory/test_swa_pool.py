"""KV of layers with and without a window, each in its own pool."""

from __future__ import annotations

import pytest
import torch

from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator
from hybridbench.engine.memory.swa_pool import SWAKVPool


def two_pools(page_size: int = 1) -> tuple[SWAKVPool, SWATokenToKVPoolAllocator]:
    pool = SWAKVPool(
        8, 4, page_size, torch.float32, 1, 2, [0, 2], [1], "cpu"
    )  # fmt: skip
    return pool, SWATokenToKVPoolAllocator(8, 4, page_size, torch.float32, "cpu", pool)


def test_each_layer_has_the_rows_of_its_pool() -> None:
    pool, _ = two_pools()

    assert [len(pool.get_key_buffer(layer)) for layer in range(3)] == [5, 9, 5]
    assert pool.get_kv_size_bytes() == ((9 + 2 * 5) * 8,) * 2
    with pytest.raises(ValueError, match="layer_id=3"):
        pool.get_kv_buffer(3)


def test_what_a_layer_stores_at_a_location_is_read_there() -> None:
    pool, allocator = two_pools()
    spare = allocator.alloc(2)
    loc = allocator.alloc(2)
    assert spare is not None
    assert loc is not None
    allocator.free_swa(spare)
    kv = torch.arange(4.0).view(2, 1, 2)
    rows = torch.from_numpy(pool.translate_loc_from_full_to_swa(loc))

    pool.set_kv_buffer(2, rows, kv, kv + 1)

    keys, values = pool.get_kv_buffer(2)
    assert torch.equal(keys[rows], kv)
    assert torch.equal(values[rows], kv + 1)
    assert not pool.translate_loc_from_full_to_swa(spare).any()


def test_a_host_copy_has_all_layers_and_leaves_out_what_the_window_left() -> None:
    pool, allocator = two_pools(page_size=2)
    source, target = allocator.alloc(2), allocator.alloc(2)
    assert source is not None
    assert target is not None
    swa_source = pool.translate_loc_from_full_to_swa(source)
    pool.full_kv_pool.k_buffer[0][source] = 1.0
    pool.swa_kv_pool.v_buffer[1][swa_source] = 2.0
    saved = pool.get_cpu_copy(source)
    allocator.free_swa(source)

    pool.load_cpu_copy(saved, target)
    pool.load_cpu_copy(saved, source)

    swa_target = pool.translate_loc_from_full_to_swa(target)
    assert float(pool.get_key_buffer(1)[target].sum()) == 4
    assert float(pool.get_value_buffer(2)[swa_target].sum()) == 8


def test_moving_copies_rows_in_both_pools() -> None:
    pool, allocator = two_pools()
    source, target = allocator.alloc(1), allocator.alloc(1)
    assert source is not None
    assert target is not None
    pool.full_kv_pool.k_buffer[0][source] = 1.0
    pool.swa_kv_pool.k_buffer[0][pool.translate_loc_from_full_to_swa(source)] = 2.0

    pool.move_kv_cache(target, source)

    assert float(pool.get_key_buffer(1)[target].sum()) == 2
    rows = pool.translate_loc_from_full_to_swa(target)
    assert float(pool.get_key_buffer(0)[rows].sum()) == 4
