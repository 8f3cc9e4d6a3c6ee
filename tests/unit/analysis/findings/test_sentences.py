"""The wording of each finding, and of the verdict above it."""

from __future__ import annotations

import re

import pytest

from hybridbench.analysis.findings.kinds import finding_kinds
from hybridbench.analysis.headline import in_headline, in_words
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.codec import to_json
from hybridbench.records.finding import Finding, Rate, VerdictKind, Words
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import Manifest
from hybridbench.records.threshold_result import ThresholdOutcome, ThresholdResult
from hybridbench.records.verdict import Verdict, Why
from tests.unit.analysis.records import Run, healthy_record
from tests.unit.made_findings import typed_finding

EXACTLY: dict[str, JsonValue] = {"driver_events": 40.0, "driver_share": 1.0, "driver_exact": True}
MOSTLY: dict[str, JsonValue] = {
    "driver_events": 4000.0,
    "driver_share": 0.98,
    "driver_exact": False,
    "rivals": ["tombstones", "a", "b", "c", "d"],
}
THREE = Rate(3.0, 3.0, 3.0, "state slots", "session close")
GROWTH: dict[str, JsonValue] = {"value": 3e9, "lower": 2.9e9, "upper": 3.1e9, "unit": "B"}
GROWING = to_json(Why("growing", GROWTH))
FEW = Why("too-few-samples", {"samples": 16, "judged_s": 474.0, "samples_needed": 30})
MISSED = ThresholdResult(
    text="rss.slope<200MiB/h",
    metric="rss_anon_swap_bytes",
    stat="slope",
    outcome=ThresholdOutcome.MISSED,
    limit=200 * 2.0**20,
    unit="B",
    per="h",
    value=3.45 * 2.0**30,
    lower=3.45 * 2.0**30,
    upper=3.45 * 2.0**30,
)
ABOUT = Rate(0.9, 0.885, 0.915, "entries", "retract")


def found(
    code: str,
    data: dict[str, JsonValue],
    *rates: Rate,
    subject: str = "subject",
    driver: str = "",
) -> Finding:
    return typed_finding(code, data, rates, subject, driver or None)


