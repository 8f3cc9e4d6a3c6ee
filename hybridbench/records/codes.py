"""The codes of findings: stable names for programs, whatever a version says about them in words."""

from __future__ import annotations

from enum import StrEnum


class FindingCode(StrEnum):
    """What a finding's ``kind`` can be.

    An engine may have checks of its own that nobody here knows: their findings are called
    ``engine-`` and the engine's word for it.
    """

    # Held at an idle checkpoint, or held by who should hold nothing.
    RESIDUAL = "residual"
    NEGATIVE_RESIDUAL = "negative-residual"
    LOCKS_AT_IDLE = "locks-at-idle"
    NEGATIVE_LOCKS = "negative-locks"
    HELD_AT_IDLE = "held-at-idle"
    WAITING_HOLDS_SLOTS = "waiting-holds-slots"
    RUNNING_WITHOUT_CLIENT = "running-without-client"
    REQUEST_TOO_OLD = "request-too-old"
    # Objects of the engine.
    INSTANCES_WAIT_FOR_COLLECTOR = "instances-wait-for-collector"
    INSTANCES_RETAINED = "instances-retained"
    CONTAINER_GROWS = "container-grows"
    # Counts that cannot be.
    NEGATIVE_COUNT = "negative-count"
    MORE_FREE_THAN_EXIST = "more-free-than-exist"
    UNREADABLE = "unreadable"
    # Trends and levels.
    GROWTH = "growth"
    OBSERVER_GROWS = "observer-grows"
    DECAY = "decay"
    BELOW_THRESHOLD = "below-threshold"
    THRESHOLD = "threshold"
    UNDECIDED = "undecided"
    # What the engine itself reported.
    CRASH = "crash"
    FALSE_ALARM = "false-alarm"
    ENGINE_SAID = "engine-said"
    ENGINE_RESIDUAL = "engine-residual"
    ENGINE_WAITING_HELD = "engine-waiting-held"
    ENGINE_IN_FLIGHT_AT_IDLE = "engine-in-flight-at-idle"
    ENGINE_LOCKED_AT_IDLE = "engine-locked-at-idle"
    ENGINE_ALIAS = "engine-alias"
    ENGINE_LEDGER = "engine-ledger"
    ENGINE_TREE = "engine-tree"
    ENGINE_OWNERSHIP = "engine-ownership"
    ENGINE_UNKNOWN = "engine-unknown"
    # The run proves nothing, or less than it was to prove.
    TOO_FEW_SAMPLES = "too-few-samples"
    COVERAGE = "coverage"
    GAPS = "gaps"
    SAMPLER_LATE = "sampler-late"
    SWAPPING = "swapping"
    DISK_FULL = "disk-full"
    WORKER_SILENT = "worker-silent"
    CLOCK_JUMP = "clock-jump"
    STARVED = "starved"
    PROBE_STALL = "probe-stall"
    METRIC_MISSING = "metric-missing"
    WORKLOAD_FAILED = "workload-failed"
    STOPPED_EARLY = "stopped-early"
    INTERRUPTED = "interrupted"
    ANALYSIS_FAILED = "analysis-failed"


def finding_code(kind: str) -> FindingCode | None:
    """The code of a stored finding; None for one that only a later version knows."""
    if kind in set(FindingCode):
        return FindingCode(kind)
    return FindingCode.ENGINE_UNKNOWN if kind.startswith("engine-") else None
