"""Decide when to save which states, so that the tree gets them at aligned lengths.

A state changes in place with every token, so one worth caching must be copied at the right moment.
A prefill copies at the last multiple of the chunk size within its step, or where the prompt
diverges from the cache.  A decode step copies where a request reaches a multiple of the interval.
A session keeps what its turns compute after the first prompt, so a copy would never be read.

Source: SGLang's extra_buffer strategy.  Its prefill counts multiples from the start of the step;
ours counts from the start of the request, so that short steps and odd prefixes also reach them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.forward_batch import NOT_TRACKED, IndexArray
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.engine.scheduler.schedule_batch import ScheduleBatch
from hybridbench.foundation.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class TrackLimits:
    """The lengths at which states are saved, in tokens; both are whole pages.

    Prefills save at multiples of ``chunk_size``, decode steps at multiples of ``interval``.  With
    ``branching``, a prefill saves where the prompt diverges from the cached KV, not at its end.
    """

    chunk_size: int
    interval: int
    branching: bool

    @classmethod
    def of(cls, config: EngineConfig) -> TrackLimits:
        """Return the limits for ``config``."""
        return cls(
            chunk_size=config.cache_chunk_size,
            interval=config.mamba_track_interval,
            branching=config.cache_branching_states,
        )


@dataclass(frozen=True, slots=True)
class Tracked:
    """A step's state copies, as the fields of the same names in ``ForwardBatch``."""

    mamba_track_seqlens: list[int] | None = None
    mamba_track_indices: IndexArray | None = None


NOTHING = Tracked()


class StateTracker:
    """Plans a step's state copies and records them once it has run."""

    def __init__(self, pools: Pools, limits: TrackLimits, counters: EngineCounters) -> None:
        self._pools = pools
        self._counters = counters
        self._limits = limits
        rows = pools.hybrid_rows
        self._rows = rows if rows is not None and rows.enable_mamba_extra_buffer else None

    def extend(self, reqs: Sequence[Req], prefix_lens: Sequence[int]) -> Tracked:
        """Plan the copies of a prefill step that is about to run; all ``reqs`` have rows."""
        if self._rows is None:
            return NOTHING
        seqlens = [
            self._due_in_prefill(req, prefix_len)
            for req, prefix_len in zip(reqs, prefix_lens, strict=True)
        ]
        return self._with_slots(self._rows, reqs, seqlens)

    def decode(self, reqs: Sequence[Req], seq_lens: Sequence[int]) -> Tracked:
        """Plan the copies of a decode step that brings ``reqs`` to ``seq_lens``."""
        if self._rows is None:
            return NOTHING
        interval = self._limits.interval
        if all(length % interval for length in seq_lens):
            return NOTHING
        seqlens = [
            length if length % interval == 0 and req.session is None else NOT_TRACKED
            for req, length in zip(reqs, seq_lens, strict=True)
        ]
        return self._with_slots(self._rows, reqs, seqlens)

    def complete(self, batch: ScheduleBatch) -> None:
        """Record the copies made by ``batch`` as the ones to keep from now on.

        Call this for a prefill after its launch, for a decode step only once its results are in:
        they may show that a request ended one step earlier.  A request whose record has changed
        since the batch was formed has released its buffer, so it is skipped.
        """
        seqlens = batch.forward.mamba_track_seqlens
        if self._rows is None or seqlens is None:
            return
        for req, record, seqlen in zip(batch.reqs, batch.records, seqlens, strict=True):
            if seqlen != NOT_TRACKED and req.kv is record:
                self._rows.complete_track(req, seqlen)
                self._counters.states_tracked += 1

    def complete_verified(self, batch: ScheduleBatch, taken: Sequence[int]) -> None:
        """Save the due states that lie within the accepted parts of the chains of ``batch``.

        These copies could not be planned, because the step determines how much is accepted.

        Args:
            batch: the verified batch; a request that was released since has 0 in ``taken``.
            taken: number of accepted tokens of each chain, including its first one.
        """
        if self._rows is None:
            return
        interval = self._limits.interval
        due: list[tuple[int, int, int]] = []  # slot, row in the batch, position in the chain
        for place, (req, prefix_len, count) in enumerate(
            zip(batch.reqs, batch.forward.prefix_lens, taken, strict=True)
        ):
            seqlen = (prefix_len + count) // interval * interval
            is_due = seqlen > prefix_len and req.session is None
            slot = self._take_slot(self._rows, req) if is_due else None
            if slot is not None:
                due.append((slot, place, seqlen - prefix_len - 1))
                self._rows.complete_track(req, seqlen)
        if due:
            slots, places, steps = zip(*due, strict=True)
            self._pools.mamba_pool.track_mamba_state_after_verify(slots, places, steps)
        self._counters.states_tracked += len(due)

    def _due_in_prefill(self, req: Req, prefix_len: int) -> int:
        """Return the length in (prefix, end of step] at which to save the state, or NOT_TRACKED."""
        if self._pools.sessions.find_active_slot(req) is not None:
            return NOT_TRACKED
        end = prefix_len + req.extend_input_len
        branching = req.mamba_branching_seqlen
        if self._limits.branching and branching is not None and prefix_len < branching <= end:
            return branching
        aligned = end // self._limits.chunk_size * self._limits.chunk_size
        return aligned if aligned > prefix_len else NOT_TRACKED

    def _with_slots(
        self, rows: HybridReqToTokenPool, reqs: Sequence[Req], seqlens: list[int]
    ) -> Tracked:
        """Allocate slots for the copies that are due; a copy without a slot is skipped."""
        if all(seqlen == NOT_TRACKED for seqlen in seqlens):
            return NOTHING
        slots = np.zeros(len(reqs), dtype=np.int64)
        for place, (req, seqlen) in enumerate(zip(reqs, seqlens, strict=True)):
            if seqlen == NOT_TRACKED:
                continue
            slot = self._take_slot(rows, req)
            if slot is None:
                seqlens[place] = NOT_TRACKED
            else:
                slots[place] = slot
        return Tracked(seqlens, slots)

    def _take_slot(self, rows: HybridReqToTokenPool, req: Req) -> int | None:
        """Take a slot of the request's buffer; the lazy strategy may evict a state for it."""
        slot = rows.take_track_slot(req)
        if slot is None and self._pools.make_mamba_room(1):
            slot = rows.take_track_slot(req)
        return slot