WORDS: dict[str, tuple[Finding, Words]] = {
    "slots missing at checkpoints": (
        found(
            "residual",
            {
                "pool": "mamba",
                "missing": 120.0,
                "at_checkpoints": [60.0, 120.0],
                "slots": [3, 4],
                "slot_holders": ["REQ"],
                "slots_reported": 1120,
                **EXACTLY,
            },
            THREE,
            driver="session_closes",
        ),
        Words(
            "120 state slots are missing, 3.00 per session close: neither free nor held by anyone",
            evidence=(
                "residual at the last checkpoints: 60, 120",
                "missing mamba slots, each with its last holder in the allocator's ledger: "
                "3 (a request), 4 and 1,118 more",
                "session_closes rose by 40; each event added exactly 3",
            ),
        ),
    ),
    "slots missing in the last samples": (
        found(
            "residual",
            {
                "pool": "kv",
                "missing": 5.0,
                "last_samples": 5,
                "slots": [7],
                "slots_reported": 1,
                "losing_steps": [{"counter": "retracts", "share": 0.6, "of_steps": 0.012}],
            },
        ),
        Words(
            "5 KV tokens are missing: neither free nor held by anyone",
            evidence=(
                "residual over the last 5 samples: at least 5",
                "missing kv slots: 7",
                "60% of the slots were lost in steps with retracts, which are 1.2% of all steps",
            ),
        ),
    ),
    "slots with two holders": (
        found(
            "negative-residual",
            {"pool": "kv", "surplus": 2.0, "at_checkpoints": [-1.0, -2.0]},
        ),
        Words(
            "2 KV tokens have more than one holder while idle",
            "a slot was freed twice, or is counted by two holders",
            ("residual at the last checkpoints: -1, -2",),
        ),
    ),
    "slots of requests that are gone": (
        found("held-at-idle", {"pool": "req", "held": 4.0}),
        Words(
            "4 request rows are held by requests that no longer exist",
            evidence=("in flight at the checkpoint at 1m15s",),
        ),
    ),
    "slots of closed sessions": (
        found(
            "held-by-closed-sessions",
            {
                "closed": 3.0,
                "open": 0.0,
                "at_checkpoints": [1.0, 3.0],
                "held": {"mamba": 9.0, "req": 3.0},
            },
        ),
        Words(
            "3 closed sessions still hold slots",
            "closing a session does not release what it holds",
            (
                "closed sessions with a row at the last checkpoints: 1, 3; 0 are still open",
                "they hold 9 state slots, 3 request rows",
            ),
        ),
    ),
    "blocks in use at idle": (
        found("in-use-at-idle", {"pool": "kv_blocks", "in_use": 9.0, "at_checkpoints": [3, 6, 9]}),
        Words(
            "9 KV blocks are in use with no request in the server",
            "they are neither free nor left in the prefix cache, and no request holds them",
            ("in use at the last idle points: 3, 6, 9",),
        ),
    ),
    "slots of transfers that never ended": (
        found("held-at-idle", {"pool": "host_kv", "held": 4.0}),
        Words(
            "4 KV tokens on the host are held by transfers that were never acknowledged",
            evidence=("in flight at the checkpoint at 1m15s",),
        ),
    ),
    "locks at idle": (
        found(
            "locks-at-idle",
            {"pool": "kv", "component": "full", "locks": 2.0, "at_checkpoints": [1.0, 2.0]},
        ),
        Words(
            "2 KV tokens are locked in the prefix tree with no request in the engine",
            "a lock was never released",
            ("locked at the last checkpoints: 1, 2",),
        ),
    ),
    "locks below zero": (
        found(
            "negative-locks",
            {"pool": "kv", "component": "full", "locks": -1.0, "at_checkpoints": [-1.0]},
        ),
        Words(
            "the count of locked KV tokens is -1 with no request in the engine",
            "a lock was released twice",
            ("locked at the last checkpoints: -1",),
        ),
    ),
    "a container that follows an event": (
        found(
            "container-grows",
            {
                "container": "journal",
                "first": 3.0,
                "last": 3600.0,
                "at_checkpoints": [],
                **MOSTLY,
            },
            ABOUT,
            driver="retracts",
        ),
        Words(
            "journal only grows: 3 to 3.60 k entries, 0.900 per retract",
            "entries are added and never removed",
            (
                "98% of the growth came in intervals in which retracts rose (by 4,000 in all)",
                "retracts cannot be distinguished in this run from tombstones, a, b, c and 1 more",
            ),
        ),
    ),
    "a container that is longer at each checkpoint": (
        found(
            "container-grows",
            {
                "container": "log",
                "first": 1.0,
                "last": 4.0,
                "checkpoints": 4,
                "at_checkpoints": [1.0, 2.0, 3.0, 4.0],
            },
        ),
        Words(
            "log was longer at each of 4 checkpoints: 1 to 4 entries",
            "entries are added and never removed",
            ("length at idle checkpoints: 1, 2, 3, 4",),
        ),
    ),
    "negative count": (
        found(
            "negative-count",
            {"part": "session_held_tokens", "least": -2.0, "looks": 3, "readings": 40},
        ),
        Words(
            "session held tokens is -2: the count fell below zero",
            cause="something was released, or taken off the count, twice",
            evidence=("in 3 of 40 readings, first at 1m15s",),
        ),
    ),
    "more free slots than the pool has": (
        found(
            "more-free-than-exist",
            {"pool": "mamba", "most": 1.0, "looks": 89, "readings": 239},
        ),
        Words(
            "free state slots exceed the size of the mamba pool by 1",
            cause="a slot was freed twice and is in the free list twice",
            evidence=("in 89 of 239 readings, first at 1m15s",),
        ),
    ),
    "admissions that did not fit": (
        found("admission-undone", {"undone": 1.0, "steps": 1200.0}),
        Words(
            "1 prefill step could not be allocated although admission had counted room",
            cause="admission and the allocators count the need or the room differently",
            evidence=("beside 1,200 prefill steps that ran; first at 1m15s",),
        ),
    ),
    "waiting requests with slots, by steps": (
        found(
            "waiting-holds-slots",
            {
                "pool": "mamba",
                "most": 4.0,
                "mean": 1.5,
                "samples": 200,
                "samples_holding": 50,
                "first_sample_s": 65.0,
                "checkpoints_holding": 1,
                "violations": 2,
                "violation": "r7 holds slot 4",
                "driver_events": 60.0,
                "driver_share": 1.0,
                "driver_rise": 40.0,
                "driver_of_steps": 0.06,
            },
            Rate(0.67, 0.6, 0.7, "state slots", "retract"),
            driver="retracts",
        ),
        Words(
            (
                "waiting requests hold state slots between steps (1.5 on average, at most 4 at "
                "once); each was allocated on a retract"
            ),
            cause="a slot taken during admission stays with the request after admission fails",
            evidence=(
                "waiting requests hold slots in 50 of 200 samples, first at 1m5s",
                (
                    "waiting requests took a slot 40 times, 100% of these in a step with retracts "
                    "(60 in all), although only 6% of all steps have any"
                ),
                "still held at 1 checkpoint",
                "reported by the engine's own check 2 times: r7 holds slot 4",
            ),
        ),
    ),
    "waiting requests with slots, by the engine's word": (
        found(
            "waiting-holds-slots",
            {"pool": "mamba", "violations": 1, "violation": "r7 holds slot 4"},
        ),
        Words(
            "waiting requests hold state slots between steps (reported by the engine)",
            cause="a slot taken during admission stays with the request after admission fails",
            evidence=("reported by the engine's own check 1 time: r7 holds slot 4",),
        ),
    ),
    "requests without a client": (
        found(
            "running-without-client",
            {
                "most": 6.0,
                "mean": 2.25,
                "request_seconds": 480.0,
                "readings": 100,
                "readings_with": 80,
                "driver_events": 30.0,
                "driver_share": 0.9,
            },
            driver="disconnects",
        ),
        Words(
            (
                "up to 6 requests kept running after their client left (2.2 on average); "
                "each began with a disconnect"
            ),
            cause="the disconnect did not reach the request, which decodes to its limit",
            evidence=(
                "in 80 of 100 readings, first at 1m15s",
                "480 request-seconds of rows, slots and steps were spent on them",
                "90% of them appeared in intervals in which disconnects rose (30 events)",
            ),
        ),
    ),
    "a request without tokens": (
        found(
            "request-too-old",
            {
                "metric": "oldest_silence_s",
                "age_s": 300.0,
                "finished_meanwhile": 2400.0,
                "turnovers": 75.0,
                "usual_s": 4.0,
            },
        ),
        Words(
            "a request has had no token for 5m, while 2.40 k others finished",
            cause="its completion was lost: what it holds stays taken",
            evidence=(
                "requests served since then: 75 times the number in the engine at once",
                "the longest before it: 4s",
            ),
        ),
    ),
    "an engine that serves nobody": (
        found(
            "stalled",
            {"requests": 12.0, "stalled_s": 245.0, "steps": 4_820_148.0},
        ),
        Words(
            "no request was served for 4m5s, with 12 requests in the engine",
            cause="the scheduler waits for something that never comes, or refuses every request",
            evidence=("4,820,148 steps without a forward pass, the first at 1m15s",),
        ),
    ),
    "an engine that is not idle": (
        found("not-idle", {"requests": 2.0, "waited_s": 120.0}),
        Words(
            "the engine was not idle 2m after its traffic had ended, with 2 requests in it",
            cause="a request or a transfer does not end, or the machine is far too slow",
        ),
    ),
    "a request that stays": (
        found(
            "request-too-old",
            {
                "metric": "oldest_request_s",
                "age_s": 600.0,
                "finished_meanwhile": 4800.0,
                "turnovers": 150.0,
                "usual_s": 20.0,
            },
        ),
        Words(
            "a request has been in the engine for 10m, while 4.80 k others finished",
            evidence=(
                "requests served since then: 150 times the number in the engine at once",
                "the longest before it: 20s",
            ),
        ),
    ),
    "objects that wait for the collector": (
        found(
            "instances-wait-for-collector",
            {
                "unit": "tree nodes",
                "most": 2200.0,
                "last": 2100.0,
                "probes": 24,
                "probes_with_strays": 20,
                "retained_most": 0.0,
                "retained_measured": True,
                "collectible_most": 2200.0,
                "collections": 2,
                "stretches": 3,
                "collectible_bytes_most": 66e6,
                "collectible": {"share": 0.97, "value": 2.9e9, "lower": 2.8e9, "upper": 3e9},
                **EXACTLY,
            },
            Rate(0.97, 0.96, 0.98, "tree nodes", "evicted node"),
            driver="nodes_evicted",
        ),
        Words(
            "removed subject objects wait for the garbage collector: 0.970 per evicted node",
            cause="removed objects still refer to each other: only a full collection frees them",
            evidence=(
                "removed objects alive in 20 of 24 heap scans, first at 1m15s; at most 2.20 k at "
                "once, 2.10 k in the last",
                "a full collection would free all of them: nothing else refers to them",
                "2 full collections during the run; rates are from 3 stretches between them",
                "collectible memory reached 62.9 MiB before a full collection",
                (
                    "collectible memory grows by 2.70 GiB/h (95% interval 2.61 to 2.79 GiB/h): 97% "
                    "of the memory growth"
                ),
                "nodes_evicted rose by 40; each event added exactly 0.97",
            ),
        ),
    ),
    "objects without a collection": (
        found(
            "instances-retained",
            {
                "unit": "tree nodes",
                "most": 9.0,
                "last": 9.0,
                "probes": 24,
                "probes_with_strays": 20,
                "retained_most": 0.0,
                "collectible_most": 0.0,
                "collections": 0,
                "stretches": 2,
            },
        ),
        Words(
            "up to 9 removed subject objects stay alive, and something still refers to them",
            cause="something still refers to objects that the engine has removed",
            evidence=(
                "removed objects alive in 20 of 24 heap scans, first at 1m15s; at most 9 at "
                "once, 9 in the last",
                "no full collection during the run",
            ),
        ),
    ),
    "objects that survive": (
        found(
            "instances-retained",
            {
                "unit": "tree nodes",
                "most": 2200.0,
                "last": 2100.0,
                "probes": 24,
                "probes_with_strays": 20,
                "retained_most": 2000.0,
                "collectible_most": 1900.0,  # from another scan, so the two do not add up
                "retained_share": 0.52,
                "probes_tried": 18,
                "fullest_s": 200.0,
                "fullest_retained": 1200.0,
                "fullest_collectible": 970.0,
            },
            Rate(0.99, 0.98, 1.0, "tree nodes", "evicted node"),
            Rate(131_204.5, 129_000.0, 133_000.0, "tree nodes", "h"),
            Rate(197 * 2.0**20, 0.0, 513 * 2.0**20, "B", "h"),
            driver="nodes_evicted",
        ),
        Words(
            (
                "removed subject objects stay alive (52% survive a full gc.collect()): 0.990 per "
                "evicted node, 131 k/h"
            ),
            cause=(
                "48% form reference cycles or hang from one, which only a full collection frees; "
                "the other 52% are still referenced by objects in use, so a collection keeps them"
            ),
            evidence=(
                "removed objects alive in 20 of 24 heap scans, first at 1m15s; at most 2.20 k at "
                "once, 2.10 k in the last",
                "in 18 heap scans with a trial collection, all together: it frees 48% of the "
                "removed objects, 52% survive it",
                "in the fullest of them, at 3m20s: 970 freed, 1.20 k survive",
            ),
        ),
    ),
    "objects that survive, at a rate that may be none": (
        found(
            "instances-wait-for-collector",
            {
                "unit": "tree nodes",
                "most": 2200.0,
                "last": 2100.0,
                "probes": 24,
                "probes_with_strays": 20,
                "retained_most": 2000.0,
                "collectible_most": 2100.0,
            },
            Rate(131_204.5, -1_000.0, 263_000.0, "tree nodes", "h"),
        ),
        Words(
            ("up to 2.20 k removed subject objects stay alive (some survive a full gc.collect())"),
            cause=(
                "some form reference cycles or hang from one, which only a full collection frees; "
                "the others are still referenced by objects in use, so a collection keeps them"
            ),
            evidence=(
                "removed objects alive in 20 of 24 heap scans, first at 1m15s; at most 2.20 k at "
                "once, 2.10 k in the last",
            ),
        ),
    ),
    "objects of which none is collected": (
        found(
            "instances-retained",
            {
                "unit": "tree nodes",
                "most": 2200.0,
                "last": 2100.0,
                "probes": 24,
                "probes_with_strays": 20,
                "retained_most": 2200.0,
                "collectible_most": 0.0,
            },
        ),
        Words(
            "up to 2.20 k removed subject objects survive a full gc.collect()",
            cause="something still refers to objects that the engine has removed",
            evidence=(
                "removed objects alive in 20 of 24 heap scans, first at 1m15s; at most 2.20 k at "
                "once, 2.10 k in the last",
                "up to 2.20 k tree nodes survive a full collection",
            ),
        ),
    ),
    "growth with an event": (
        found(
            "growth",
            {
                "model": "linear",
                "why": GROWING,
                "judged_s": 600.0,
                "q_value": 1e-4,
                "metrics_tested": 9,
                "exhaustion": {
                    "limit": 16e9,
                    "limit_is": "the memory limit of the control group",
                    "expected_s": 3600.0,
                    "soonest_s": 3000.0,
                    "latest_s": 4000.0,
                },
                **MOSTLY,
            },
            Rate(3e9, 2.9e9, 3.1e9, "B", "h"),
            Rate(1e5, 0.9e5, 1.1e5, "B", "retract"),
            subject="rss_anon_swap_bytes",
            driver="retracts",
        ),
        Words(
            "private memory grows by 2.79 GiB/h, 97.7 KiB per retract",
            evidence=(
                "best model: linear; growing by 2.79 GiB/h (2.70 GiB/h to 2.89 GiB/h); its samples "
                "span 10m",
                "false-alarm probability: 1 in 10,000 runs (Holm-adjusted over 9 gated metrics)",
                (
                    "at this rate the limit of 14.9 GiB is reached in 1h (50m to 1h6m) (the "
                    "memory limit of the control group)"
                ),
                ("98% of the growth came in intervals in which retracts rose (by 4,000 in all)"),
                (
                    "retracts cannot be distinguished in this run from tombstones, a, b, c and "
                    "1 more"
                ),
            ),
        ),
    ),
    "growth that may level off": (
        found(
            "growth",
            {
                "model": "linear",
                "why": GROWING,
                "judged_s": 600.0,
                "q_value": 1e-12,
                "metrics_tested": 9,
                "collectible": {"share": 1.2, "value": 3.2e9, "lower": 3.1e9, "upper": 3.3e9},
                "exhaustion": {
                    "limit": 16e9,
                    "limit_is": "the memory limit of the control group",
                    "expected_s": 3600.0,
                    "soonest_s": 3000.0,
                    "latest_s": None,
                },
            },
            Rate(3e9, 2.9e9, 3.1e9, "B", "h"),
            subject="rss_anon_swap_bytes",
        ),
        Words(
            "private memory grows by 2.79 GiB/h",
            cause="uncollected cyclic garbage, which only a full collection frees",
            evidence=(
                "best model: linear; growing by 2.79 GiB/h (2.70 GiB/h to 2.89 GiB/h); its samples "
                "span 10m",
                (
                    "collectible memory grows by 2.98 GiB/h (95% interval 2.89 to 3.07 GiB/h), "
                    "faster than private memory: it accounts for all of the growth and reuses "
                    "memory that was freed before"
                ),
                (
                    "false-alarm probability: less than 1 in 1,000,000 runs (Holm-adjusted over"
                    " 9 gated metrics)"
                ),
                (
                    "at this rate the limit of 14.9 GiB is reached in 1h (50m to never) (the "
                    "memory limit of the control group)"
                ),
            ),
        ),
    ),
    "growth of a part beyond the process": (
        found(
            "growth",
            {
                "model": "linear",
                "why": GROWING,
                "judged_s": 600.0,
                "faster_than_memory": {
                    "value": 3e9,
                    "lower": 2.9e9,
                    "upper": 3.1e9,
                    "memory_upper": 3e6,
                },
                "segments": [1, 2],
            },
            Rate(3e9, 2.9e9, 3.1e9, "B", "h"),
            subject="rss_anon_swap_bytes",
        ),
        Words(
            "private memory grows by 2.79 GiB/h",
            evidence=(
                (
                    "these objects accumulate 2.79 GiB/h (95% interval 2.70 to 2.89 GiB/h) between "
                    "collections, more than private memory grows by (at most 2.86 MiB/h, 95%): "
                    "they reuse memory that was freed before, so this is not growth of the process"
                ),
                "best model: linear; growing by 2.79 GiB/h (2.70 GiB/h to 2.89 GiB/h); its samples "
                "span 10m",
                "in segments 1 and 2",
            ),
        ),
    ),
    "an undecided metric": (
        found(
            "undecided",
            {"why": to_json(FEW), "needed_s": 888.0, "judged_s": 474.0},
            subject="rss_anon_swap_bytes",
        ),
        Words("private memory: too few samples (16 of 30 in 7m54s); about 6m54s more would decide"),
    ),
    "an undecided extension": (
        found("undecided", {"open": "extension"}, subject="rss_anon_swap_bytes"),
        Words(
            "the extension ended before two interim analyses on clearly different data "
            "agreed; run longer"
        ),
    ),
    "nothing judged": (
        found("undecided", {"open": "no-window"}, subject="rss_anon_swap_bytes"),
        Words("the run ended before anything could be judged"),
    ),
    "nothing judged, because the watched program ended": (
        found(
            "undecided",
            {"open": "no-window", "ended": "the target ended by itself (exit code 0)"},
            subject="run",
        ),
        Words(
            "the run ended before anything could be judged: the target ended by itself "
            "(exit code 0)"
        ),
    ),
    "growth by the bench": (
        found(
            "observer-grows",
            {"memory": {"value": 3e9, "lower": 2.9e9, "upper": 3.1e9}, "share": 0.9, "probes": 60},
            Rate(3e9, 2.9e9, 3.1e9, "B", "h"),
            Rate(1e5, 0.9e5, 1.1e5, "B", "probe"),
        ),
        Words(
            "answering probes makes the worker grow: 97.7 KiB per probe, 2.79 GiB/h",
            cause="the answers to probes are kept, or each is larger than the one before",
            evidence=(
                (
                    "of 2.79 GiB/h (95% interval 2.70 to 2.89 GiB/h) in all, 90% or more came "
                    "while 60 probes were answered"
                ),
                "the run says nothing about the engine's own growth",
            ),
        ),
    ),
    "decay in a step": (
        found(
            "decay",
            {
                "before": 0.1,
                "after": 0.3,
                "shape": "step",
                "sure_change": 1.5,
                "least_change": 0.15,
            },
            subject="forward_ms",
            driver="nodes_evicted",
        ),
        Words(
            "the time of the model per token rose in one step from 0.1 ms to 0.3 ms",
            evidence=(
                "worse by at least 150% (99.9%); changes of 15% or more are reported",
                "adjusted for batch sizes and prompt lengths",
                "the other times of the run did not rise with it, so it is not the machine",
                "it follows nodes_evicted better than it follows time",
            ),
        ),
    ),
    "decay of a rate": (
        found(
            "decay",
            {
                "before": 0.9,
                "after": 0.5,
                "shape": "trend",
                "sure_change": 0.35,
                "least_change": 0.1,
            },
            subject="hit_rate",
        ),
        Words(
            "the share of prompt tokens served by the cache fell steadily from 90% to 50%",
            evidence=("worse by at least 35% (99.9%); changes of 10% or more are reported",),
        ),
    ),
    "a limit on a cost": (
        found(
            "below-threshold",
            {"value": 0.3, "lower": 0.25, "upper": 0.35, "limit": 0.2},
            subject="forward_ms",
        ),
        Words(
            ("the time of the model per token is 0.3 ms, above the profile's limit of 0.2 ms"),
            evidence=("0.25 ms to 0.35 ms over the judged window (99.9%)",),
        ),
    ),
    "a missed threshold": (
        found(
            "threshold",
            {
                "threshold": "rss.slope<200MiB/h",
                "measured": to_json(MISSED),
                "needed_s": 240.0,
                "settling_s": 240.0,
            },
        ),
        Words(
            (
                "rss.slope<200MiB/h is missed: 3.45 GiB/h, but in less than 4m growth may "
                "be settling"
            ),
            evidence=("the user's threshold: rss.slope<200MiB/h",),
        ),
    ),
    "a threshold that cannot be checked": (
        found("threshold", {"threshold": "x<1", "error": "'x<1' names no metric"}),
        Words("the threshold 'x<1' names no metric, and is not checked"),
    ),
    "a crash": (
        found("crash", {"reason": "oom", "detail": "limit of 8 GiB", "stderr": ["a", "b"]}),
        Words(
            "the worker was OOM-killed after 1m15s: limit of 8 GiB",
            evidence=(
                "stderr: a",
                "stderr: b",
            ),
        ),
    ),
    "a crash of a watched program": (
        found(
            "crash",
            {"reason": "exit", "detail": "(exit code 2)", "stderr": [], "target": "vllm"},
        ),
        Words("vllm exited after 1m15s (exit code 2)"),
    ),
    "a watched program that is killed by a signal": (
        found(
            "crash",
            {
                "reason": "signal",
                "detail": "the worker was killed by SIGKILL, with 2 requests in flight: 2 long",
                "stderr": [],
                "target": "vllm",
            },
        ),
        Words("vllm was killed by SIGKILL after 1m15s, with 2 requests in flight: 2 long"),
    ),
    "a watched program whose child raised": (
        found(
            "crash",
            {
                "reason": "signal",
                "detail": "the worker was killed by SIGKILL, with 2 requests in flight: 2 long",
                "stderr": [],
                "target": "vllm",
                "raised": "RuntimeError in topk (logprob.py:40)",
            },
        ),
        Words(
            "vllm was killed by SIGKILL after 1m15s: RuntimeError in topk (logprob.py:40), with 2 "
            "requests in flight: 2 long"
        ),
    ),
    "a watched program that hangs": (
        found(
            "crash",
            {
                "reason": "hang",
                "detail": "it has sent nothing to waiting requests since 31s into the run",
                "stderr": ["a"],
                "stacks": ["vllm: main thread: acquire (server.py:7)"],
                "target": "vllm",
            },
        ),
        Words(
            "vllm was killed after 1m15s: it has sent nothing to waiting requests since 31s into "
            "the run",
            evidence=("vllm: main thread: acquire (server.py:7)", "stderr: a"),
        ),
    ),
    "an address where nothing listens": (
        found(
            "crash",
            {
                "reason": "unreachable",
                "detail": "it answered no request within 1m: http://h:9/v1/models: refused",
                "stderr": [],
                "target": "h-9",
            },
        ),
        Words(
            "h-9 could not be reached after 1m15s: it answered no request within 1m: "
            "http://h:9/v1/models: refused"
        ),
    ),
    "a server with a supervisor": (
        found(
            "restarted",
            {"server": "vllm", "at_s": [61.0, 75.0], "processes": ["api ended"], "failed": 1},
        ),
        Words(
            "vllm was restarted 2 times by something other than this run, after 1m1s, 1m15s",
            evidence=("api ended", "connections of 1 request broke around these times"),
        ),
    ),
    "answers that lack their end, of a server without logprobs": (
        found(
            "answers-differ",
            {
                "wrong": 2,
                "compared": 412,
                "tokens": 9000,
                "tolerance": None,
                "control": 0,
                "noise": 0.0,
                "noise_tokens": 0,
                "usual_gap": 0.0,
                "examples": [
                    {"place": 3, "prompt_tokens": 90, "certain": "length"},
                    {"place": 0, "prompt_tokens": 90, "certain": "text"},
                ],
            },
        ),
        Words(
            "2 of 412 answers differ from those to the same requests alone, without cache",
            cause="the server computed them from the wrong state or KV, or gave them to the wrong "
            "request",
            evidence=(
                "a request of 90 prompt tokens: its answer and the one that the server gives it "
                "alone, three times, diverge at output token 4, and the shorter one ends before "
                "the limit",
                "a request of 90 prompt tokens: its tokens are those that the server gives it "
                "alone, but not its text",
                "control: of as many answers computed together without the cache, 0 differ in the "
                "same way",
                "the effect of rounding was not measured: it cannot cause these differences",
            ),
        ),
    ),
    "a watched program that never answers": (
        found(
            "crash",
            {
                "reason": "hang",
                "detail": "it answered no request within 5m: HTTP status 503",
                "stderr": [],
                "target": "vllm",
            },
        ),
        Words("vllm was killed after 1m15s: it answered no request within 5m: HTTP status 503"),
    ),
    "a crash by a signal": (
        found(
            "crash",
            {"reason": "signal", "detail": "the worker was killed by SIGKILL", "stderr": []},
        ),
        Words("the worker was killed by SIGKILL after 1m15s"),
    ),
    "a crash over a key of a prefix tree": (
        found(
            "crash",
            {
                "reason": "exit",
                "detail": f"KeyError: {bytes(range(40))!r} (exit code 1)",
                "stderr": [],
            },
        ),
        Words("the worker exited after 1m15s: KeyError: b'...' (exit code 1)"),
    ),
    "a false alarm": (
        found(
            "false-alarm",
            {"kind": "residual", "count": 3, "last_slots": 2, "last_s": 90.0},
        ),
        Words(
            (
                "the engine's check reported missing slots, but the next checkpoint "
                "accounts for all (3 times)"
            ),
            evidence=(
                "3 times, first at 1m15s",
                "2 slots in the last report, at 1m30s",
            ),
        ),
    ),
    "a check of the engine": (
        found(
            "engine-alias",
            {
                "kind": "alias",
                "message": "slot 4 has two owners",
                "count": 1,
                "last_slots": 0,
                "last_s": 75.0,
            },
        ),
        Words(
            "the engine's own check (alias): slot 4 has two owners",
            evidence=("1 time, first at 1m15s",),
        ),
    ),
    "lines of the log": (
        found(
            "engine-said",
            {
                "words": "double free",
                "lines": ["free  of slot 4 twice", "and again"],
                "count": 2,
                "last_s": 90.0,
            },
        ),
        Words(
            'the engine\'s log reports a double free: "free of slot 4 twice"',
            evidence=(
                "2 lines, first at 1m15s, last at 1m30s",
                'log: "and again"',
            ),
        ),
    ),
    "too few samples": (
        found("too-few-samples", {"samples": 3}),
        Words("only 3 samples of the worker's memory were taken; run longer"),
    ),
    "valid requests that were refused": (
        found("valid-refused", {"refused": 546, "sent": 1150, "reason": "temperature is 0.0"}),
        Words(
            "546 of 1,150 requests were refused although the profile makes them valid",
            evidence=("the first: temperature is 0.0",),
        ),
    ),
    "a valid request that was refused before the run was cut off": (
        found("valid-refused", {"refused": 0, "sent": 0, "reason": "temperature is 0.0"}),
        Words(
            "some requests were refused although the profile makes them valid",
            evidence=("the first: temperature is 0.0",),
        ),
    ),
    "nothing served": (
        found("nothing-served", {"counter": "scraped.requests_total", "judged_s": 540.0}),
        Words(
            "the target answered no request in the judged 9m",
            evidence=("requests_total did not rise",),
        ),
    ),
    "most requests failed": (
        found("mostly-failed", {"answered": 287, "failed": {"500": 10, "error-in-answer": 910}}),
        Words(
            "920 requests failed in the judged window, and only 287 were answered",
            evidence=("500: 10", "error-in-answer: 910"),
        ),
    ),
    "a late client": (
        found("client-late", {"late_s": 1.25, "cpu_share": 0.97}),
        Words(
            "the load client was 1,250 ms late at the 99th percentile and took 97% of a "
            "processor, so the load was not as requested"
        ),
    ),
    "paths not taken": (
        found(
            "coverage",
            {
                "missing": [
                    {"counter": "retracts", "seen": 11.0, "required": 1000},
                    {"counter": "aborts", "seen": 0.0, "required": 5},
                ]
            },
        ),
        Words("the traffic did not cause the required events: retracts 11 of 1,000, aborts 0 of 5"),
    ),
    "many paths not taken": (
        found(
            "coverage",
            {
                "missing": [
                    {"counter": f"counter_{index}", "seen": 0.0, "required": 5}
                    for index in range(4)
                ]
            },
        ),
        Words(
            "the traffic did not cause the required events: counter_0 0 of 5, counter_1 0 of 5 and "
            "2 more",
            evidence=("counter_0 0 of 5, counter_1 0 of 5, counter_2 0 of 5, counter_3 0 of 5",),
        ),
    ),
    "interrupted": (
        found(
            "interrupted",
            {
                "missing": [{"counter": "aborts", "seen": 0.0, "required": 5}],
                "at_s": 4412.0,
                "served_s": 4400.0,
                "planned_s": 7200.0,
            },
        ),
        Words(
            "interrupted after 1h13m, before all required events were seen",
            evidence=(
                "1h13m of the planned 2h of traffic were served",
                "not seen as often as required: aborts 0 of 5",
            ),
        ),
    ),
    "gaps": (
        found("gaps", {"missing_s": 30.0, "judged_s": 300.0}),
        Words("30s of the judged 5m have no samples"),
    ),
    "late samples": (
        found("sampler-late", {"share": 0.2, "limit_s": 2.0}),
        Words("20% of the samples were more than 2s late"),
    ),
    "swapping": (
        found("swapping", {"swapped_bytes": 64e6}),
        Words("the host swapped out 61.0 MiB of the worker in the judged window"),
    ),
    "a full disk": (
        found("disk-full", {"message": "no space"}),
        Words("the run could not be written to its end: no space"),
    ),
    "a silent worker": (
        found("worker-silent", {"silent_s": 20.0, "judged_s": 300.0}),
        Words("the worker did not answer for 20s of the judged 5m, as if it had been stopped"),
    ),
    "a jump of the clock": (
        found("clock-jump", {"jumped_s": 3600.0}),
        Words(
            "the wall clock jumped by 1h in the judged window: the machine was suspended, or its "
            "clock was set"
        ),
    ),
    "starved by the hypervisor": (
        found("starved", {"metric": "host_steal_s", "share": 0.3}),
        Words("the hypervisor ran other machines on its processors for 30% of the judged window"),
    ),
    "starved by processes": (
        found("starved", {"metric": "run_delay_s", "share": 0.3}),
        Words("the worker waited for a CPU for 30% of the judged window"),
    ),
    "stalled by probes": (
        found("probe-stall", {"share": 0.16}),
        Words(
            "samples, heap scans and checkpoints stopped the engine for 16% of the judged window, "
            "waits for a CPU not counted"
        ),
    ),
    "a metric that was declared": (
        found("metric-missing", {}),
        Words("subject was declared by the target but never reported"),
    ),
    "a workload that failed": (
        found("workload-failed", {"message": "a.jsonl:301: not JSON", "planned_s": 7200.0}),
        Words("a.jsonl:301: not JSON; no request was sent after 1m15s (planned traffic: 2h)"),
    ),
    "answers that a reference computes otherwise": (
        found(
            "wrong-answers",
            {
                "wrong": 17,
                "compared": 412,
                "tokens": 6000,
                "tolerance": 0.000575,
                "largest": 0.41,
                "common": [{"trait": "retracted", "wrong": 17, "right": 31, "p_value": 1e-9}],
                "examples": [
                    {"rid": "r8", "prompt_tokens": 90, "place": 3, "distance": 0.2, "best": 5}
                ],
                "left_out": {"sampled": 30, "time": 2},
            },
        ),
        Words(
            "17 of 412 answers are wrong; 17 of 17 had been retracted, 31 of 395 right ones had",
            cause="these requests computed from another request's state or KV, or from one of the "
            "wrong length",
            evidence=(
                "request r8, 90 prompt tokens: output token 4 is 0, the reference computes 5 "
                "(distance 0.2)",
                "the largest distance is 0.41 standard deviations of the logits; up to 0.00057 "
                "counts as rounding",
                "not compared: 30 sampled at a temperature, 2 drawn, but time ran out",
            ),
        ),
    ),
    "answers that a server does not give again": (
        found(
            "answers-differ",
            {
                "wrong": 17,
                "compared": 412,
                "tokens": 6000,
                "tolerance": 0.5,
                "control": 0,
                "noise": 0.025,
                "noise_tokens": 1900,
                "usual_gap": 0.04,
                "examples": [{"place": 3, "prompt_tokens": 90, "margin": 2.5}],
                "wrong_reused": 17,
                "wrong_known": 17,
                "right_reused": 40,
                "right_known": 395,
                "left_out": {"sampled": 30, "unsteady": 2},
            },
        ),
        Words(
            "17 of 412 answers differ from those to the same requests alone, without cache",
            cause="the server computed them from the wrong state or KV, or gave them to the wrong "
            "request",
            evidence=(
                "17 of 17 had reused a prefix, 40 of 395 right ones had",
                "a request of 90 prompt tokens: output token 4 was less likely by at least 2.5 "
                "nats than the one that the server gives it alone, three times",
                "control: of as many answers computed together without the cache, 0 differ in the "
                "same way",
                "margins up to 0.5 nats count as rounding: it changed the logprobs of 1,900 tokens "
                "by 0.025 at most, and the likeliest token usually leads by 0.04",
                "not compared: 30 sampled at a temperature, 2 to which the server gave several "
                "answers, alone",
            ),
        ),
    ),
    "a server whose memory is not seen": (
        found("memory-not-seen", {}),
        Words("the server's memory is not seen: no process of it was named"),
    ),
    "a machine that ended the run": (
        found("stopped-early", {"message": "3 MiB left"}),
        Words("stopped before the planned end: 3 MiB left"),
    ),
    "unreadable samples": (
        found("unreadable", {"samples": {"a": 3, "b": 2, "c": 1, "d": 1}, "largest": 1e30}),
        Words(
            (
                "7 samples of a, b, c and 1 more exceed 1e+30, which no measurement can; they are "
                "left out"
            ),
            evidence=(
                "a: 3 samples",
                "b: 2 samples",
                "c: 1 sample",
                "d: 1 sample",
            ),
        ),
    ),
    "a bench that failed": (
        found(
            "bench-failed",
            {"error": "OSError: too many files", "file": "bench-errors.txt"},
            subject="the soak",
        ),
        Words(
            "hybridbench failed in the soak (OSError: too many files)",
            cause="a defect of hybridbench, or a machine that denied it a resource",
            evidence=("the traceback is in bench-errors.txt; what was measured is judged",),
        ),
    ),
    "an analysis that failed": (
        found("analysis-failed", {"error": "ZeroDivisionError: by zero"}),
        Words(
            (
                "the analysis of subject failed (ZeroDivisionError: by zero); its findings are "
                "missing"
            ),
            cause="a defect of hybridbench, not of the engine",
            evidence=("the other analyses are complete",),
        ),
    ),
    "entries that are kept": (
        found(
            "entries-kept",
            {
                "role": "server",
                "name": "app.kept",
                "holds": "app.Request",
                "last": 4800.0,
                "at_idle": [1200.0, 2400.0, 3600.0, 4800.0],
                "rounds": 3,
                "censuses": 12,
                "early": 1.0,
                "late": 1.0,
                "beside": [
                    {"sort": "objects", "name": "app.Request", "value": 1.0, "per": "request"},
                    {"sort": "blocks", "name": "", "value": 14.2, "per": "request"},
                    {
                        "sort": "B",
                        "name": "malloc_in_use_bytes",
                        "value": 9318.0,
                        "per": "request",
                    },
                    {"sort": "B", "name": MEMORY, "value": 10035.2, "per": "request"},
                ],
                **EXACTLY,
            },
            Rate(1.0, 1.0, 1.0, "entries", "request"),
            driver="request_success_total",
        ),
        Words(
            "server keeps exactly 1.00 entries of app.kept per request",
            "entries (app.Request) are added to app.kept and never removed",
            (
                "held at idle, after a collection: 1,200, 2,400, 3,600, 4,800; the last 3 rounds "
                "of traffic between two idle points agree",
                "12 heap scans under traffic agree",
                "app.Request objects: 1.00 per request",
                "blocks of Python's allocator: 14.2 per request",
                "malloc: 9.10 KiB per request",
                "private memory: 9.80 KiB per request",
                "request_success_total rose by 40; each event added exactly 1",
            ),
        ),
    ),
    "entries that are kept under traffic": (
        found(
            "entries-kept",
            {
                "role": "server",
                "name": "app.kept",
                "last": 240.0,
                "censuses": 18,
                "early": 1.01,
                "late": 0.99,
                "odds": 1e-8,
                **MOSTLY,
                "rivals": [],
            },
            Rate(1.0, 0.98, 1.02, "entries", "request (refused)"),
            driver="requests_total.refused",
        ),
        Words(
            "server keeps 1.00 (0.980 to 1.02) entries of app.kept per request (refused)",
            "entries are added to app.kept and never removed",
            (
                "18 heap scans under traffic: 1.01 per request (refused) in the first half, 0.990 "
                "in the second",
                "false-alarm probability of the second half: less than 1 in 1,000,000 runs",
                "98% of the growth came in intervals in which requests_total.refused rose (by "
                "4,000 in all)",
            ),
        ),
    ),
    "objects that are kept": (
        found(
            "objects-kept",
            {
                "role": "server",
                "name": "app.Request",
                "last": 4800.0,
                "at_idle": [2400.0, 3600.0, 4800.0],
                "rounds": 2,
                "early": 1.0,
                "late": 1.0,
            },
            Rate(3600.0, 3500.0, 3700.0, "objects", "h"),
        ),
        Words(
            "server keeps 3,600 (3,500 to 3,700) app.Request objects/h",
            "something that is in use still refers to them: a collection keeps them",
            (
                "held at idle, after a collection: 2,400, 3,600, 4,800; the last 2 rounds of "
                "traffic between two idle points agree",
            ),
        ),
    ),
    "blocks that are kept": (
        found(
            "blocks-kept",
            {"role": "server", "at_idle": [4e5, 417e3, 434e3, 451e3], "rounds": 3},
            Rate(14.2, 14.1, 14.3, "blocks", "request"),
        ),
        Words(
            "server keeps 14.2 (14.1 to 14.3) blocks of Python's allocator per request",
            "Python objects stay alive that no heap scan counts by name, such as strings",
            (
                "held at idle, after a collection: 400,000, 417,000, 434,000, 451,000; the last 3 "
                "rounds of traffic between two idle points agree",
            ),
        ),
    ),
    "bytes that are kept": (
        found(
            "bytes-kept",
            {"role": "server", "at_idle": [2.0**28, 2.0**28 + 2.0**24], "rounds": 3},
            Rate(16384.0, 16300.0, 16500.0, "B", "request"),
        ),
        Words(
            "server keeps 16.0 KiB (15.9 KiB to 16.1 KiB) from malloc per request",
            "native code, or large Python objects such as arrays and strings, keep memory",
            (
                "held at idle, after a collection: 256 MiB, 272 MiB; the last 3 rounds of traffic "
                "between two idle points agree",
            ),
        ),
    ),
    "files that are never closed": (
        found(
            "handles-kept",
            {
                "role": "server",
                "name": "open_fds",
                "at_idle": [9.0, 409.0, 809.0],
                "rounds": 2,
                "collected": False,
            },
            Rate(1.0, 1.0, 1.0, "handles", "request"),
        ),
        Words(
            "server keeps exactly 1.00 open files per request",
            "files, pipes or sockets are opened and never closed",
            (
                "held at idle: 9, 409, 809; the last 2 rounds of traffic between two idle points "
                "agree",
            ),
        ),
    ),
    "a cache that fills": (
        found(
            "cache-fills",
            {
                "role": "server",
                "path": "app.seen",
                "size": 5430.0,
                "caches": 3,
                "early": 0.46,
                "late": 0.31,
            },
            Rate(0.31, 0.31, 0.31, "entries", "request"),
        ),
        Words(
            "server still fills app.seen (5,430 entries) and 2 containers more, ever more slowly: "
            "from 0.460 to 0.310 per request",
            "it grows like a cache, and no limit of it is known",
        ),
    ),
    "a cache that fills, by other work than that which is named": (
        found(
            "cache-fills",
            {
                "role": "server",
                "path": "app.seen",
                "size": 5430.0,
                "caches": 3,
                "early": 0.30,
                "late": 0.31,
            },
            Rate(0.31, 0.31, 0.31, "entries", "request"),
        ),
        Words(
            "server still fills app.seen (5,430 entries) and 2 containers more, by other counters "
            "of work more slowly, 0.310 per request",
            "it grows like a cache, and no limit of it is known",
        ),
    ),
}


