"""The codes of findings and reasons: stable names for programs."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

ENGINE_PREFIX: Final = "engine-"


class Evidence(StrEnum):
    """What a finding rests on.

    Missing samples, missing coverage and measurement overhead can spoil a fit.  They cannot refute
    a count.
    """

    EXACT = "exact"  # counted, or the engine's own word
    STATISTICAL = "statistical"  # a fit, or an interval


class FindingCode(StrEnum):
    """What a finding's ``kind`` can be.

    An engine may have checks of its own that nobody here knows: their findings are called
    ``engine-`` and the engine's word for it.
    """

    meaning: str
    evidence: Evidence

    def __new__(cls, code: str, meaning: str, evidence: Evidence = Evidence.EXACT) -> FindingCode:
        """``meaning`` is one sentence for a reader of a report."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        member.evidence = evidence
        return member

    # Held at an idle checkpoint, or held by who should hold nothing.
    RESIDUAL = "residual", "Slots of a pool are neither free nor held by anyone."
    NEGATIVE_RESIDUAL = (
        "negative-residual",
        "At an idle checkpoint, free and held slots add up to more than the pool has: a slot was "
        "freed twice or has two holders.",
    )
    LOCKS_AT_IDLE = "locks-at-idle", "Tree nodes are still locked with no request in the engine."
    NEGATIVE_LOCKS = "negative-locks", "Tree nodes were unlocked more often than locked."
    HELD_AT_IDLE = "held-at-idle", "Slots are charged to requests that no longer exist."
    WAITING_HOLDS_SLOTS = (
        "waiting-holds-slots",
        "Requests that only wait for admission hold slots between two steps.",
    )
    RUNNING_WITHOUT_CLIENT = (
        "running-without-client",
        "Requests keep running although their client has left.",
    )
    REQUEST_TOO_OLD = (
        "request-too-old",
        "A request does not end while all others of its age have ended.",
    )
    # Objects of the engine.
    INSTANCES_WAIT_FOR_COLLECTOR = (
        "instances-wait-for-collector",
        "Removed objects stay alive in reference cycles until the garbage collector runs.",
    )
    INSTANCES_RETAINED = (
        "instances-retained",
        "Removed objects are still referenced: a full garbage collection does not free them.",
    )
    CONTAINER_GROWS = (
        "container-grows",
        "A list or table of the engine only grows.",
        Evidence.STATISTICAL,
    )
    # Counts that cannot be.
    NEGATIVE_COUNT = "negative-count", "A count fell below zero."
    MORE_FREE_THAN_EXIST = "more-free-than-exist", "More slots of a pool are free than exist."
    UNREADABLE = (
        "unreadable",
        "A series has infinite values or values that no machine can have; they were left out.",
    )
    # Trends and levels.
    GROWTH = (
        "growth",
        "A gated metric grows by more than its tolerance, and the growth does not slow down.",
        Evidence.STATISTICAL,
    )
    OBSERVER_GROWS = (
        "observer-grows",
        "At least half of the growth of the worker's memory is due to the bench's own probes.",
        Evidence.STATISTICAL,
    )
    DECAY = (
        "decay",
        "A unit of work became more expensive during the run, or the hit rate fell.",
        Evidence.STATISTICAL,
    )
    BELOW_THRESHOLD = (
        "below-threshold",
        "The hit rate, or the cost of an eviction or of the engine's checks, misses the profile's "
        "limit over the whole judged window.",
        Evidence.STATISTICAL,
    )
    THRESHOLD = (
        "threshold",
        "A threshold of the user or the profile is missed or undecided.",
        Evidence.STATISTICAL,
    )
    UNDECIDED = (
        "undecided",
        "The run does not show whether the growth of a gated metric is below its limit.",
        Evidence.STATISTICAL,
    )
    # What the engine itself reported.
    CRASH = "crash", "The worker exited, was killed, or hung."
    STALLED = "stalled", "The engine takes steps for a long time, and none serves a request."
    NOT_IDLE = (
        "not-idle",
        "The engine did not become idle after its traffic had ended: a request or a transfer did "
        "not end.",
    )
    FALSE_ALARM = (
        "false-alarm",
        "A check of the engine reported missing slots that were not missing.",
    )
    ENGINE_SAID = (
        "engine-said",
        "The engine's log reports a leak, a double free, a hang or memory exhaustion.",
    )
    ENGINE_RESIDUAL = "engine-residual", "A check of the engine found unaccounted slots."
    ENGINE_WAITING_HELD = (
        "engine-waiting-held",
        "A check of the engine found slots held by waiting requests.",
    )
    ENGINE_IN_FLIGHT_AT_IDLE = (
        "engine-in-flight-at-idle",
        "A check of the idle engine found slots held by requests.",
    )
    ENGINE_LOCKED_AT_IDLE = (
        "engine-locked-at-idle",
        "A check of the idle engine found locked tree nodes.",
    )
    ENGINE_ALIAS = "engine-alias", "A check of the engine found a slot with two holders."
    ENGINE_LEDGER = (
        "engine-ledger",
        "The records of a holder and of the allocator disagree about who holds a slot.",
    )
    ENGINE_TREE = "engine-tree", "A check of the engine found the prefix tree inconsistent."
    ENGINE_OWNERSHIP = (
        "engine-ownership",
        "An allocator refused a free or a transfer by someone who does not hold the slot.",
    )
    ENGINE_UNKNOWN = (
        "engine-unknown",
        "The engine reported a failed check without naming it.",
    )
    # The run proves nothing, or less than it was to prove.
    TOO_FEW_SAMPLES = "too-few-samples", "The run has fewer than 10 samples of private memory."
    COVERAGE = (
        "coverage",
        "Events that the profile requires did not occur often enough to test their path.",
    )
    GAPS = "gaps", "Samples are missing for a tenth of the judged window."
    SAMPLER_LATE = "sampler-late", "Samples were taken late for a tenth of the judged window."
    SWAPPING = "swapping", "The machine swapped out part of the worker during the judged window."
    DISK_FULL = "disk-full", "A write to the run directory failed; earlier data is complete."
    WORKER_SILENT = "worker-silent", "The worker sent no counters for a tenth of the judged window."
    CLOCK_JUMP = (
        "clock-jump",
        "The wall clock deviated from the monotonic clock: the machine was suspended or its clock "
        "was set.",
    )
    STARVED = (
        "starved",
        "The worker waited for a CPU for 90% of the judged window, or the hypervisor gave half of "
        "the CPU time to other machines.",
    )
    PROBE_STALL = (
        "probe-stall",
        "Heap scans and checkpoint readings stopped the engine loop for a tenth of the judged "
        "window; draining does not count.",
    )
    METRIC_MISSING = (
        "metric-missing",
        "A gated metric that the target provides was never sampled in three minutes or more.",
    )
    WORKLOAD_FAILED = (
        "workload-failed",
        "The workload ended early: the trace could not be read to its end.",
    )
    BENCH_FAILED = (
        "bench-failed",
        "hybridbench itself failed during the run because of a bug; what was measured counts.",
    )
    STOPPED_EARLY = (
        "stopped-early",
        "The run ended before its planned time because memory or disk ran out.",
    )
    INTERRUPTED = (
        "interrupted",
        "The run was interrupted before it had covered what the profile requires.",
    )
    ANALYSIS_FAILED = (
        "analysis-failed",
        "A part of the analysis failed because of a bug in hybridbench; the other parts count.",
    )


