"""Cumulative event counts of an engine: plain ints that only grow, cheap to read at any time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter


@dataclass(slots=True)
class EngineCounters:
    """Cumulative event counts; profiles use them as coverage, findings name them as drivers.

    Reading is safe from another thread: each attribute is one int, written by the engine's thread.
    """

    # Front end.
    requests_submitted: int = 0
    requests_rejected: int = 0
    requests_truncated: int = 0
    disconnects: int = 0
    # Admission and prefill.
    admissions: int = 0
    refusals: int = 0  # matched, but not admitted in this step
    rollbacks: int = 0  # admitted, then returned to the queue because an allocation failed
    prefill_chunks: int = 0  # prefill steps of prompts that took more than one
    prefix_hits: int = 0  # admissions that reused a cached prefix
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0  # computed in prefill, reused tokens not included
    queue_limit_aborts: int = 0  # refused by a full queue, or displaced from it
    queue_timeouts: int = 0  # requests that waited too long
    preemptions: int = 0  # retracted for a request of higher priority; also counted in retracts
    pauses: int = 0
    # Cache.
    kv_blocks_stored: int = 0  # KV blocks (pages) that entered the tree
    kv_events_published: int = 0  # 0 unless KV cache events are enabled
    match_calls: int = 0
    evict_calls: int = 0  # by the scheduler; a cache may also evict within a match
    lock_calls: int = 0  # the locks now held in the tree are these minus ``unlock_calls``
    unlock_calls: int = 0
    cow_copies: int = 0
    node_splits: int = 0
    tombstones: int = 0
    evict_internal_state: int = 0
    evict_leaf: int = 0
    evict_cascade: int = 0
    swa_tombstones: int = 0  # nodes that lost, or never had, a part in the window pool
    swa_releases: int = 0  # requests that freed positions behind their window, per step
    swa_released_tokens: int = 0
    nodes_evicted: int = 0  # all nodes removed: leaves, their childless parents, host nodes
    states_tracked: int = 0  # copies of states saved for the tree by prefill and decode steps
    track_donations: int = 0  # saved copies that the tree took over
    flushes: int = 0
    # Host tier.
    host_backups: int = 0  # transfers that wrote KV to the host
    host_stays: int = 0  # nodes evicted from the device whose KV stayed on the host
    host_load_backs: int = 0  # transfers that loaded KV back to the device
    host_load_back_tokens: int = 0
    host_evictions: int = 0  # nodes evicted from the host; also counted in nodes_evicted
    host_evictions_refused: int = 0  # skipped because a transfer was reading the node
    host_writes_refused: int = 0  # for lack of room on the host
    host_loads_refused: int = 0  # for lack of room on the device
    host_late_acks: int = 0  # transfers not finished by the next step
    host_failures: int = 0  # transfers that failed
    storage_backups: int = 0  # nodes whose KV was written to storage, or was already there
    storage_prefetches: int = 0  # reads from storage that were started
    storage_prefetched_tokens: int = 0  # read and new to the tree
    storage_early_stops: int = 0  # prefetches that ended before all pages were read
    storage_failures: int = 0  # failed reads and writes of the storage
    # Sessions.
    session_opens: int = 0
    session_closes: int = 0  # time-outs included
    session_deferred_closes: int = 0  # requested while a turn was in progress
    session_timeouts: int = 0
    session_turns: int = 0  # finished turns
    session_rejected_turns: int = 0  # session unknown, busy or closing; turn too long
    session_restores: int = 0  # admissions that resumed from their session's slot
    session_restored_tokens: int = 0
    session_retracts: int = 0  # of turns; also counted in retracts
    session_retries: int = 0  # admissions of turns that had been retracted
    session_tail_frees: int = 0  # turns that resumed before the end of their sessions' KV
    session_abort_queued: int = 0  # of turns; also counted in abort_queued
    session_abort_prefill: int = 0
    session_abort_decode: int = 0
    session_evictions: int = 0  # slots released because no request could run otherwise
    # Retracts, aborts and finishes.
    retracts: int = 0
    retract_retries: int = 0  # admissions of requests that had been retracted
    requests_aborted: int = 0  # at any stage
    abort_queued: int = 0
    abort_prefill: int = 0
    abort_decode: int = 0
    abort_no_room: int = 0  # aborted by the engine for lack of room; also counted by stage
    finishes: int = 0
    finish_length: int = 0
    finish_stop: int = 0
    output_tokens: int = 0
    # Steps.
    steps: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    graph_replays: int = 0  # decode steps that replayed a recorded CUDA graph
    verify_steps: int = 0  # decode steps that verified draft tokens
    drafts_proposed: int = 0  # draft tokens
    drafts_accepted: int = 0  # draft tokens that became output
    draft_tails: int = 0  # KV pages freed behind rejected draft tokens, per request and step
    surplus_steps: int = 0  # steps of requests that finished before the results arrived
    late_tokens: int = 0  # discarded: the request had finished, been aborted or been retracted
    idle_steps: int = 0
    invariant_violations: int = 0

    def values(self) -> tuple[int, ...]:
        """All counts in the order of ``COUNTER_NAMES``; cheap enough to call after each step."""
        return _VALUES(self)

    def as_dict(self) -> dict[str, int]:
        """Name to count, in the order of declaration."""
        return dict(zip(COUNTER_NAMES, _VALUES(self), strict=True))


COUNTER_NAMES: tuple[str, ...] = tuple(field.name for field in fields(EngineCounters))
_VALUES: Callable[[EngineCounters], tuple[int, ...]] = attrgetter(*COUNTER_NAMES)


# The class of the object that each event removes from its structure.
REMOVED_CLASSES: Mapping[str, str] = {"nodes_evicted": "TreeNode", "finishes": "Req"}
