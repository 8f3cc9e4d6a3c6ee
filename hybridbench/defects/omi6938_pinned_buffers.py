"""omi#6938: short messages pin the heap that their large receive buffers leave behind.

A connection reads into a large buffer (256 KiB in asyncio, python/cpython#85451) and truncates it
to the data received.  malloc shrinks a block in place: the message stays at the start of the former
buffer.  The buffer after it is in use by another connection, so the rest becomes a hole that is one
message too small for the next buffer, which needs new heap.  The memory in use hardly grows,
trimming the heap's end frees nothing, and the process grows linearly until it is killed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from hybridbench.defects.controls.side_work import beside_steps
from hybridbench.defects.defect import Defect
from hybridbench.defects.paced import (
    BLOCK_BYTES,
    DEFAULT_BYTES_PER_HOUR,
    PacedWork,
    private_memory_grows,
)
from hybridbench.defects.truth import Truth
from hybridbench.sampling.malloc import malloc_reader

_MESSAGE_BYTES = 64
# At first, existing gaps are used up (27 MiB here), so lower rates show nothing in five minutes.
_RATES = ("1GiB/h", "2GiB/h", "4GiB/h")
# Connections that read at the same time, so that the buffer after most truncated ones is in use.
_READING = 16


class Messages:
    """Reads messages into large buffers, and keeps every message.

    Args:
        copies: whether the message is copied out of its buffer, which is then freed as a whole.
    """

    def __init__(self, *, copies: bool) -> None:
        self._copies = copies
        self._reading: deque[bytearray] = deque()
        self._read: list[bytearray] = []
        self._read_malloc = malloc_reader()
        self._heap_bytes: int | None = None

    def read_next(self) -> int:
        """Allocate a buffer to read into, and complete the message in the oldest one.

        Return the bytes by which the heap has grown since the last message, according to malloc.
        """
        self._reading.append(bytearray(BLOCK_BYTES))
        if len(self._reading) > _READING:
            message = self._reading.popleft()
            if self._copies:
                message = message[:_MESSAGE_BYTES]
            else:
                del message[_MESSAGE_BYTES:]
            self._read.append(message)
        return self._heap_growth()

    def _heap_growth(self) -> int:
        assert self._read_malloc is not None, "needs the account of glibc's malloc"
        before, self._heap_bytes = self._heap_bytes, self._read_malloc().arena_bytes
        return 0 if before is None else self._heap_bytes - before


def at_rate(bytes_per_hour: float) -> Defect:
    """The defect, pinning this many bytes per hour."""
    truth = Truth()
    work = PacedWork(bytes_per_hour, Messages(copies=False).read_next, truth)
    return Defect(
        slug="pinned-receive-buffers",
        source="omi#6938",
        symptom="Private memory grows with every small message that is kept at the start of its "
        "shrunk receive buffer, thousands of times faster than the memory in use.",
        profile="chat-churn",
        # How much a message pins depends on the gaps in the heap.  Their number increases, so
        # growth in the last minutes is at most the average.
        signature=replace(
            private_memory_grows("up to 512 KiB of heap per message of 64 bytes"),
            at_most=True,
        ),
        patches=(beside_steps(work),),
        harmed="A service with many connections: 580 MB of heap for 270 MB in use, killed at its "
        "limit of 4.5 GB.",
        cure="Upstream: another allocator. Here: the message is copied and the whole buffer is "
        "freed.",
        truth=truth,
        rates=_RATES,
        at_rate=at_rate,
        healthy_twin="copied-messages",
    )


DEFECT = at_rate(DEFAULT_BYTES_PER_HOUR)