def evidence_of(kind: str) -> Evidence:
    """What a finding of this ``kind`` rests on; a kind that is not known here is not called exact.

    What the engine's own checks report is the engine's word, whatever they are called.
    """
    code = next((code for code in FindingCode if code == kind), None)
    if code is not None:
        return code.evidence
    return Evidence.EXACT if kind.startswith(ENGINE_PREFIX) else Evidence.STATISTICAL


class ReasonCode(StrEnum):
    """Why the trend of a metric is called a leak, bounded, or undecided."""

    EVERY_MODEL_GROWS = "every-model-grows"
    FLOORS_RISE = "floors-rise"
    BOUNDED = "bounded"
    FLOORS_BOUNDED = "floors-bounded"
    # Undecided.
    GROWING = "growing"
    NO_STEADY_STATE = "no-steady-state"
    STILL_FILLING = "still-filling"
    LOAD_CLIMBS = "load-climbs"
    FEW_CYCLES = "few-cycles"
    FEW_COLLECTIONS = "few-collections"
    FEW_STEPS = "few-steps"
    TOO_SHORT = "too-short"
    TOO_FEW_SAMPLES = "too-few-samples"
    YOUNG_RUN = "young-run"
    NO_LIMIT = "no-limit"
    LIMIT_NOT_MEASURED = "limit-not-measured"
    # Of several segments together.
    LEAKING_SEGMENTS = "leaking-segments"
    GROWING_SEGMENTS = "growing-segments"
    LEAK_TOGETHER = "leak-together"
    BOUNDED_TOGETHER = "bounded-together"
    OPEN_SEGMENTS = "open-segments"
    # Of a column of somebody else's file.
    ANALYSIS_FAILED = "analysis-failed"
    UNREADABLE = "unreadable"
    FEW_PROCESSES = "few-processes"
    GAPS = "gaps"


class ComparedCode(StrEnum):
    """Why a comparison leaves a metric undecided, or judges a finding as it does."""

    # Of a metric.
    FEW_PAIRS = "few-pairs"
    NOT_ALONE = "not-alone"
    LOAD_UNKNOWN = "load-unknown"
    NEAR_MARGIN = "near-margin"
    ACROSS_MARGIN = "across-margin"
    # Of a finding, or of the growth of a metric.
    OTHER_DRIVER = "other-driver"
    FEW_EVENTS = "few-events"
    SHORTER_RUN = "shorter-run"
    UNDER_A_TENTH = "under-a-tenth"
    INVALID_RUN = "invalid-run"
    NO_RATE = "no-rate"
    ONE_RUN_ALONE = "one-run-alone"
    BELOW_LIMIT = "below-limit"
    NO_LEAK = "no-leak"
    FASTER_THAN_MEMORY = "faster-than-memory"


class UnmeasuredCode(StrEnum):
    """Why there is nothing to hold a threshold against."""

    NEEDS_TWO_VERSIONS = "needs-two-versions"
    NO_WINDOW = "no-window"
    NEVER_SAMPLED = "never-sampled"
    TOO_FEW_SAMPLES = "too-few-samples"
    NOT_COUNTED = "not-counted"
    NO_EVENT = "no-event"
    TOO_LITTLE_WORK = "too-little-work"
