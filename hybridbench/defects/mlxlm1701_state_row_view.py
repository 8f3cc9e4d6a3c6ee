"""mlx-lm#1701: a row taken from the batch's recurrent states as a view keeps the whole batch alive.

The row becomes part of the next batch, and the result keeps references to its inputs: batch N keeps
the row of batch N-1, which keeps its whole batch, one link per turn.  All of it is reachable, so no
collection frees it, and no list or table grows: only the next link refers to each link.  Models
with large recurrent states show it (Qwen3-Next, Kimi Linear, Mamba 2); KV caches were copied.

Upstream, the link was a node in the lazy-evaluation graph.  Here a batch is a separate mapping of
host memory, like memory for transfers.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

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

_ROW_BYTES = 64


@dataclass(frozen=True, slots=True)
class StateRow:
    """One sequence's state and the state that it was computed from."""

    state: memoryview | bytes
    built_from: StateRow | None


class BatchedStates:
    """The states of a batch of sequences, of which one row continues in the next batch.

    Args:
        copies: whether the row is copied out of its batch, with no reference to it.
    """

    def __init__(self, *, copies: bool) -> None:
        self._copies = copies
        self._row = StateRow(bytes(_ROW_BYTES), None)

    def next_batch(self) -> int:
        """Compute a batch of ``BLOCK_BYTES``, take its first row; return the bytes kept alive."""
        batch = mmap.mmap(-1, BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        batch.write(bytes(self._row.state) * (BLOCK_BYTES // _ROW_BYTES))
        view = memoryview(batch)[:_ROW_BYTES]
        if self._copies:
            self._row = StateRow(bytes(view), None)
            return 0
        self._row = StateRow(view, self._row)
        return len(batch)


def at_rate(bytes_per_hour: float) -> Defect:
    """The defect, keeping this many bytes per hour."""
    truth = Truth()
    work = PacedWork(bytes_per_hour, BatchedStates(copies=False).next_batch, truth)
    return Defect(
        slug="state-row-view",
        source="mlx-lm#1701",
        symptom="Private memory grows with every batch of which one row of states is kept; no "
        "pool, container or object count changes.",
        profile="chat-churn",
        signature=private_memory_grows("512 KiB per batch of which one row is kept"),
        patches=(beside_steps(work),),
        harmed="Agents on hybrid models: each turn left the states of a whole batch behind, and "
        "emptying the framework's cache freed nothing.",
        cure="The row is copied.",
        truth=truth,
        rates=RATES,
        at_rate=at_rate,
        healthy_twin="state-row-copy",
    )


DEFECT = at_rate(DEFAULT_BYTES_PER_HOUR)
