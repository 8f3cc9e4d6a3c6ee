"""SGLang's and fla's kernel tests, run on ours: padding, groups, half precision, odd lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.gated_delta_rule.reference import gated_delta_rule_reference
from tests.peers import kernel_shim as kernels

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def slots_and_padding(lines: int, used: int, padding: int) -> Tensor:
    padded = [kernels.PAD_SLOT_ID] * padding
    return torch.cat((torch.randperm(lines)[:used], torch.tensor(padded, dtype=torch.int64)))


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return silu of the convolution of (dim, width - 1 + T), in float32: (dim, T)."""
    wide = None if bias is None else bias.float()
    y = functional.conv1d(x.float(), weight.float().unsqueeze(1), wide, groups=len(weight))
    return functional.silu(y)


def recurrence(inputs: tuple[Tensor, ...], part: slice, request: int) -> tuple[Tensor, Tensor]:
    """Run one request's tokens through the recurrence; return its output and final state."""
    q, k, v, g, beta = (x[:, part] for x in inputs[:5])
    return gated_delta_rule_reference(q, k, v, g, beta, inputs[5][request : request + 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("padding", [0, 5])
def test_a_convolution_step_skips_padding_and_moves_the_windows_of_the_others(
    padding: int, width: int, has_bias: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3 + padding, 80, dtype=dtype), torch.randn(80, width, dtype=dtype)
    bias = torch.randn(80, dtype=dtype) if has_bias else None
    # Their states are transposed in memory.
    states = torch.randn(30, width - 1, 80, dtype=dtype).transpose(1, 2)
    slots = slots_and_padding(30, 3, padding)
    before = states.clone()

    out = kernels.causal_conv1d_update(x, states, weight, bias, slots)

    inputs = torch.cat((before[slots[:3]], x[:3].unsqueeze(2)), dim=2)
    expected = convolved(inputs, weight, bias).squeeze(2).to(dtype)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out[:3], expected, rtol=tolerance, atol=tolerance)
    before[slots[:3]] = inputs[:, :, 1:]
    assert torch.equal(states, before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", [[1], [2, 1, 7], [3, 130, 1, 64]], ids=str)
@pytest.mark.parametrize("padding", [0, 3])
def test_a_convolution_of_requests_begins_with_their_windows_or_with_nothing(
    padding: int, lens: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    dim, total = 48, sum(lens) + padding
    x = torch.randn(total, dim + 16, dtype=dtype).t()[8 : 8 + dim]
    weight, bias = torch.randn(dim, 4, dtype=dtype), torch.randn(dim, dtype=dtype)
    states = torch.randn(40, 3, dim, dtype=dtype).transpose(1, 2)
    slots = slots_and_padding(40, len(lens), padding)
    starts = torch.tensor([0, *lens, *[1] * padding]).cumsum(0)
    has_state = torch.arange(len(slots)) % 2 == 0
    before = states.clone()

    out = kernels.causal_conv1d_fn(x, weight, bias, states, starts, slots, has_state)

    for i, length in enumerate(lens):
        window = before[slots[i]] * int(has_state[i])
        inputs = torch.cat((window, x[:, starts[i] : starts[i] + length]), dim=1)
        got = out[:, starts[i] : starts[i] + length]
        expected = convolved(inputs, weight, bias).to(dtype)
        torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        before[slots[i]] = inputs[:, -3:]
    assert torch.equal(states, before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_z", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("padding", [0, 5])
def test_a_state_step_has_groups_gates_and_padding(
    padding: int, groups: int, has_z: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    heads, dim, size, used = 4, 16, 32, 3
    rows = used + padding
    state = torch.randn(30, heads, dim, size)
    x, dt = torch.randn(rows, heads, dim, dtype=dtype), torch.randn(rows, heads, dtype=dtype)
    a, d, dt_bias = -torch.rand(heads) - 1, torch.randn(heads), torch.rand(heads) - 4
    b, c = torch.randn(2, rows, groups, size).unbind(0)
    z = torch.randn_like(x) if has_z else None
    slots = slots_and_padding(30, used, padding)
    before = state.clone()

    out = kernels.selective_state_update(state, x, dt, a, b, c, d, z, dt_bias, slots)

    for i in range(used):
        step = functional.softplus(dt[i].float() + dt_bias)[:, None]
        write, read = (v[i].repeat_interleave(heads // groups, dim=0) for v in (b, c))
        decay = (step * a[:, None]).exp()[:, :, None]
        new = before[slots[i]] * decay + (step * x[i].float())[:, :, None] * write[:, None]
        y = (new * read[:, None]).sum(dim=2) + x[i] * d[:, None]
        y = y if z is None else y * functional.silu(z[i].float())
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(out[i], y.to(dtype), rtol=tolerance, atol=tolerance)
        before[slots[i]] = new
    torch.testing.assert_close(state, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", [[1], [15, 16, 17], [63, 64, 65, 1], [200, 3]], ids=str)
@pytest.mark.parametrize("value_heads", [2, 4])
def test_requests_of_any_length_end_in_the_states_of_the_recurrence(
    value_heads: int, lens: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    total, starts = sum(lens), torch.tensor([0, *lens]).cumsum(0)
    q, k = torch.randn(2, 1, total, 2, 24, dtype=dtype).unbind(0)
    v = torch.randn(1, total, value_heads, 20, dtype=dtype)
    g = functional.logsigmoid(torch.randn(1, total, value_heads))
    beta = torch.rand(1, total, value_heads, dtype=dtype).sigmoid()
    state = torch.randn(len(lens), value_heads, 24, 20)

    out, final = kernels.chunk_gated_delta_rule(
        q, k, v, g, beta, state, starts, use_qk_l2norm_in_kernel=True
    )

    unit_q, unit_k = (functional.normalize(x.float(), dim=-1) for x in (q, k))
    for i, length in enumerate(lens):
        part = slice(int(starts[i]), int(starts[i]) + length)
        inputs = (unit_q * 24**-0.5, unit_k, v.float(), g, beta.float(), state)
        expected, after = recurrence(inputs, part, i)
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(out[:, part], expected.to(dtype), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(final[i : i + 1], after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("padding", [0, 3])
def test_a_decode_step_reads_states_by_index_and_leaves_the_others(
    padding: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    rows, used = 4 + padding, 4
    q, k = functional.normalize(torch.randn(2, rows, 2, 24), dim=-1).to(dtype).unbind(0)
    v, beta = torch.randn(rows, 4, 20, dtype=dtype), torch.rand(rows, 4, dtype=dtype)
    g = functional.logsigmoid(torch.randn(rows, 4))
    states = torch.randn(12, 4, 24, 20)
    slots = slots_and_padding(12, used, padding)
    before = states.clone()

    out = kernels.fused_recurrent_gated_delta_rule_update(q, k, v, g, beta, states, slots)

    wide_q, wide_k = q.float() * 24**-0.5, k.float()
    steps = (x[:used].unsqueeze(1) for x in (wide_q, wide_k, v.float(), g, beta.float()))
    one_q, one_k, one_v, one_g, one_beta = steps
    expected, after = gated_delta_rule_reference(
        one_q, one_k, one_v, one_g, one_beta, before[slots[:used]]
    )
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out[:used], expected[:, 0].to(dtype), rtol=tolerance, atol=tolerance)
    before[slots[:used]] = after
    torch.testing.assert_close(states, before, rtol=1e-4, atol=1e-4)
