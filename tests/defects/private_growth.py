"""How private memory grows by a defect's work and by its twin's: ``python -m ... SLUG``, as JSON.

In a process with little else in it, so that the gaps in its heap are its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from statistics import median

from hybridbench.defects.mlxlm1701_state_row_view import BatchedStates
from hybridbench.defects.omi6938_pinned_buffers import Messages
from hybridbench.defects.vllm24264_unreleased_mappings import TransferBuffers
from hybridbench.sampling.process import read_process_memory

# A block a call, healthy twin and defect.
WORKS: dict[str, tuple[Callable[[], int], Callable[[], int]]] = {
    "state-row-view": (
        BatchedStates(copies=True).next_batch,
        BatchedStates(copies=False).next_batch,
    ),
    "unreleased-mappings": (
        TransferBuffers(unreleased_max=32).transfer,
        TransferBuffers(unreleased_max=None).transfer,
    ),
    "pinned-receive-buffers": (
        Messages(copies=True).read_next,
        Messages(copies=False).read_next,
    ),
}


def grown(slug: str) -> dict[str, list[int]]:
    """In this process: how private memory grows by 100 blocks of the twin, then of the defect.

    The middle one of three stretches: something small that the interpreter keeps may lie down in
    the place of a buffer, once, and the next buffer then needs new heap.
    """
    found = {}
    for name, block in zip(("twin", "defect"), WORKS[slug], strict=True):
        # Queues are full, buffers are being read, and the gaps that were in the heap are used up.
        for _ in range(400):
            block()
        stretches = [_stretch(block) for _ in range(3)]
        found[name] = [int(median(values)) for values in zip(*stretches, strict=True)]
    return found


def _stretch(block: Callable[[], int]) -> tuple[int, int]:
    """What 100 blocks say they kept, and by how much private memory grew."""
    before = read_process_memory(os.getpid()).anon_swap_bytes
    kept = sum(block() for _ in range(100))
    return kept, read_process_memory(os.getpid()).anon_swap_bytes - before


if __name__ == "__main__":
    print(json.dumps(grown(sys.argv[1])))
