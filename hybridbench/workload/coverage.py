"""What a run must have reached to prove anything: floors on event counters, flat or by time."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

from pydantic import BeforeValidator, ConfigDict, WithJsonSchema
from pydantic.dataclasses import dataclass

from hybridbench.setting_types import CountOrZero
from hybridbench.workload.fields import Amount

# The engine's counters that traffic can drive; a test holds them against the engine's own record.
COVERAGE_COUNTERS: Final = (
    "requests_submitted", "requests_rejected", "requests_truncated", "disconnects", "admissions",
    "queue_limit_aborts", "queue_timeouts", "preemptions", "pauses", "refusals", "prefill_chunks",
    "prefix_hits", "prefix_hit_tokens", "prompt_tokens", "kv_blocks_stored", "match_calls",
    "evict_calls", "cow_copies", "node_splits", "tombstones", "evict_internal_state",
    "evict_leaf", "evict_cascade", "nodes_evicted", "swa_tombstones",
    "swa_releases", "swa_released_tokens", "retracts", "retract_retries",
    "session_opens", "session_closes", "session_deferred_closes", "session_timeouts",
    "session_turns", "session_rejected_turns", "session_restores", "session_restored_tokens",
    "session_retracts", "session_retries", "session_tail_frees", "session_abort_queued",
    "session_abort_prefill", "session_abort_decode", "abort_queued", "abort_prefill",
    "abort_decode", "finishes", "finish_length", "finish_stop", "output_tokens", "steps",
    "prefill_steps", "decode_steps", "surplus_steps", "late_tokens", "verify_steps",
    "drafts_proposed", "drafts_accepted", "draft_tails", "states_tracked", "track_donations",
    "host_backups", "host_stays", "host_load_backs", "host_load_back_tokens", "host_evictions",
    "host_evictions_refused", "host_late_acks",
)  # fmt: skip

# Of these, what only happens to recurrent states: a model without them has no such event.
OF_STATES: Final = frozenset(
    {
        "cow_copies", "tombstones", "evict_internal_state", "evict_cascade", "states_tracked",
        "track_donations",
    }
)  # fmt: skip

# And what only happens to sliding windows: not to a cache that keeps KV of all positions.
OF_WINDOWS: Final = frozenset({"swa_tombstones", "swa_releases", "swa_released_tokens"})

# And what only happens with a host tier.
OF_HOST_TIER: Final = frozenset(
    {
        "host_backups", "host_stays", "host_load_backs", "host_load_back_tokens",
        "host_evictions", "host_evictions_refused", "host_late_acks",
    }
)  # fmt: skip

_FLOOR = re.compile(r"(>=?)\s*(\d+(?:\.\d+)?)(?:\s*/\s*(min|s))?")
_NOT_A_FLOOR: Final = "write '>5/min' (grows with the run), '>=20' (any run) or {min: 20}"


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Floor:
    """The least count of one event: at least ``min``, and ``per_minute`` times the minutes."""

    min: CountOrZero = 1
    per_minute: Amount = 0.0

    def minimum(self, traffic_s: float) -> int:
        """The count that ``traffic_s`` seconds of traffic must reach."""
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