def verdict_of(*findings: Finding) -> Verdict:
    return Verdict(VerdictKind.LEAK, "", findings, (), None, "")


@pytest.mark.parametrize("name", WORDS)
def test_a_finding_says(name: str) -> None:
    finding, words = WORDS[name]

    assert Words(finding.title, finding.cause, finding.evidence) == words


def test_every_code_has_a_sentence_here() -> None:
    """The engine's own checks share one sentence."""
    shown = {finding.kind for finding, _ in WORDS.values()}

    assert {code for code in finding_kinds() if not code.startswith("engine-")} <= shown


def test_the_headline_is_the_first_title_and_counts_the_rest() -> None:
    lost = found("held-at-idle", {"pool": "req", "held": 4.0})

    one, three = in_words(verdict_of(lost)), in_words(verdict_of(lost, lost, lost))

    assert one.full_headline == "LEAK: 4 request rows are held by requests that no longer exist"
    assert three.full_headline == f"{one.full_headline} (and 2 more LEAK findings)"


@pytest.mark.parametrize("name", WORDS)
def test_a_headline_has_two_lines_and_is_not_cut(name: str) -> None:
    finding, _ = WORDS[name]

    said = in_words(verdict_of(finding, finding, finding)).full_headline

    assert len(said) <= 160
    assert "…" not in said


