"""The gated delta rule in Triton, against the reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hybridbench.engine.kernels.gated_delta_rule import chunked, reference, triton_kernel
from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from tests.unit.engine.kernels.agreement import (
    CPU,
    DEVICES,
    Argument,
    assert_agrees,
    but_for_the_dump,
    device_of,
    mutant,
    plan_on,
    pool_of_layers,
    random,
    some_first,
)


def gating_arguments(tokens: int, heads: int) -> list[Argument]:
    """Return columns of one projection, as in a model, with very slow and fast decays."""
    projected = random(tokens, 2 * heads + 3) * 20.0
    a, b = projected[:, 1 : heads + 1], projected[:, heads + 1 : 2 * heads + 1]
    return [a, b, -random(heads).exp(), random(heads)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("tokens", "heads"), [(4, 3), (1, 8), (0, 2)], ids=str)
def test_gates_equal_the_reference(tokens: int, heads: int, device: str) -> None:
    assert_agrees(
        reference.gdn_gating,
        triton_kernel.gdn_gating,
        *gating_arguments(tokens, heads),
        device=device_of(device),
    )


def test_a_slow_decay_keeps_its_digits_in_float32() -> None:
    device_of("cpu")
    a = torch.tensor([[-16.5, -30.0, 25.0, 90.0]])
    ones = torch.ones(4)

    g, _ = triton_kernel.gdn_gating(a, a, -ones, ones * 0.0)

    torch.testing.assert_close(g, -torch.nn.functional.softplus(a), rtol=1e-6, atol=0.0)


def update_arguments(
    slots: Sequence[int],
    heads: int = 2,
    key_dim: int = 5,
    value_dim: int = 3,
    *,
    into: bool = False,
) -> list[Argument]:
    """Arguments with a pool of 7 slots; slots that are not read are NaN."""
    batch = len(slots)
    rows: Tensor = torch.tensor(slots, dtype=torch.int64)
    mixed = random(batch, heads * value_dim + 4)
    v = mixed[:, 4:].view(batch, heads, value_dim)
    gates = [-random(batch, heads).exp(), random(batch, heads).sigmoid()]
    qk = random(batch, heads, 2, key_dim)
    pool = pool_of_layers(7, (heads, key_dim, value_dim), rows)
    elsewhere = None
    if into:
        elsewhere = (pool_of_layers(batch + 1, (heads, key_dim, value_dim), rows[:0]), rows * 0)
        elsewhere[1].copy_(torch.arange(batch).flip(0))
    return [qk, v, *gates, pool, rows, elsewhere]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "arguments",
    [
        update_arguments([6, 2, 4]),
        update_arguments([3], heads=1, key_dim=8, value_dim=33),
        update_arguments([5, 1], into=True),
        update_arguments([]),
    ],
    ids=["any-order", "one-token-two-blocks", "elsewhere", "no-request"],
)
def test_a_step_equals_the_reference(arguments: list[Argument], device: str) -> None:
    assert_agrees(
        reference.gated_delta_rule_update,
        triton_kernel.gated_delta_rule_update,
        *arguments,
        device=device_of(device),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_padding_changes_only_the_dump(device: str) -> None:
    assert_agrees(
        but_for_the_dump(reference.gated_delta_rule_update, 4, 5),
        but_for_the_dump(triton_kernel.gated_delta_rule_update, 4, 5),
        *update_arguments([0, 6, 0]),
        device=device_of(device),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    some_first(
        [
            ("in_value, in_key = value < VALUE_DIM,", "in_value, in_key = value < VALUE_DIM - 1,"),
            ("slot = tl.load(slots + request)", "slot = tl.load(slots) + request * 0"),
            ("state = state * tl.exp(tl.load(g + gate))", "state = state + 0.0"),
            (
                "row * target_stride + place, state",
                "row * target_stride + place, state * 0.0",
            ),
            ("known = tl.sum(state * k[:, None], axis=0)", "known = tl.sum(state, axis=0)"),
            ("    state = state + k[:, None] * delta[None, :]\n", ""),
            ("delta = tl.load(beta + gate) * (new - known)", "delta = tl.load(beta + gate) * new"),
        ],
        [
            "mask-off-by-one",
            "wrong-slot",
            "missing-decay",
            "lost-state",
            "wrong-read",
            "stale-state",
            "missing-correction",
        ],
    ),
)
def test_a_mutant_of_the_step_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            reference.gated_delta_rule_update,
            changed.gated_delta_rule_update,
            *update_arguments([6, 2, 4]),
        )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("inside = head < HEADS", "inside = head < HEADS - 1"),
        ("softplus * rate", "softplus"),
        ("token * b_stride", "token * a_stride * 0"),
    ],
    ids=["mask-off-by-one", "missing-scale", "wrong-token"],
)
def test_a_mutant_of_the_gates_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(reference.gdn_gating, changed.gdn_gating, *gating_arguments(4, 3))


def chunk_arguments(
    lens: Sequence[int],
    chunk_size: int = 16,
    *,
    heads: tuple[int, int] = (2, 1),
    dims: tuple[int, int] = (5, 3),
    track_offsets: Sequence[int] | None = None,
) -> list[Argument]:
    """Arguments in which unused convolution rows and unused state slots are NaN."""
    count, gap, tokens = len(lens), 3, sum(lens)
    starts = np.cumsum(np.asarray(lens) + gap) - np.asarray(lens)
    plan = ChunkPlan.build(lens, starts, CPU, chunk_size, track_offsets)
    slots = torch.arange(2 * count, count, -1)
    rows = torch.from_numpy(np.unique(plan.conv_rows.numpy()))
    qk = torch.full((tokens + gap * count, 2, heads[1], dims[0]), torch.nan).double()
    mixed = torch.full((len(qk), heads[0] * dims[1] + 4), torch.nan).double()
    qk[rows] = random(len(rows), *qk.shape[1:]) / dims[0] ** 0.5
    mixed[rows] = random(len(rows), mixed.shape[1])
    tracked = None if track_offsets is None else torch.arange(1, plan.snapshot_count + 1)
    return [
        qk,
        mixed[:, 4:].view(-1, heads[0], dims[1]),
        # Decays are slow, so that the first tokens of a chunk affect its last.
        -0.1 * random(tokens, heads[0]).exp(),
        random(tokens, heads[0]).sigmoid(),
        pool_of_layers(2 * count + 1, (heads[0], *dims), slots),
        slots,
        lambda device: plan_on(plan, device),
        tracked,
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "arguments",
    [
        chunk_arguments([1]),
        chunk_arguments([5, 20], dims=(70, 65)),
        chunk_arguments([20, 3, 33], heads=(3, 3), track_offsets=[7, 0, 32]),
        chunk_arguments([30, 16], chunk_size=24, track_offsets=[30, 5]),
        chunk_arguments([150, 64], chunk_size=64, heads=(2, 2), track_offsets=[70, 0]),
    ],
    ids=[
        "one-token",
        "ragged-two-blocks",
        "snapshots",
        "odd-chunks-snapshot-at-the-end",
        "chunks-of-64",
    ],
)
def test_chunks_equal_the_reference(arguments: list[Argument], device: str) -> None:
    assert_agrees(
        chunked.chunk_gated_delta_rule,
        triton_kernel.chunk_gated_delta_rule,
        *arguments,
        device=device_of(device),
        atol=1e-11,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_segments_of_chunks_equal_the_reference(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = device_of(device)
    # Seven chunks make segments of two, two and three; the last one saves both states.
    monkeypatch.setattr(chunked, "_SEGMENT_CHUNKS", 3)

    assert_agrees(
        chunked.chunk_gated_delta_rule,
        triton_kernel.chunk_gated_delta_rule,
        *chunk_arguments([60, 40], track_offsets=[48, 40]),
        device=place,
        atol=1e-11,
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("segment.begin * size", "0"),
        ("in plan.segments:", "in plan.segments[:-1]:"),
    ],
    ids=["first-places", "a-segment-too-few"],
)
def test_a_mutant_of_the_segments_is_found(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked, "_SEGMENT_CHUNKS", 2)
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            chunked.chunk_gated_delta_rule,
            changed.chunk_gated_delta_rule,
            *chunk_arguments([40, 7], heads=(1, 1), dims=(4, 3)),
            atol=1e-11,
        )


@pytest.mark.parametrize(
    ("lens", "segments"),
    [([8192], [32] * 4), ([128] * 64, [64, 64]), ([100], [2]), ([64 * 31, 64 * 40], [32, 32, 7])],
)
def test_segments_are_of_2048_tokens_or_of_a_chunk_of_each_request(
    lens: list[int], segments: list[int]
) -> None:
    plan = ChunkPlan.build(lens, np.cumsum(lens) - np.asarray(lens), CPU, 64)

    assert [segment.chunks for segment in plan.segments] == segments
    begins = [segment.begin for segment in plan.segments]
    assert begins == [sum(segments[:place]) for place in range(len(segments))]
    assert sum(segments) == sum(plan.alive)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_chunk_of_one_repeated_token_keeps_its_digits(device: str, dtype: torch.dtype) -> None:
    """All rows are equal, so powers of the matrix would reach 1e17 and cancel."""
    place = device_of(device)
    plan = ChunkPlan.build([64], np.zeros(1, dtype=np.int64), CPU, 64)
    qk = torch.full((64, 2, 1, 4), 0.5, dtype=torch.float64)
    v, pool = random(64, 1, 4).to(dtype), random(1, 1, 4, 4)
    g, beta = torch.zeros(64, 1).double(), torch.full((64, 1), 0.99).double()
    slots, coarse_pool = torch.zeros(1, dtype=torch.int64), pool.float().to(place)
    coarse_qk, coarse_g, coarse_beta = (part.float().to(place) for part in (qk, g, beta))

    exact = chunked.chunk_gated_delta_rule(qk, v, g, beta, pool, slots, plan)
    found = triton_kernel.chunk_gated_delta_rule(
        *(coarse_qk, v.to(place), coarse_g, coarse_beta, coarse_pool, slots.to(place)),
        plan_on(plan, place),
    )

    for got, wanted in ((found, exact), (coarse_pool, pool)):
        assert float((got.cpu() - wanted).norm() / wanted.norm()) < 1e-5


@pytest.mark.parametrize(
    ("old", "new"),
    some_first(
        [
            ("(pair[:, None] == pair[None, :]) & is_second", "is_second"),
            ("range(LEVELS)", "range(LEVELS - 1)"),
            ("chunk = tl.load(starts + index) + rank", "chunk = tl.load(starts + index)"),
            ("_decay_within(grown, row) * strength[:, None]", "_decay_within(grown, row)"),
            ("state[block] * tl.exp(total)", "state[block]"),
            ("wanted == index:", "wanted == index + 1:"),
            ("    _store_state(slot, state, value, KEY_DIM, VALUE_DIM, BLOCK_K)\n", ""),
            ("for index in range(1, 16)", "for index in range(1, 15)"),
            ("tl.load(slots + rank) * pool_stride", "rank * pool_stride"),
            ("inverse *= tl.exp(grown)[None, :]", "inverse *= 1.0"),
            ("        mixed += product(q, state", "        mixed = product(q, state"),
            ("        among_keys += product", "        among_keys = product"),
            (
                "tl.exp(total - tl.cumsum(log_decay, axis=0))",
                "tl.exp(tl.cumsum(log_decay, axis=0))",
            ),
        ],
        [
            "blocks-not-of-a-pair",
            "a-level-too-few",
            "wrong-chunk",
            "missing-scale",
            "missing-decay",
            "late-snapshot",
            "stale-state",
            "a-row-too-few",
            "wrong-slot",
            "missing-decay-of-reads",
            "last-keys-alone",
            "last-keys-alone-in-a-chunk",
            "wrong-decay-of-writes",
        ],
    ),
)
def test_a_mutant_of_the_chunks_is_found(old: str, new: str, tmp_path: Path) -> None:
    changed = mutant(triton_kernel, old, new, tmp_path)

    with pytest.raises(AssertionError):
        assert_agrees(
            chunked.chunk_gated_delta_rule,
            changed.chunk_gated_delta_rule,
            *chunk_arguments([70, 3], chunk_size=64, dims=(35, 3), track_offsets=[7, 0]),
            atol=1e-11,
        )
