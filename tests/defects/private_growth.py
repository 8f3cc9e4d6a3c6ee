"""Measure how private memory grows from a defect's work and from its healthy twin's.

``python -m tests.defects.private_growth`` prints JSON.  Each defect has a forked process with few
other objects, so that gaps in its heap are due to the measured work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from statistics import median

from hybridbench.defects.mlxlm1701_state_row_view import BatchedStates
from hybridbench.defects.omi6938_pinned_buffers import Messages
from hybridbench.defects.vllm24264_unreleased_mappings import TransferBuffers
from hybridbench.sampling.process import read_process_memory

# The work of the healthy twin and of the defect; each call makes one block.
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
    """Measure, in this process, the growth from 100 blocks of the twin, then of the defect.

    The result is the median of three stretches, because a small object of the interpreter may once
    occupy the place of a freed buffer, so that the next buffer needs new heap.
    """
    found = {}
    for name, block in zip(("twin", "defect"), WORKS[slug], strict=True):
        # Warm up, until queues are full, buffers are in use, and gaps in the heap have been filled.
        for _ in range(400):
            block()
        stretches = [_stretch(block) for _ in range(3)]
        found[name] = [int(median(values)) for values in zip(*stretches, strict=True)]
    return found


def _stretch(block: Callable[[], int]) -> tuple[int, int]:
    """Return the bytes that 100 blocks report as kept, and the growth of private memory."""
    before = read_process_memory(os.getpid()).anon_swap_bytes
    kept = sum(block() for _ in range(100))
    return kept, read_process_memory(os.getpid()).anon_swap_bytes - before


def in_a_child(slug: str) -> dict[str, list[int]]:
    """Return ``grown(slug)``, measured in a fork of this process."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.write(writes, json.dumps(grown(slug)).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        found: dict[str, list[int]] = json.loads(pipe.read())
    os.wait()
    return found


if __name__ == "__main__":
    print(json.dumps({slug: in_a_child(slug) for slug in WORKS}))