def test_a_rate_that_may_be_none_is_not_in_a_headline() -> None:
    """A LEAK headline must not read "+197 MiB/h (0 B to 513 MiB/h)"."""
    unsure = Rate(197 * 2.0**20, 0.0, 513 * 2.0**20, "B", "h")
    grows = found("growth", {}, unsure, subject="rss_anon_swap_bytes")
    lost = found(
        "held-at-idle",
        {"pool": "req", "held": 4.0},
        Rate(3.0, -1.0, 7.0, "rows", "retract"),
        driver="retracts",
    )

    said = [in_words(verdict_of(finding)).full_headline for finding in (grows, lost)]

    assert said == [
        "LEAK: private memory grows",
        "LEAK: 4 request rows are held by requests that no longer exist",
    ]


def test_a_message_of_any_length_leaves_a_headline_of_two_lines() -> None:
    data: dict[str, JsonValue] = {"kind": "alias", "message": "slot 4 is free " * 40, "count": 1}
    long = found("engine-alias", data)

    verdict = in_words(verdict_of(long, long))

    assert 140 <= len(verdict.full_headline) <= 160
    assert verdict.headline.endswith("free slot… (and 1 more LEAK finding)")
    assert len(verdict.findings[0].title) > 600
    assert not any(in_headline(verdict, finding) for finding in verdict.findings)


