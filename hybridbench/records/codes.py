"""Reason codes: stable names for programs."""

from __future__ import annotations

from enum import StrEnum


class Evidence(StrEnum):
    """The kind of evidence behind a finding.

    Missing samples, missing coverage and measurement overhead can spoil a fit, but they cannot
    refute a count.
    """

    EXACT = "exact"  # counted, or reported by the engine itself
    STATISTICAL = "statistical"  # a fit, or an interval


class ReasonCode(StrEnum):
    """Why the trend of a metric is called a leak, bounded, or undecided."""

    EVERY_MODEL_GROWS = "every-model-grows"
    FLOORS_RISE = "floors-rise"
    BOUNDED = "bounded"
    FLOORS_BOUNDED = "floors-bounded"
    # Undecided.
    GROWING = "growing"
    BELOW_FLOOR = "below-floor"
    NO_STEADY_STATE = "no-steady-state"
    STILL_FILLING = "still-filling"
    LOAD_CLIMBS = "load-climbs"
    FEW_CYCLES = "few-cycles"
    ONE_CYCLE = "one-cycle"
    LOWS_RISE = "lows-rise"
    FEW_COLLECTIONS = "few-collections"
    FEW_STEPS = "few-steps"
    TOO_SHORT = "too-short"
    TOO_FEW_SAMPLES = "too-few-samples"
    YOUNG_RUN = "young-run"
    NO_LIMIT = "no-limit"
    LIMIT_NOT_MEASURED = "limit-not-measured"
    WITHIN_BUDGET = "within-budget"
    CACHE_FILLS = "cache-fills"
    KV_CACHE_FILLS = "kv-cache-fills"
    # For several segments together.
    LEAKING_SEGMENTS = "leaking-segments"
    GROWING_SEGMENTS = "growing-segments"
    LEAK_TOGETHER = "leak-together"
    BOUNDED_TOGETHER = "bounded-together"
    OPEN_SEGMENTS = "open-segments"
    # For a column of an external file.
    ANALYSIS_FAILED = "analysis-failed"
    UNREADABLE = "unreadable"
    NO_NUMBER = "no-number"
    FEW_PROCESSES = "few-processes"
    GAPS = "gaps"
    FEW_DIGITS = "few-digits"
    CONTAINS_CACHE = "contains-cache"
    MAY_COUNT = "may-count"


class ComparedCode(StrEnum):
    """Why a comparison leaves a metric undecided, or judges a finding as it does."""

    # For a metric.
    FEW_PAIRS = "few-pairs"
    NOT_ALONE = "not-alone"
    LOAD_UNKNOWN = "load-unknown"
    NEAR_MARGIN = "near-margin"
    ACROSS_MARGIN = "across-margin"
    # For a finding, or for a metric's growth.
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
