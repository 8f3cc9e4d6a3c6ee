"""Locate the tokens of a chunk, for the Triton kernels over recurrent states."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_of_chunk(conv_rows, gate_rows, chunk, row, tokens, SIZE: tl.constexpr):
    """Return a chunk's tokens, their rows in the convolution's output, and the mask of tokens."""
    place = chunk * SIZE + row
    token = tl.load(gate_rows + place, mask=row < SIZE, other=tokens)
    in_row = token < tokens
    return token, tl.load(conv_rows + place, mask=in_row, other=0), in_row
