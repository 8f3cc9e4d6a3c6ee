"""The kernel benchmark: work computed by formulas, and steps split into operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import kernel_watch, kernels
from benchmarks.batches import Traffic
from benchmarks.kernel_rivals import FLA, SDPA
from benchmarks.kernel_watch import PROJECTIONS, StepWatch, cpu_seconds
from benchmarks.kernel_work import Work, work_of
from benchmarks.kernels import Ceilings, KernelBench, OperationRow, bench_kernels
from hybridbench.engine.engine import Engine
from hybridbench.engine.kernels.causal_conv1d.reference import ConvPlan
from hybridbench.engine.kernels.dispatch import REFERENCE, Kernels, kernels_for
from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from hybridbench.engine.kernels.moe.reference import swiglu
from hybridbench.engine.kernels.paged_attention.reference import DecodePlan, ExtendPlan
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import NANO_ENGINE
from tests.unit.engine.kernels.agreement import device_of

CPU = torch.device("cpu")
OPERATIONS = {field.name for field in fields(Kernels)}
SMALL = Traffic(4, 16, 20, 3, 80, "float32", ())

SLOTS = torch.tensor([3, 1])
DECODE = DecodePlan.build([5, 3], np.arange(8), torch.float32, CPU)
EXTEND = ExtendPlan.build([3, 2], [4, 0], np.arange(9), CPU)
IN_WINDOW = ExtendPlan.build([3, 2], [4, 0], np.arange(9), CPU, window=2)
CONV = ConvPlan.build([3, 2], 4, CPU)
# One chunk of 16 positions for each of two requests.
CHUNKS = ChunkPlan.build([9, 5], np.array([0, 9]), CPU)


def of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape).to(dtype)


HALF = torch.bfloat16
# Bytes per value: two in HALF, four in float32, eight for an index.
CASES: list[tuple[str, list[object], int, int]] = [
    (
        "store_kv",
        [of(9, 2, 4), of(9, 2, 4), SLOTS, of(2, 2, 4, dtype=HALF), of(2, 2, 4, dtype=HALF)],
        2 * 16 * (2 + 4) + 2 * 8,
        0,
    ),
    (
        "decode_attention",
        [of(2, 6, 4, dtype=HALF), of(9, 2, 4, dtype=HALF), of(9, 2, 4, dtype=HALF), DECODE, None],
        2 * 48 * 2 + 8 * (2 * 8 * 2 + 8),
        # Eight keys and six heads of size four: a score and a weighted value for each pair.
        8 * 6 * (2 * 4 + 2 * 4),
    ),
    (
        "extend_attention",
        [of(5, 6, 4), of(9, 2, 4), of(9, 2, 4), EXTEND, of(6)],
        2 * 120 * 4 + 9 * (2 * 8 * 4 + 8) + 6 * 4,
        # The first request's tokens see 5, 6 and 7 keys, the second's 1 and 2.
        (5 + 6 + 7 + 1 + 2) * 6 * 16,
    ),
    (
        "extend_attention",
        [of(5, 6, 4), of(9, 2, 4), of(9, 2, 4), IN_WINDOW, None],
        # Only one key of the prefix is inside the first token's window.
        2 * 120 * 4 + (1 + 3 + 2) * (2 * 8 * 4 + 8),
        (2 + 2 + 2 + 1 + 2) * 6 * 16,
    ),
    (
        "gdn_gating",
        [of(5, 3, dtype=HALF), of(5, 3, dtype=HALF), of(3), of(3)],
        2 * 15 * 2 + 2 * 3 * 4 + 2 * 15 * 4,
        0,
    ),
    (
        "gated_delta_rule_update",
        [of(2, 3, 2, 4), of(2, 3, 5), of(2, 3), of(2, 3), of(9, 3, 4, 5), SLOTS, None],
        (48 + 30 + 6 + 6 + 30) * 4 + 2 * 8 + 2 * (2 * 60 * 4),
        7 * 2 * 60,
    ),
    (
        "chunk_gated_delta_rule",
        [
            *(of(14, 2, 2, 4), of(14, 6, 5), of(14, 6), of(14, 6), of(9, 6, 4, 5), SLOTS),
            *(CHUNKS, None),
        ],
        (14 * (16 + 30 + 30 + 12) + 2 * 240) * 4 + (2 + 2 * 32) * 8,
        2 * (2 * 4 * 256 * 4 + 6 * (256 * 9 + 6 * 16 * 20 + 2 * 256 * 5)),
    ),
    (
        "causal_conv1d_update",
        [of(2, 6, dtype=HALF), of(4, 6, dtype=HALF), of(9, 6, 3, dtype=HALF), SLOTS, None, None],
        (2 * 12 + 24 + 2 * 36) * 2 + 2 * 8,
        2 * 4 * 12,
    ),
    (
        "causal_conv1d_varlen",
        [of(5, 6), of(4, 6), of(9, 6, 3), SLOTS, CONV, torch.tensor([5]), of(6)],
        (2 * 30 + 24 + 6 + (2 * 2 + 1) * 18) * 4 + (11 + 6 + 2) * 8,
        2 * 4 * 30,
    ),
    (
        "copy_states",
        [[of(9, 3, 4), of(9, 5)], SLOTS, [of(7, 3, 4), of(7, 5)], SLOTS],
        2 * 2 * 17 * 4 + 2 * 2 * 8,
        0,
    ),
    (
        "mamba2_state_update",
        [of(2, 6, 4), of(2, 6), of(6), of(2, 2, 3, 5), of(9, 6, 4, 5), SLOTS, None],
        (2 * 48 + 12 + 6 + 60) * 4 + 2 * 8 + 2 * (2 * 120 * 4),
        5 * 2 * 120,
    ),
    (
        "mamba2_chunk_scan",
        [
            *(of(14, 6, 4, dtype=HALF), of(14, 6), of(6), of(6), of(14, 2, 3, 5, dtype=HALF)),
            *(of(9, 6, 4, 5), SLOTS, CHUNKS, None),
        ],
        14 * (24 + 30) * 2 + (14 * 24 + 84 + 6 + 6 + 2 * 240) * 4 + (2 + 2 * 32) * 8,
        2 * (6 * (2 * 256 * 4 + 4 * 16 * 20) + 3 * 2 * 256 * 5),
    ),
    ("route", [of(5, 8), 2, True], 40 * 4 + 10 * (4 + 8), 0),
    (
        "experts_sorted",
        [
            *(of(3, 6), of(3, 2), torch.tensor([[0, 3], [3, 0], [3, 1]])),
            *(of(4, 10, 6), of(4, 5, 6), None, swiglu),
        ],
        # Three of the four experts are used.
        (2 * 18 + 6 + 3 * (60 + 30)) * 4 + 6 * 8,
        6 * 2 * (60 + 30),
    ),
]


@pytest.mark.parametrize(
    ("operation", "arguments", "moved_bytes", "flops"), CASES, ids=[case[0] for case in CASES]
)
def test_work_is_what_the_shapes_say(
    operation: str, arguments: list[object], moved_bytes: int, flops: int
) -> None:
    assert work_of(operation, arguments) == Work(moved_bytes, flops)


def test_every_operation_has_a_formula() -> None:
    assert {case[0] for case in CASES} == OPERATIONS


@pytest.mark.parametrize(
    ("operation", "more"),
    [
        ("mamba2_chunk_scan", 0),
        ("experts_sorted", 0),
        # The reference solves the triangular systems by a full product with the inverse.
        ("chunk_gated_delta_rule", 2 * 6 * 256 * 9),
    ],
)
def test_flops_are_those_of_the_products_that_the_reference_computes(
    operation: str, more: int
) -> None:
    arguments = next(case[1] for case in CASES if case[0] == operation)
    form: Callable[..., object] = vars(REFERENCE)[operation]

    with FlopCounterMode(display=False) as counter:
        form(*arguments)

    assert work_of(operation, arguments).flops + more == counter.get_total_flops()


def rows_of(result: KernelBench) -> dict[str, list[OperationRow]]:
    return {table.phase: list(table.rows) for table in result.tables}


@pytest.fixture
def known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure no ceilings, which takes seconds; test_commands.py measures them."""
    ceilings = Ceilings(1e10, {torch.float32: 1e11}, 1e-6)
    monkeypatch.setattr(kernels, "measure_ceilings", lambda *_: ceilings)


