"""vllm#24264: memory that a transfer unmapped stays mapped, because a native library defers it.

UCX, which moves KV between servers under NIXL, intercepts ``munmap`` to keep its registrations
valid: what is to be unmapped waits in a queue of the library until the queue is processed, and on a
decode worker it never was.  The regions are anonymous mappings outside the heap, so profilers of
Python and of malloc saw nothing: 400 MB per minute.  vllm#32181 turned the interception off; later
releases limit the queue (``UCX_RCACHE_MAX_UNRELEASED=1024``).
"""

from __future__ import annotations

import ctypes
import mmap
from collections import deque

from hybridbench.defects.controls.side_work import beside_steps
from hybridbench.defects.defect import Defect
from hybridbench.defects.paced import (
    BLOCK_BYTES,
    DEFAULT_BYTES_PER_HOUR,
    RATES,
    PacedWork,
    private_memory_grows,
)
from hybridbench.defects.truth import Truth


class TransferBuffers:
    """Maps a buffer for each transfer, writes to it and queues it to be unmapped.

    Args:
        unreleased_max: the most buffers in the queue; None never unmaps any.
    """

    def __init__(self, unreleased_max: int | None) -> None:
        self._unreleased_max = unreleased_max
        self._unreleased: deque[int] = deque()
        libc = ctypes.CDLL(None)
        self._mmap, self._munmap = libc.mmap, libc.munmap
        size, number = ctypes.c_size_t, ctypes.c_int
        self._mmap.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_long)
        self._mmap.restype = ctypes.c_void_p
        self._munmap.argtypes = (ctypes.c_void_p, size)

    def transfer(self) -> int:
        """Run one transfer; return how many of its bytes stay mapped permanently."""
        access, private = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = self._mmap(None, BLOCK_BYTES, access, private, -1, 0)
        ctypes.memset(address, 1, BLOCK_BYTES)
        if self._unreleased_max is None:
            # Store no address: the library's queue is not a Python object.
            return BLOCK_BYTES
        self._unreleased.append(address)
        if len(self._unreleased) > self._unreleased_max:
            self._munmap(self._unreleased.popleft(), BLOCK_BYTES)
        return 0


def at_rate(bytes_per_hour: float) -> Defect:
    """The defect, keeping this many bytes an hour."""
    truth = Truth()
    work = PacedWork(bytes_per_hour, TransferBuffers(unreleased_max=None).transfer, truth)
    return Defect(
        slug="unreleased-mappings",
        source="vllm#24264",
        symptom="Private memory grows with every KV transfer, in mappings outside the heap; no "
        "pool, container or object count changes, and malloc's totals are flat.",
        profile="chat-churn",
        signature=private_memory_grows("512 KiB per transfer"),
        patches=(beside_steps(work),),
        harmed="Decode workers behind NIXL: 400 MB per minute, out of memory after hours; heap "
        "profilers found nothing.",
        cure="The library no longer intercepts munmap; later, its queue was limited.",
        truth=truth,
        rates=RATES,
        at_rate=at_rate,
        healthy_twin="released-mappings",
        quick=True,
    )


DEFECT = at_rate(DEFAULT_BYTES_PER_HOUR)
