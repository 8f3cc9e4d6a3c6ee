"""Where the tokens of a chunk are, for the Triton kernels over recurrent states."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_of_chunk(conv_rows, gate_rows, chunk, row, tokens, SIZE: tl.constexpr):
    """The tokens of a chunk, their rows of the convolution, and which places hold a token."""
    place = chunk * SIZE + row
    token = tl.load(gate_rows + place, mask=row < SIZE, other=tokens)
    in_row = token < tokens
    return token, tl.load(conv_rows + place, mask=in_row, other=0), in_row
