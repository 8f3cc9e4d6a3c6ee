"""Matrix products that keep float32's precision, for the Triton kernels over recurrent states.

The tensor cores multiply bfloat16 exactly and add in float32.  A float32 number is the sum of
three bfloat16 numbers, so its product with a bfloat16 number takes three products, and only the
sum rounds.  The product of two float32 numbers takes three tf32 products.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LEAST_BLOCK = 16
"""Minimum length of each side of a product."""


def term_of(tensor: Tensor) -> tl.dtype:
    """Return the type for bfloat16 products: float32 on a CPU, where Triton cannot do bfloat16."""
    return tl.float32 if tensor.device.type == "cpu" else tl.bfloat16


def sum_of(state: Tensor) -> tl.dtype:
    """Return the type of sums and decays: float64 for float64 states, else float32."""
    return tl.float64 if state.dtype == torch.float64 else tl.float32


@triton.jit
def product(left, right, TERM: tl.constexpr, SUM: tl.constexpr):
    """Multiply [A, B] by [B, C] in ``SUM``; each is bfloat16 or ``SUM``."""
    if left.dtype == tl.bfloat16 and right.dtype == tl.bfloat16:
        result = tl.dot(left.to(TERM), right.to(TERM))
    elif left.dtype == tl.bfloat16 and right.dtype == tl.float32:
        high, middle, low = _terms(right)
        result = tl.dot(left.to(TERM), low.to(TERM))
        result = tl.dot(left.to(TERM), middle.to(TERM), result)
        result = tl.dot(left.to(TERM), high.to(TERM), result)
    elif right.dtype == tl.bfloat16 and left.dtype == tl.float32:
        high, middle, low = _terms(left)
        result = tl.dot(low.to(TERM), right.to(TERM))
        result = tl.dot(middle.to(TERM), right.to(TERM), result)
        result = tl.dot(high.to(TERM), right.to(TERM), result)
    else:
        result = tl.dot(left.to(SUM), right.to(SUM), input_precision="tf32x3")
    return result


@triton.jit
def _terms(number):
    """Split the float32 ``number`` into three bfloat16 summands, largest first."""
    high = number.to(tl.bfloat16)
    rest = number - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)
