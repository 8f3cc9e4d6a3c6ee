"""Keys and values by position."""

from __future__ import annotations

import pytest
import torch

from hybridbench.engine.memory.kv_pool import HybridLinearKVPool, MHATokenToKVPool
from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams, Mamba2StateShape, MambaPool


def mha(dtype: torch.dtype = torch.float32) -> MHATokenToKVPool:
    return MHATokenToKVPool(
        size=8, page_size=4, dtype=dtype, head_num=2, head_dim=3, layer_num=2, device="cpu"
    )


def hybrid(with_states: bool = True) -> HybridLinearKVPool:
    shape = Mamba2StateShape.gated_delta_net(
        num_k_heads=1, num_v_heads=1, head_k_dim=2, head_v_dim=2, conv_kernel=2
    )
    states = MambaPool(2, Mamba2CacheParams(shape, (0,)), (0,), "cpu") if with_states else None
    return HybridLinearKVPool(
        size=8,
        dtype=torch.float32,
        page_size=1,
        head_num=2,
        head_dim=3,
        full_attention_layer_ids=[3, 7],
        device="cpu",
        mamba_pool=states,
    )


def test_the_first_page_is_extra() -> None:
    assert mha().get_key_buffer(0).shape == (12, 2, 3)


def test_what_is_stored_at_a_position_is_read_there() -> None:
    pool = mha(torch.float64)
    k, v = torch.randn(2, 2, 3), torch.randn(2, 2, 3)

    pool.set_kv_buffer(1, torch.tensor([5, 4]), k, v)

    keys, values = pool.get_kv_buffer(1)
    assert torch.equal(keys[[5, 4]], k.double())
    assert torch.equal(values[[5, 4]], v.double())
    assert float(pool.get_key_buffer(0).abs().sum()) == 0


def test_moving_copies_rows_in_every_layer() -> None:
    pool = mha()
    pool.k_buffer[0][4] = 1.0
    pool.v_buffer[1][5] = 2.0

    pool.move_kv_cache([8, 9], [4, 5])

    assert float(pool.k_buffer[0][8].sum()) == 6
    assert float(pool.v_buffer[1][9].sum()) == 12


def test_a_host_copy_goes_back_into_other_positions() -> None:
    pool = mha()
    pool.k_buffer[0][4] = 1.0
    saved = pool.get_cpu_copy([4, 5])
    pool.k_buffer[0][4] = 0.0

    pool.load_cpu_copy(saved, [7, 8])

    assert float(pool.k_buffer[0][7].sum()) == 6
    assert float(pool.k_buffer[0][4].sum()) == 0


def test_bytes_count_all_layers() -> None:
    assert mha().get_kv_size_bytes() == (2 * 12 * 2 * 3 * 4, 2 * 12 * 2 * 3 * 4)


def test_a_hybrid_pool_has_kv_only_for_its_full_attention_layers() -> None:
    pool = hybrid()

    pool.set_kv_buffer(7, torch.tensor([1]), torch.ones(1, 2, 3), torch.ones(1, 2, 3))

    assert float(pool.get_key_buffer(7).sum()) == 6
    assert float(pool.get_value_buffer(3).sum()) == 0
    with pytest.raises(ValueError, match=r"layer_id=1 not in full attention layers: \[3, 7\]"):
        pool.get_kv_buffer(1)


def test_a_host_copy_carries_states_only_when_they_are_named() -> None:
    pool = hybrid()
    assert pool.mamba_pool is not None
    pool.mamba_pool.mamba_cache.temporal[:, 1] = 3.0

    assert pool.get_cpu_copy([1]).mamba is None
    saved = pool.get_cpu_copy([1], [1])
    pool.load_cpu_copy(saved, [2], [2])

    assert float(pool.mamba_pool.mamba_cache.temporal[:, 2].sum()) == 12


def test_states_cannot_be_copied_without_a_state_pool() -> None:
    with pytest.raises(ValueError, match="without a state pool"):
        hybrid(with_states=False).get_cpu_copy([1], [1])