@pytest.mark.usefixtures("known_ceilings")
def test_two_models_use_every_operation_and_their_steps_add_up() -> None:
    results = [
        bench_kernels(model, rounds=1, traffic=SMALL)
        for model in ("qwen3-next-nano", "nemotron-h-tiny")
    ]

    seen = {
        row.operation for result in results for rows in rows_of(result).values() for row in rows
    }
    assert seen | {"copy_states"} == OPERATIONS | {PROJECTIONS}
    for result in results:
        assert result.card is None
        assert result.state_copy is not None
        assert result.state_copy.operation == "copy_states"
        assert [table.phase for table in result.tables] == ["prefill", "decode"]
        # Four requests of 20 new tokens in one step, then one token of each request.
        assert [table.tokens for table in result.tables] == [80, 4]
        for table in result.tables:
            assert sum(row.step_s for row in table.rows) < table.step_s
            assert 0 < table.forward_s < table.step_s
            assert table.products is not None
            assert table.products.step_s > 0
            assert table.torch_calls > table.products.calls
            steps = [row.step_s for row in table.rows]
            assert steps == sorted(steps, reverse=True)


@pytest.mark.usefixtures("known_ceilings")
def test_products_outside_of_operations_are_those_of_the_model() -> None:
    result = bench_kernels("attention-nano", rounds=1, traffic=SMALL)

    projections = next(row for row in rows_of(result)["decode"] if row.operation == PROJECTIONS)
    # From 32 channels to two queries, a key, a value and two gates of 16; two heads back.
    per_token = 2 * 32 * 6 * 16 + 2 * 2 * 16 * 32
    # Router scores of two experts, a gate, and three MLPs of width 16: few tokens use all experts.
    per_token += 2 * 32 * (2 + 1 + 3 * 2 * 16) + 2 * 3 * 16 * 32
    per_token += 2 * 32 * 2048
    assert projections.work == Work(0, 4 * per_token)


