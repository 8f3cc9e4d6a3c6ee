"""Compile every Triton kernel for a GPU, without needing one; a program without the interpreter.

The arguments are those of the tests, in three types.  Nothing is launched.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.kernel_compilation import TARGETS, compiling
from hybridbench.engine.kernels.dispatch import triton_kernels
from hybridbench.engine.kernels.page_allocation import triton_kernel as page_allocation
from tests.unit.engine.kernels import (
    test_causal_conv1d_triton,
    test_gated_delta_rule_triton,
    test_kv_store_triton,
    test_mamba2_triton,
    test_moe_triton,
    test_page_allocation_triton,
    test_paged_attention_triton,
    test_state_copy_triton,
)
from tests.unit.engine.kernels.agreement import Argument, random, typed

ALL = 9
ARGUMENTS: dict[str, tuple[list[Argument], int]] = {
    "store_kv": ([*test_kv_store_triton.arguments([8, 1], 2, 4)], ALL),
    "decode_attention": (test_paged_attention_triton.decode_arguments([40, 1], sinks=True), ALL),
    "extend_attention": (
        test_paged_attention_triton.extend_arguments([18], [35], window=33, sinks=True),
        ALL,
    ),
    "gdn_gating": (test_gated_delta_rule_triton.gating_arguments(2, 3), 2),
    "gated_delta_rule_update": (test_gated_delta_rule_triton.update_arguments([2, 1]), 0),
    "chunk_gated_delta_rule": (
        test_gated_delta_rule_triton.chunk_arguments([20, 3], track_offsets=[7, 0]),
        0,
    ),
    "causal_conv1d_update": (test_causal_conv1d_triton.update_arguments([2], bias=True), ALL),
    "causal_conv1d_varlen": (
        test_causal_conv1d_triton.varlen_arguments([2, 1], track_offsets=[1, 0], bias=True),
        ALL,
    ),
    "mamba2_state_update": (test_mamba2_triton.update_arguments([2, 1]), 0),
    "mamba2_chunk_scan": (test_mamba2_triton.chunk_arguments([20, 3], track_offsets=[7, 0]), 0),
    "route": ([random(2, 5), 2, True], 0),
    "experts_sorted": (test_moe_triton.expert_arguments([[4, 0], [0, 3]], biases=True), ALL),
    "alloc_extend": ([*test_page_allocation_triton.extend_arguments(16)], ALL),
    "alloc_decode": ([*test_page_allocation_triton.decode_arguments(16)], ALL),
    "copy_states": (test_state_copy_triton.arguments([1], [2]), ALL),
}
"""For each operation its arguments, and how many of the first have the type of a model's weights.

The others have the type of states, which is never half precision.
"""


def main() -> None:
    """Compile the operations named on the command line, or all."""
    table = triton_kernels()
    forms = {
        name: vars(table)[name]
        for name, kind in table.implementations().items()
        if kind == "triton"
    } | {"alloc_extend": page_allocation.alloc_extend, "alloc_decode": page_allocation.alloc_decode}
    with compiling(TARGETS["sm_90"]):
        for name in sys.argv[1:] or forms:
            arguments, of_model = ARGUMENTS[name]
            for weights in (torch.float32, torch.bfloat16, torch.float64):
                states = torch.float32 if weights == torch.bfloat16 else weights
                types = [weights] * of_model + [states] * len(arguments)
                forms[name](*(typed(*pair) for pair in zip(arguments, types, strict=False)))
                print(name, weights)


if __name__ == "__main__":
    main()
