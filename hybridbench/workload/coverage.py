"""Coverage requirements of a run: minimum counts of events, fixed or per minute."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

from pydantic import BeforeValidator, ConfigDict, WithJsonSchema
from pydantic.dataclasses import dataclass

from hybridbench.foundation.setting_types import CountOrZero
from hybridbench.workload.fields import Amount

# The engine's counters that traffic can drive, and what each counts; a test compares the names with
# the engine's own record.
COVERAGE_COUNTERS: Final[Mapping[str, str]] = {
    "requests_submitted": "requests that reached the engine",
    "requests_rejected": "requests rejected as invalid; a duplicate id is not counted here",
    "requests_truncated": "requests whose prompt was cut to the longest allowed",
    "disconnects": "requests whose client left before their end; also counted as aborts",
    "admissions": "requests admitted to a prefill batch",
    "queue_limit_aborts": "requests aborted because the waiting queue was full",
    "queue_timeouts": "requests aborted because they had waited too long",
    "preemptions": "requests retracted for one of higher priority; also counted as retracts",
    "pauses": "pauses of generation",
    "refusals": "steps in which a request was matched against the cache and did not fit; it stays "
    "in the queue, unlike a rejected one",
    "prefill_chunks": "prefill steps of prompts that took more than one",
    "prefix_hits": "admissions that reused a cached prefix",
    "prefix_hit_tokens": "prompt tokens taken from the cache",
    "prompt_tokens": "prompt tokens computed in prefill, without those taken from the cache",
    "kv_blocks_stored": "KV pages that entered the prefix tree",
    "match_calls": "prefix matches: one for each attempt to admit a request and, with the policy "
    "`lpm`, one for each waiting request when the queue is sorted",
    "evict_calls": "calls of the scheduler that evict from the cache",
    "lock_calls": "locks taken on tree nodes, each with the path to the root",
    "unlock_calls": "locks released on tree nodes",
    "cow_copies": "recurrent states copied from the cache to a request (copy on write)",
    "node_splits": "tree nodes split in two because a prompt diverged inside them",
    "tombstones": "tree nodes that lost their recurrent state and keep their KV",
    "evict_internal_state": "recurrent states evicted from inner tree nodes",
    "evict_leaf": "leaves evicted",
    "evict_cascade": "parents evicted because they hold no state and their last child was evicted",
    "nodes_evicted": "tree nodes evicted: leaves, and parents evicted with them",
    "swa_tombstones": "tree nodes that keep their KV and have no sliding-window part",
    "swa_releases": "releases of KV behind a request's sliding window",
    "swa_released_tokens": "tokens of those releases",
    "retracts": "running requests put back into the queue because a pool was full",
    "retract_retries": "admissions of requests that had been retracted",
    "session_opens": "sessions opened",
    "session_closes": "sessions closed, time-outs included",
    "session_deferred_closes": "sessions asked to close while a turn was running",
    "session_timeouts": "sessions closed because they were idle too long",
    "session_turns": "turns finished",
    "session_rejected_turns": "turns rejected: unknown, busy or closing session, or too long",
    "session_restores": "admissions that resumed from the state their session holds",
    "session_restored_tokens": "tokens that need no prefill because of that",
    "session_retracts": "turns retracted; also counted as retracts",
    "session_retries": "admissions of turns that had been retracted",
    "session_tail_frees": "turns resumed before the end of what their session holds; the rest is "
    "freed",
    "session_abort_queued": "turns aborted while queued; also counted as abort_queued",
    "session_abort_prefill": "turns aborted in prefill; also counted as abort_prefill",
    "session_abort_decode": "turns aborted in decode; also counted as abort_decode",
    "requests_aborted": "requests aborted at any stage",
    "abort_queued": "requests aborted while queued, by the client, its disconnect or the engine",
    "abort_prefill": "requests aborted in prefill",
    "abort_decode": "requests aborted in decode",
    "finishes": "requests that ended at their token limit or at a stop token",
    "finish_length": "requests that ended at their token limit",
    "finish_stop": "requests that ended at a stop token",
    "output_tokens": "tokens generated",
    "steps": "engine steps",
    "prefill_steps": "steps with a prefill batch",
    "decode_steps": "steps with a decode batch",
    "graph_replays": "decode steps that ran as a recorded CUDA graph",
    "surplus_steps": "steps of requests that had ended when the results arrived (overlap)",
    "late_tokens": "tokens discarded because their request had ended or been retracted",
    "verify_steps": "decode steps that verified draft tokens",
    "drafts_proposed": "draft tokens proposed",
    "drafts_accepted": "draft tokens accepted",
    "draft_tails": "KV pages left behind rejected draft tokens",
    "states_tracked": "recurrent states saved for the tree by prefill and decode steps",
    "track_donations": "saved states that the tree took over",
    "host_backups": "copies of KV or state to the host",
    "host_stays": "tree nodes evicted from the device that stay on the host",
    "host_load_backs": "copies of KV or state back to the device",
    "host_load_back_tokens": "tokens of those copies",
    "host_evictions": "tree nodes evicted from the host; also counted as nodes_evicted",
    "host_evictions_refused": "host evictions refused because a load was reading the node",
    "host_writes_refused": "copies to the host refused because it had no room",
    "host_loads_refused": "copies back to the device refused because it had no room",
    "host_late_acks": "host transfers that were not complete at the next step",
    "storage_backups": "tree nodes whose KV was written to the storage, or was there already",
    "storage_prefetches": "prefetches from the storage started",
    "storage_prefetched_tokens": "tokens that prefetches brought and the tree did not have",
    "storage_early_stops": "prefetches stopped before all of their pages had been read",
    "storage_failures": "reads and writes of the storage that failed",
    "forced_retract": "running requests retracted by `force`; also counted as retracts",
    "forced_refuse": "admissions refused by `force`; also counted as refusals",
    "forced_fail_allocation": "allocations failed by `force`",
    "forced_delay_transfer": "copies between device and host delayed by `force`",
    "forced_flush": "caches flushed by `force`",
    "forced_abort_queued": "requests aborted while queued by `force`",
    "forced_abort_prefill": "requests aborted between two chunks by `force`",
    "forced_abort_decode": "requests aborted in decode by `force`",
}

# Counters of recurrent states; a model without states has no such events.
OF_STATES: Final = frozenset(
    {
        "cow_copies", "tombstones", "evict_internal_state", "evict_cascade", "states_tracked",
        "track_donations",
    }
)  # fmt: skip

# Counters of sliding windows; a cache that keeps the KV of all positions has no such events.
OF_WINDOWS: Final = frozenset({"swa_tombstones", "swa_releases", "swa_released_tokens"})

# Counters of a prefix tree; a cache that finds KV blocks by their hash has no such events.
OF_TREES: Final = frozenset({"node_splits"})

# Counters of a host tier.
OF_HOST_TIER: Final = frozenset(
    {
        "host_backups", "host_stays", "host_load_backs", "host_load_back_tokens",
        "host_evictions", "host_evictions_refused", "host_writes_refused", "host_loads_refused",
        "host_late_acks", "storage_backups", "storage_prefetches", "storage_prefetched_tokens",
        "storage_early_stops", "storage_failures",
    }
)  # fmt: skip

_FLOOR = re.compile(r"(>=?)\s*(\d+(?:\.\d+)?)(?:\s*/\s*(min|s))?")
_NOT_A_FLOOR: Final = "write '>5/min' (grows with the run), '>=20' (any run) or {min: 20}"


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Floor:
    """The minimum count of one event: ``min``, or ``per_minute`` times the minutes if larger."""

    min: CountOrZero = 1
    per_minute: Amount = 0.0

    def minimum(self, traffic_s: float) -> int:
        """Return the minimum count for ``traffic_s`` seconds of traffic."""
        return max(self.min, math.floor(self.per_minute * traffic_s / 60.0))


def _floor(value: object) -> object:
    if isinstance(value, Floor | Mapping):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return {"min": value}
    match = _FLOOR.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a floor; {_NOT_A_FLOOR}")
    sign, number, per = match.groups()
    if per is not None:
        return {"per_minute": float(number) * (60.0 if per == "s" else 1.0)}
    if "." in number:
        raise ValueError(f"{value!r} counts events and must be whole; {_NOT_A_FLOOR}")
    return {"min": int(number) + (sign == ">")}


CoverageFloor: TypeAlias = Annotated[
    Floor,
    BeforeValidator(_floor),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "examples": [">5/min", ">=20"]},
                {"type": "integer", "minimum": 0},
                {
                    "type": "object",
                    "properties": {
                        "min": {"type": "integer", "minimum": 0},
                        "per_minute": {"type": "number", "minimum": 0},
                    },
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
