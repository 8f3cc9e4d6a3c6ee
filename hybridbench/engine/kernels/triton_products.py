"""Matrix products that keep float32's precision, for the Triton kernels over recurrent states.

The tensor cores multiply bfloat16 exactly and add in float32.  A float32 number is the sum of
three in bfloat16, so its product with a bfloat16 number takes three products and loses nothing
but what the sum rounds; two float32 numbers take three products of tf32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LEAST_BLOCK = 16
"""The smallest side of a product."""


def term_of(tensor: Tensor) -> tl.dtype:
    """The type that ``product`` multiplies bfloat16 in: Triton's interpreter cannot multiply it."""
    return tl.float32 if tensor.device.type == "cpu" else tl.bfloat16


def sum_of(state: Tensor) -> tl.dtype:
    """The type of sums and decays: that of states."""
    return tl.float64 if state.dtype == torch.float64 else tl.float32


@triton.jit
def product(left, right, TERM: tl.constexpr, SUM: tl.constexpr):
    """[A, B] times [B, C] in ``SUM``; either may be bfloat16, the other ``SUM`` or bfloat16."""
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
    """Three numbers in bfloat16, the largest first, whose sum is ``number`` in float32."""
    high = number.to(tl.bfloat16)
    rest = number - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)