def test_on_a_cuda_device_the_calls_of_the_largest_steps_are_timed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_watch, "cuda_seconds", cpu_seconds)
    watch = StepWatch(torch.device("cuda"))
    engine = Engine(replace(NANO_ENGINE, model="qwen3-next-nano"), kernels=watch.watched(REFERENCE))
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    steps = []
    for number, length in enumerate((30, 12)):
        engine.submit(str(number), list(range(1 + number, 1 + number + length)), params)
        while engine.has_work:
            steps.append(watch.watch(engine, counting=False))

    largest = next(step for step in steps if step is not None and step.tokens == 30)
    alone = watch.kept("prefill")
    assert [(c.operation, c.work) for c in alone] == [(c.operation, c.work) for c in largest.calls]
    assert all(call.seconds > 0 for call in alone)
    assert {call.operation for call in watch.kept("decode")} >= {"decode_attention", "store_kv"}
    rivals = watch.rivals("prefill")
    # In the last layer, only each request's last token needs attention.
    assert {operation: name for operation, (name, _) in rivals.items()} == {
        "chunk_gated_delta_rule": FLA,
        "decode_attention": SDPA,
    }
    assert isinstance(rivals["decode_attention"][1], float)


@pytest.mark.gpu
def test_triton_kernels_are_timed_on_a_cuda_device() -> None:
    device_of("cuda")
    traffic = Traffic(4, 64, 64, 3, 256, "bfloat16", ())

    result = bench_kernels("qwen3-next-tiny", "cuda", rounds=1, traffic=traffic)

    assert set(kernels_for("cuda").implementations().values()) == {"triton"}
    assert result.card == torch.cuda.get_device_name()
    for table in result.tables:
        for row in table.rows:
            assert math.isfinite(row.step_s)
            assert row.work.moved_bytes / row.step_s < 1.2 * result.ceilings.copy_bytes_per_s
