"""Recurrent states by slot."""

from __future__ import annotations

import pytest
import torch

from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams, Mamba2StateShape, MambaPool

SHAPE = Mamba2StateShape.gated_delta_net(
    num_k_heads=2, num_v_heads=4, head_k_dim=3, head_v_dim=5, conv_kernel=4
)


def pool(size: int = 3, dtype: torch.dtype = torch.float32) -> MambaPool:
    return MambaPool(size, Mamba2CacheParams(SHAPE, (0, 2)), (0, 2), "cpu", dtype)


def fill(states: MambaPool) -> None:
    """Fill the pool with distinct numbers."""
    for tensor in (*states.mamba_cache.conv, states.mamba_cache.temporal):
        tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape).to(tensor.dtype))


def test_shapes_are_those_of_the_family() -> None:
    assert SHAPE.conv == ((2 * 2 * 3 + 4 * 5, 3),)
    assert SHAPE.temporal == (4, 3, 5)
    mamba2 = Mamba2StateShape.create(
        intermediate_size=64, n_groups=2, num_heads=8, head_dim=8, state_size=16, conv_kernel=4
    )
    assert mamba2.conv == ((64 + 2 * 2 * 16, 3),)
    assert mamba2.temporal == (8, 8, 16)


def test_layers_come_first_and_slot_zero_is_extra() -> None:
    states = pool(size=3)

    assert states.mamba_cache.conv[0].shape == (2, 4, 32, 3)
    assert states.mamba_cache.temporal.shape == (2, 4, 4, 3, 5)


@pytest.mark.parametrize(
    ("dtype", "state_dtype"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_the_recurrent_state_is_at_least_float32(
    dtype: torch.dtype, state_dtype: torch.dtype
) -> None:
    states = pool(dtype=dtype)

    assert states.mamba_cache.conv[0].dtype == dtype
    assert states.mamba_cache.temporal.dtype == state_dtype


def test_writing_a_layer_view_writes_the_pool() -> None:
    states = pool()

    states.mamba2_layer_cache(2).temporal[1] = 7.0
    states.mamba2_layer_cache(2).conv[0][1] = 5.0

    assert bool((states.mamba_cache.temporal[1, 1] == 7).all())
    assert bool((states.mamba_cache.conv[0][1, 1] == 5).all())
    assert float(states.mamba_cache.temporal.sum()) == 7 * 60


def test_a_layer_without_state_is_refused() -> None:
    with pytest.raises(ValueError, match=r"layer_id=1 has no recurrent state.*\[0, 2\]"):
        pool().mamba2_layer_cache(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("src", "dst"), [(1, 3), ([1, 2], [3, 1])])
def test_a_copy_overwrites_exactly_the_target_slots(
    src: int | list[int], dst: int | list[int], dtype: torch.dtype
) -> None:
    states = pool(dtype=dtype)
    fill(states)
    before = [t.clone() for t in (*states.mamba_cache.conv, states.mamba_cache.temporal)]

    states.copy_from(src, dst)

    for old, new in zip(
        before, (*states.mamba_cache.conv, states.mamba_cache.temporal), strict=True
    ):
        expected = old.clone()
        expected[:, dst] = old[:, src]
        assert torch.equal(new, expected)


@pytest.mark.parametrize("slots", [2, [1, 2]])
def test_a_cleared_slot_shows_nothing_of_its_last_owner(slots: int | list[int]) -> None:
    states = pool()
    fill(states)
    untouched = states.mamba_cache.temporal[:, 3].clone()

    states.clear_slots(slots)

    assert float(states.mamba_cache.temporal[:, slots].abs().sum()) == 0
    assert float(states.mamba_cache.conv[0][:, slots].abs().sum()) == 0
    assert torch.equal(states.mamba_cache.temporal[:, 3], untouched)


def test_a_host_copy_goes_back_into_other_slots() -> None:
    states = pool()
    fill(states)
    saved = states.get_cpu_copy([1, 3])
    wanted = states.mamba_cache.temporal[:, [1, 3]].clone()
    states.clear_slots([1, 2, 3])

    states.load_cpu_copy(saved, [3, 2])

    assert torch.equal(states.mamba_cache.temporal[:, [3, 2]], wanted)
    assert float(states.mamba_cache.temporal[:, 1].abs().sum()) == 0


def test_memory_is_counted_with_the_dump_slot() -> None:
    states = pool(size=3)

    per_slot = 2 * (32 * 3 + 4 * 3 * 5) * 4
    assert states.mem_usage_bytes() == 4 * per_slot
    assert states.slot_bytes() == per_slot


def test_buffers_for_drafts_belong_to_no_slot_and_are_made_only_when_asked_for() -> None:
    plain = pool(size=3)
    drafting = MambaPool(
        3, Mamba2CacheParams(SHAPE, (0, 2)), (0, 2), "cpu",
        spec_state_size=5, speculative_num_draft_tokens=4,
    )  # fmt: skip

    views = drafting.mamba2_draft_cache(2)

    assert views.intermediate_ssm.shape == (4, 5, 4, 3, 5)
    assert views.intermediate_conv_window[0].shape == (4, 5, 32, 3)
    assert drafting.slot_bytes() == plain.slot_bytes()
    assert drafting.mem_usage_bytes() == plain.mem_usage_bytes() + 4 * 5 * plain.slot_bytes()
    with pytest.raises(KeyError):
        plain.mamba2_draft_cache(2)
    with pytest.raises(KeyError):
        drafting.mamba2_draft_cache(1)


def test_after_verifying_each_slot_has_the_state_of_its_own_last_right_token() -> None:
    states = MambaPool(
        3, Mamba2CacheParams(SHAPE, (0, 2)), (0, 2), "cpu",
        spec_state_size=2, speculative_num_draft_tokens=3,
    )  # fmt: skip
    for layer_id in (0, 2):
        views = states.mamba2_draft_cache(layer_id)
        for step in range(3):
            for row in range(2):
                value = 100 * layer_id + 10 * step + row
                views.intermediate_ssm[step, row] = value
                views.intermediate_conv_window[0][step, row] = value

    states.track_mamba_state_after_verify([2], [1], [1])
    states.update_mamba_state_after_verify([3, 1], [2, 0])

    for layer_id in (0, 2):
        live = states.mamba2_layer_cache(layer_id)
        for slot, value in (
            (3, 100 * layer_id + 20),
            (1, 100 * layer_id + 1),
            (2, 100 * layer_id + 11),  # saved from the middle of the second chain
            (0, 0),
        ):
            assert bool((live.temporal[slot] == value).all())
            assert bool((live.conv[0][slot] == value).all())