def test_a_title_is_not_cut_to_count_further_findings() -> None:
    """The report lists these below, but a name at the end of the title may be nowhere else."""
    data: dict[str, JsonValue] = {"kind": "alias", "message": "in_" * 35 + "pool", "count": 1}
    long = found("engine-alias", data)

    verdict = in_words(verdict_of(long, long))

    assert 160 - len(" (and 1 more LEAK finding)") < len(verdict.full_headline) <= 160
    assert verdict.headline == long.title
    assert in_headline(verdict, verdict.findings[0])


@pytest.mark.parametrize(
    ("code", "data", "title"),
    [
        (
            "residual",
            {"pool": "mamba", "missing": 1.0, "at_checkpoints": [1.0]},
            "1 state slot is missing: neither free nor held by anyone",
        ),
        (
            "negative-residual",
            {"pool": "swa", "surplus": 1.0, "at_checkpoints": [-1.0]},
            "1 KV token in sliding windows has more than one holder while idle",
        ),
        (
            "held-at-idle",
            {"pool": "req", "held": 1.0},
            "1 request row is held by requests that no longer exist",
        ),
        (
            "held-by-closed-sessions",
            {"closed": 1.0, "open": 1.0, "at_checkpoints": [1.0]},
            "1 closed session still holds slots",
        ),
        (
            "in-use-at-idle",
            {"pool": "kv_blocks", "in_use": 1.0, "at_checkpoints": [1.0]},
            "1 KV block is in use with no request in the server",
        ),
        (
            "locks-at-idle",
            {"pool": "kv", "component": "full", "locks": 1.0, "at_checkpoints": [1.0]},
            "1 KV token is locked in the prefix tree with no request in the engine",
        ),
        (
            "running-without-client",
            {"most": 1.0, "mean": 1.0, "request_seconds": 9.0, "readings": 9, "readings_with": 9},
            "up to 1 request kept running after their client left (1.0 on average)",
        ),
        (
            "too-few-samples",
            {"samples": 1},
            "only 1 sample of the worker's memory was taken; run longer",
        ),
        (
            "unreadable",
            {"samples": {"a": 1}, "largest": 1e30},
            "1 sample of a exceeds 1e+30, which no measurement can; it is left out",
        ),
    ],
)
def test_one_of_something_is_in_the_singular(
    code: str, data: dict[str, JsonValue], title: str
) -> None:
    assert found(code, data).title == title


