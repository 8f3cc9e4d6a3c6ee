"""The chunked form and the one-token step against the recurrent reference."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan, chunk_gated_delta_rule
from hybridbench.engine.kernels.gated_delta_rule.reference import (
    gated_delta_rule_reference,
    gated_delta_rule_update,
)


@dataclass
class Case:
    """Concatenated inputs of several requests: [T, ...] each, and states [R, HV, K, V]."""

    lens: list[int]
    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    state: Tensor

    @classmethod
    def make(
        cls,
        lens: list[int],
        heads: tuple[int, int] = (2, 4),
        dims: tuple[int, int] = (8, 6),
        dtype: torch.dtype = torch.float64,
        decay: float = 0.2,
    ) -> Case:
        generator = torch.Generator().manual_seed(sum(lens))
        total = sum(lens)

        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        key = functional.normalize(noise(total, heads[0], dims[0]), dim=-1)
        query = functional.normalize(noise(total, heads[0], dims[0]), dim=-1) * dims[0] ** -0.5
        tensors = (
            query,
            key,
            noise(total, heads[1], dims[1]),
            -decay * noise(total, heads[1]).exp(),
            noise(total, heads[1]).sigmoid(),
            noise(len(lens), heads[1], *dims),
        )
        return cls(lens, *(tensor.to(dtype) for tensor in tensors))

    def expected(self) -> tuple[Tensor, Tensor]:
        """Return the reference's outputs [T, HV, V] and states."""
        outputs, states = [], []
        parts = [torch.split(x, self.lens) for x in (self.q, self.k, self.v, self.g, self.beta)]
        for i in range(len(self.lens)):
            q, k, v, g, beta = (part[i].unsqueeze(0) for part in parts)
            output, state = gated_delta_rule_reference(q, k, v, g, beta, self.state[i : i + 1])
            outputs.append(output[0])
            states.append(state)
        return torch.cat(outputs), torch.cat(states)

    def expected_after(self, offsets: list[int]) -> Tensor:
        """Return the states after ``offsets`` tokens, for requests whose offset is above 0."""
        firsts = []
        for i, offset in enumerate(offsets):
            start = sum(self.lens[:i])
            part = slice(start, start + offset)
            q, k, v, g, beta = (x[part] for x in (self.q, self.k, self.v, self.g, self.beta))
            first = Case([offset], q, k, v, g, beta, self.state[i : i + 1])
            if offset:
                firsts.append(first.expected()[1])
        return torch.cat(firsts)

    def chunked(
        self,
        chunk_size: int = 64,
        padding: float = 0.0,
        offsets: list[int] | None = None,
        snapshots: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the same from the chunked form; padded q, k and v are filled with ``padding``."""
        lens = np.array(self.lens, dtype=np.int64)
        starts = np.cumsum(lens) - lens
        plan = ChunkPlan.build(self.lens, starts, torch.device("cpu"), chunk_size, offsets)
        if padding:
            padded = plan.gate_rows == sum(self.lens)
            plan = replace(plan, conv_rows=plan.conv_rows.masked_fill(padded, sum(self.lens)))
        qk, v = (
            torch.cat((rows, padding * torch.ones_like(rows[:1])))
            for rows in (torch.stack((self.q, self.k), dim=1), self.v)
        )
        pool = self.state if snapshots is None else torch.cat((self.state, snapshots))
        pool = pool.flip(0)
        slots = torch.arange(len(pool)).flip(0)
        tracked = None if snapshots is None else slots[len(lens) :]
        output = chunk_gated_delta_rule(
            *(qk, v, self.g, self.beta, pool, slots[plan.order], plan, tracked)
        )
        if snapshots is not None:
            snapshots.copy_(pool[slots[len(lens) :]])
        return output, pool[slots[: len(lens)]]


def assert_case(case: Case, tolerance: float, chunk_size: int = 64, padding: float = 0.0) -> None:
    output, state = case.chunked(chunk_size, padding)
    expected_output, expected_state = case.expected()
    assert float((output - expected_output).abs().max()) <= tolerance
    assert float((state - expected_state).abs().max()) <= tolerance


@pytest.mark.parametrize(
    "lens",
    [[1], [63], [64], [65], [200], [1, 1, 1], [2, 129, 64, 1, 70], [64, 64], [5, 300]],
    ids=str,
)
def test_chunks_give_what_the_recurrence_gives(lens: list[int]) -> None:
    assert_case(Case.make(lens), tolerance=1e-12)


@pytest.mark.parametrize("chunk_size", [16, 64])
@pytest.mark.parametrize(
    ("lens", "offsets"),
    [
        ([1], [1]),
        ([130], [64]),
        ([130], [65]),
        ([130], [130]),
        ([128], [128]),
        ([64, 200, 5], [64, 0, 3]),
        ([70, 1, 129, 64, 200], [17, 1, 128, 1, 0]),
    ],
    ids=str,
)
def test_the_state_after_any_token_can_be_had_and_costs_the_result_nothing(
    lens: list[int], offsets: list[int], chunk_size: int
) -> None:
    case = Case.make(lens)
    wanted = sum(offset > 0 for offset in offsets)
    snapshots = torch.full((wanted, *case.state.shape[1:]), float("nan"), dtype=torch.float64)

    output, state = case.chunked(chunk_size, padding=3.0, offsets=offsets, snapshots=snapshots)

    expected_output, expected_state = case.expected()
    torch.testing.assert_close(output, expected_output, rtol=0.0, atol=1e-12)
    torch.testing.assert_close(state, expected_state, rtol=0.0, atol=1e-12)
    torch.testing.assert_close(snapshots, case.expected_after(offsets), rtol=0.0, atol=1e-12)


def test_a_state_at_a_whole_number_of_chunks_takes_no_further_chunk() -> None:
    device, starts = torch.device("cpu"), np.zeros(1, dtype=np.int64)

    plain = ChunkPlan.build([200], starts, device, 64)
    aligned = ChunkPlan.build([200], starts, device, 64, track_offsets=[128])
    between = ChunkPlan.build([250], starts, device, 64, track_offsets=[1])

    assert (plain.alive, aligned.alive) == ((1,) * 4, (1,) * 4)
    assert torch.equal(plain.output_rows, aligned.output_rows)
    assert len(between.alive) == 5


@pytest.mark.parametrize(
    ("lens", "device", "size"),
    [
        *(([1, 3], "cpu", 16), ([128], "cpu", 16), ([129, 1], "cpu", 32), ([5000], "cpu", 32)),
        *(([16], "meta", 16), ([17], "meta", 64), ([129], "meta", 64)),
    ],
    ids=str,
)
def test_chunks_on_a_cpu_grow_where_there_would_be_many_and_a_gpu_has_two_sizes(
    lens: list[int], device: str, size: int
) -> None:
    plan = ChunkPlan.build(lens, np.zeros(len(lens), dtype=np.int64), torch.device(device))

    assert plan.chunk_size == size


@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (2, 6), (1, 4)], ids=str)
@pytest.mark.parametrize("dims", [(4, 12), (12, 4)], ids=str)
def test_chunks_hold_for_every_ratio_of_heads_and_dimensions(
    heads: tuple[int, int], dims: tuple[int, int]
) -> None:
    assert_case(Case.make([33, 70], heads, dims), tolerance=1e-12)


@pytest.mark.parametrize("chunk_size", [16, 20, 32])
def test_chunk_size_does_not_change_the_result(chunk_size: int) -> None:
    assert_case(Case.make([45, 3, 64]), tolerance=1e-12, chunk_size=chunk_size)


def test_what_stands_in_padded_places_changes_nothing() -> None:
    assert_case(Case.make([3, 70]), tolerance=1e-12, padding=3.0)


def test_repeated_keys_without_decay_stay_accurate_in_float32() -> None:
    """The worst conditioned system: equal keys, no decay, full write strength."""
    case = Case.make([64], dtype=torch.float32, decay=0.0)
    case.k[:] = case.k[0]
    case.beta.fill_(0.999)
    assert_case(case, tolerance=1e-4)


def test_strong_decay_over_a_chunk_neither_overflows_nor_turns_nan() -> None:
    case = Case.make([130], dtype=torch.float32, decay=30.0)
    assert_case(case, tolerance=1e-5)


@pytest.mark.parametrize("splits", [[1, 64], [30, 35], [64, 1], [1] * 5 + [60]])
def test_state_carries_a_text_across_splits(splits: list[int]) -> None:
    whole = Case.make([65])
    expected_output, expected_state = whole.expected()
    state, outputs, start = whole.state, [], 0
    for size in splits:
        part = slice(start, start + size)
        piece = Case(
            [size],
            whole.q[part],
            whole.k[part],
            whole.v[part],
            whole.g[part],
            whole.beta[part],
            state,
        )
        output, state = piece.chunked()
        outputs.append(output)
        start += size

    torch.testing.assert_close(torch.cat(outputs), expected_output)
    torch.testing.assert_close(state, expected_state)


def test_a_request_does_not_depend_on_its_neighbours() -> None:
    together = Case.make([70, 5, 131])
    alone = Case(
        [5],
        together.q[70:75],
        together.k[70:75],
        together.v[70:75],
        together.g[70:75],
        together.beta[70:75],
        together.state[1:2],
    )

    output, state = together.chunked()
    own_output, own_state = alone.chunked()

    torch.testing.assert_close(output[70:75], own_output, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(state[1:2], own_state, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("heads", [(2, 4), (1, 3), (2, 2)], ids=str)
def test_one_token_step_gives_the_recurrence_and_spares_other_slots(
    heads: tuple[int, int],
) -> None:
    case = Case.make([1, 1, 1], heads)
    expected_output, expected_state = case.expected()
    pool = torch.full((7, *case.state.shape[1:]), float("nan"), dtype=torch.float64)
    slots = torch.tensor([5, 1, 4])
    pool[slots] = case.state
    repeats = heads[1] // heads[0]
    qk = torch.stack((case.q, case.k), dim=2).repeat_interleave(repeats, dim=1)

    output = gated_delta_rule_update(qk, case.v, case.g, case.beta, pool, slots)

    torch.testing.assert_close(output, expected_output)
    torch.testing.assert_close(pool[slots], expected_state)
    assert bool(pool[[0, 2, 3, 6]].isnan().all())


def test_a_new_state_can_go_elsewhere_and_the_pool_is_only_read() -> None:
    case = Case.make([1, 1], (2, 4))
    expected_output, expected_state = case.expected()
    pool, other = case.state.clone(), torch.full_like(case.state, float("nan"))
    qk = torch.stack((case.q, case.k), dim=2).repeat_interleave(2, dim=1)

    output = gated_delta_rule_update(
        qk, case.v, case.g, case.beta, pool, torch.tensor([0, 1]), (other, torch.tensor([1, 0]))
    )

    torch.testing.assert_close(output, expected_output)
    assert torch.equal(pool, case.state)
    torch.testing.assert_close(other[[1, 0]], expected_state)
