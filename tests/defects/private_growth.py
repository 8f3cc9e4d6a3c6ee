"""How private memory grows by a defect's work and by its twin's: ``python -m ... SLUG``, as JSON.

In a process with little else in it, so that the gaps in its heap are its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

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
    """In this process: how private memory grows by 100 blocks of the twin, then of the defect."""
    found = {}
    for name, block in zip(("twin", "defect"), WORKS[slug], strict=True):
        # Queues are full, buffers are being read, and the gaps that were in the heap are used up.
        for _ in range(400):
            block()
        before = read_process_memory(os.getpid()).anon_swap_bytes
        kept = sum(block() for _ in range(100))
        found[name] = [kept, read_process_memory(os.getpid()).anon_swap_bytes - before]
    return found


if __name__ == "__main__":
    print(json.dumps(grown(sys.argv[1])))