def test_a_title_that_has_room_is_in_the_headline_and_that_of_the_next_finding_is_not() -> None:
    lost: dict[str, JsonValue] = {"pool": "req", "held": 4.0}
    verdict = in_words(verdict_of(*(found("held-at-idle", lost) for _ in range(2))))

    assert [in_headline(verdict, finding) for finding in verdict.findings] == [True, False]


def test_a_clean_run_says_what_it_rules_out_and_what_it_would_have_missed() -> None:
    clean = judge(healthy_record(Run(seed=1)))
    short = judge(healthy_record(Run(180.0, 60.0, probe_s=2.0)))
    undecided = judge(healthy_record(Run(100.0, 40.0, probe_s=2.0)))

    assert clean.full_headline.startswith("CLEAN: no findings in 7m54s; memory growth is at most ")
    assert re.fullmatch(
        r"Growth of private memory above [\d.]+ [KM]iB/h is ruled out \(95%, 7m54s judged\); "
        r"steady growth of about [\d.]+ [KM]iB/h or more would be called a LEAK\.",
        clean.can_rule_out,
    )
    assert short.can_rule_out.endswith("; before 4m of steady state no growth is called a LEAK.")
    # There is no measured limit for such a short run, so no growth is said to be ruled out.
    assert undecided.kind is VerdictKind.INCONCLUSIVE
    assert undecided.can_rule_out.startswith("Private memory may grow by up to ")
    assert "ruled out" not in undecided.can_rule_out


def test_a_run_without_a_judged_window_rules_nothing_out() -> None:
    cut = judge(healthy_record(Run(duration_s=36.0, steady_s=12.0)))

    assert cut.can_rule_out.endswith("has too few memory samples to rule out any growth.")
    assert (judge(RunRecord(Manifest(), {}, []))).can_rule_out.endswith("no growth is ruled out.")
