"""sglang#21624, sglang#20271: a node's slice of the host pool's free list keeps all of it alive.

A node needs the few host slots allocated to it.  They come as a slice of the array that lists the
free slots; when slots are freed, the list continues in a new array as long as the pool.  The
slices were not cloned, so each node kept alive the array that its slots were taken from.

Live nodes refer to all of these arrays, so no collection frees them, and no pool lacks a slot.
Growth levels off once each new node replaces an old one, at the number of nodes times the size of
the pool's list.
"""

from __future__ import annotations

import weakref

import numpy as np
from numpy.typing import NDArray

from hybridbench.defects.controls.side_work import beside_steps
from hybridbench.defects.defect import BYTES_KEPT, MILLISECONDS, Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.host_tier import HostTier
from hybridbench.engine.engine import Engine
from hybridbench.foundation.clock import Clock, SystemClock
from hybridbench.foundation.metrics import MEMORY

TRUTH = Truth()


class KeptStorages:
    """Tracks the arrays that nodes keep alive through slices.

    The truth counts the bytes that were added and the time over which they accumulated.

    Attributes:
        kept_bytes: their total size.
    """

    def __init__(self, truth: Truth, clock: Clock) -> None:
        self._truth = truth
        self._clock = clock
        self._alive: dict[int, weakref.ref[NDArray[np.int64]]] = {}
        self.kept_bytes = 0
        self._counted: tuple[int, float] | None = None

    def keep(self, slots: NDArray[np.int64]) -> None:
        """Record that a node keeps ``slots``, which may be a slice of a larger array."""
        array = slots if slots.base is None else slots.base
        assert isinstance(array, np.ndarray)
        address, size_bytes = id(array), array.nbytes
        if address in self._alive:
            return

        def gone(_: object) -> None:
            del self._alive[address]
            self.kept_bytes -= size_bytes

        self._alive[address] = weakref.ref(array, gone)
        self.kept_bytes += size_bytes

    def after_step(self, engine: Engine) -> None:
        """Count what has been kept since the previous step."""
        now_s = self._clock.monotonic_s()
        before, self._counted = self._counted, (self.kept_bytes, now_s)
        if before is not None:
            self._truth.add(BYTES_KEPT, self.kept_bytes - before[0])
            # Count whole milliseconds; the remainder is carried over to the next step.
            elapsed_ms = int(1000 * (now_s - before[1]))
            self._truth.add(MILLISECONDS, elapsed_ms)
            self._counted = self.kept_bytes, before[1] + elapsed_ms / 1000


KEPT = KeptStorages(TRUTH, SystemClock())


def _clone_host_indices(self: HostTier, host_indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Before #21624 nodes kept the slice itself."""
    del self
    KEPT.keep(host_indices)
    return host_indices


DEFECT = Defect(
    slug="hicache-view-retention",
    source="sglang#21624",
    symptom="Private memory grows by the size of the host pool's free list with nearly every "
    "prefix that is written to the host; no pool, container or count of objects moves.",
    profile="host-pool-fill",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("growth",),
        subject=MEMORY,
        event="prefix written to the host after host slots were freed",
        rate="8 bytes for each slot of the host pool",
        harm=BYTES_KEPT,
        per=MILLISECONDS,
        alone=True,
        duration_s=300.0,
        quick_s=0.0,
    ),
    patches=(
        Patch(HostTier, "_clone_host_indices", _clone_host_indices, fingerprint="ffaf5d56da0f"),
        beside_steps(KEPT),
    ),
    harmed="Multi-turn traffic with prefetches: resident memory of the scheduler grew steadily "
    "beyond its 77 GB (sglang#19332).",
    cure="Nodes clone the slots that they keep.",
    truth=TRUTH,
)
