"""The chunked form of Mamba2 and the one-token step against the recurrent reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from hybridbench.engine.kernels.mamba2.chunked import mamba2_chunk_scan
from hybridbench.engine.kernels.mamba2.reference import mamba2_reference, mamba2_state_update

CPU = torch.device("cpu")


@dataclass
class Case:
    """Concatenated inputs of several requests: [T, ...] each, and states [R, H, P, N]."""

    lens: list[int]
    x: Tensor
    dt: Tensor
    a: Tensor
    d: Tensor
    bc: Tensor
    state: Tensor

    @classmethod
    def make(cls, lens: list[int], heads: tuple[int, int] = (4, 2), decay: float = 1.0) -> Case:
        generator = torch.Generator().manual_seed(sum(lens))

        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        count, groups = heads
        total = sum(lens)
        return cls(
            lens,
            noise(total, count, 6),
            functional.softplus(noise(total, count)),
            -decay * noise(count).exp(),
            noise(count),
            noise(total, 2, groups, 5),
            noise(len(lens), count, 6, 5),
        )

    def expected(self, first: list[int] | None = None) -> tuple[list[Tensor], list[Tensor]]:
        """Return the outputs and state of each request, or of its ``first`` tokens if given."""
        outputs, states = [], []
        starts = np.cumsum(self.lens) - self.lens
        for i, (start, count) in enumerate(zip(starts, first or self.lens, strict=True)):
            part = slice(int(start), int(start) + count)
            b, c = self.bc[part].unbind(1)
            if count:
                y, s = mamba2_reference(self.x[part], self.dt[part], self.a, b, c, self.state[i])
                outputs.append(y + self.d[:, None] * self.x[part])
                states.append(s)
        return outputs, states

    def chunked(
        self, chunk_size: int, offsets: list[int] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs [T, ...], final states and snapshots."""
        starts = np.cumsum(self.lens, dtype=np.int64) - np.array(self.lens, dtype=np.int64)
        plan = ChunkPlan.build(self.lens, starts, CPU, chunk_size, offsets)
        count = len(self.lens)
        pool = self.state.new_full((count + plan.snapshot_count, *self.state.shape[1:]), torch.nan)
        pool[:count] = self.state
        tracked = torch.arange(count, len(pool))
        arguments = (self.x, self.dt, self.a, self.d, self.bc, pool, plan.order, plan, tracked)
        return mamba2_chunk_scan(*arguments), pool[:count], pool[count:]


@pytest.mark.parametrize("chunk_size", [1, 4, 16, 64])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (5, 1)], ids=str)
@pytest.mark.parametrize("lens", [[1], [64], [5, 130, 1, 64, 17]], ids=str)
def test_chunks_give_what_the_recurrence_gives(
    lens: list[int], heads: tuple[int, int], chunk_size: int
) -> None:
    case = Case.make(lens, heads)

    y, state, _ = case.chunked(chunk_size)

    outputs, states = case.expected()
    torch.testing.assert_close(y, torch.cat(outputs))
    torch.testing.assert_close(state, torch.stack(states))


def test_no_tokens_give_no_output_and_leave_the_state() -> None:
    case = Case.make([3])
    b, c = case.bc[:0].unbind(1)

    output, state = mamba2_reference(case.x[:0], case.dt[:0], case.a, b, c, case.state[0])

    assert output.shape == (0, 4, 6)
    assert torch.equal(state, case.state[0])


def test_a_snapshot_is_the_state_after_so_many_tokens() -> None:
    case = Case.make([70, 30, 9, 200])
    offsets = [64, 0, 9, 131]

    y, state, snapshots = case.chunked(64, offsets)

    outputs, states = case.expected()
    torch.testing.assert_close(y, torch.cat(outputs))
    torch.testing.assert_close(state, torch.stack(states))
    torch.testing.assert_close(snapshots, torch.stack(case.expected(offsets)[1]))


def test_a_decay_that_leaves_nothing_overflows_nothing() -> None:
    case = Case.make([130], decay=300.0)

    y, state, _ = case.chunked(64)

    assert torch.isfinite(y).all()
    torch.testing.assert_close(state, torch.stack(case.expected()[1]))


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in place", "elsewhere"])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (5, 1)], ids=str)
def test_one_token_reads_and_writes_only_the_slots_of_its_requests(
    heads: tuple[int, int], elsewhere: bool
) -> None:
    case = Case.make([1, 1, 1], heads)
    pool = torch.full((9, *case.state.shape[1:]), float("nan"), dtype=torch.float64)
    slots = torch.tensor([7, 2, 4])
    pool[slots] = case.state
    before = pool.clone()
    other, rows = torch.full_like(pool, float("nan")), torch.tensor([0, 5, 1])

    y = mamba2_state_update(
        case.x, case.dt, case.a, case.bc, pool, slots, (other, rows) if elsewhere else None
    )

    outputs, states = case.expected()
    torch.testing.assert_close(y + case.d[:, None] * case.x, torch.cat(outputs))
    target, written = (other, rows) if elsewhere else (pool, slots)
    torch.testing.assert_close(target[written], torch.stack(states))
    untouched = [i for i in range(9) if i not in written.tolist()]
    assert torch.isnan(target[untouched]).all()
    assert not elsewhere or torch.equal(pool, before) or torch.isnan(pool[untouched]).any()
    if elsewhere:
        torch.testing.assert_close(pool, before, equal_nan=True)
