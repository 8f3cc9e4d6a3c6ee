"""Why a metric's trend is called what it is, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from hybridbench.analysis.reading import mapping, number, text
from hybridbench.rates import TINY, amount
from hybridbench.records.codes import ReasonCode
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import MetricResult
from hybridbench.units import format_duration, format_percent

_Data = Mapping[str, JsonValue]

# Who set the bound that a metric keeps.
_SOURCES: Final[Mapping[str, str]] = {
    "threshold": "the threshold",
    "profile": "the profile's limit",
    "margin": "the tolerance",
}


def phrased_metric(result: MetricResult) -> MetricResult:
    """``result`` with its reason in words."""
    if result.why is None:
        return result
    return msgspec.structs.replace(result, reason=reason_text(result.why.code, result.why.data))


def reason_text(code: str, data: _Data) -> str:
    """The sentence of a code of ReasonCode; the code where only a later version knows it."""
    sentence = _SENTENCES.get(code)
    said = code if sentence is None else sentence(data)
    # What is undecided for a reason of its own may surely grow as well.
    growing = mapping(data, "growing")
    return f"{said}; {_growing(growing)}" if growing else said


def _rate(data: _Data, key: str) -> str:
    return f"{amount(number(data, key, math.inf), text(data, 'unit'))}/h"


def _every_model_grows(data: _Data) -> str:
    return (
        f"all well-fitting models show growth above {_rate(data, 'faster_than')} (best fit: "
        f"{text(data, 'model')}), and it is not slowing down"
    )


def _bounded(data: _Data) -> str:
    source = _SOURCES[text(data, "source")]
    growth = "no growth"
    if number(data, "upper", math.inf) > TINY:
        growth = f"growth of at most {_rate(data, 'upper')}"
    return f"{growth} (95%), below {source} of {_rate(data, 'bound')}"


def _growing(data: _Data) -> str:
    lower, value, upper = (_rate(data, key) for key in ("lower", "value", "upper"))
    return f"growing by {value} ({lower} to {upper})"


def _no_steady_state(data: _Data) -> str:
    return f"{_growing(data)}, but without a steady event this may still be warm-up"


def _still_filling(data: _Data) -> str:
    early, late = _rate(data, "early"), _rate(data, "late")
    return f"still filling: growth went from {early} to {late} in the second half"


def _too_few_samples(data: _Data) -> str:
    samples, needed = (f"{number(data, key):.0f}" for key in ("samples", "samples_needed"))
    judged = format_duration(number(data, "judged_s"))
    return f"too few samples ({samples} of {needed} in {judged})"


def _few_collections(data: _Data) -> str:
    seen = f"{number(data, 'collections'):.0f} full collections cannot rule out growth up to"
    return f"{seen} {_rate(data, 'upper')} (limit {_rate(data, 'bound')})"


def _last(data: _Data) -> str:
    last = mapping(data, "last")
    return reason_text(text(last, "code"), mapping(last, "data"))


def _count(data: _Data, key: str = "segments") -> str:
    return f"{number(data, key):.0f}"


_SENTENCES: Final[Mapping[str, Callable[[_Data], str]]] = {
    ReasonCode.EVERY_MODEL_GROWS: _every_model_grows,
    ReasonCode.FLOORS_RISE: lambda data: (
        f"the level after each of {_count(data, 'collections')} full collections keeps rising"
    ),
    ReasonCode.BOUNDED: _bounded,
    ReasonCode.FLOORS_BOUNDED: lambda data: (
        f"growth of at most {_rate(data, 'upper')} (95%) from collection to collection"
    ),
    ReasonCode.GROWING: _growing,
    ReasonCode.NO_STEADY_STATE: _no_steady_state,
    ReasonCode.STILL_FILLING: _still_filling,
    ReasonCode.LOAD_CLIMBS: lambda _: (
        "the number of requests in flight rose with it; repeat the run at constant load"
    ),
    ReasonCode.FEW_CYCLES: lambda _: "too few troughs to measure growth under the sawtooth",
    ReasonCode.FEW_COLLECTIONS: _few_collections,
    ReasonCode.FEW_STEPS: lambda _: "it grew in too few steps to tell whether they continue",
    ReasonCode.TOO_SHORT: lambda data: (
        f"growth up to {_rate(data, 'upper')} cannot be ruled out (limit {_rate(data, 'bound')})"
    ),
    ReasonCode.TOO_FEW_SAMPLES: _too_few_samples,
    ReasonCode.YOUNG_RUN: lambda _: (
        "it grows, but the run is too short to tell whether that continues"
    ),
    ReasonCode.NO_LIMIT: lambda data: (
        f"the profile sets no limit (growth of up to {_rate(data, 'upper')} is possible)"
    ),
    ReasonCode.LIMIT_NOT_MEASURED: lambda data: (
        "the profile has no limit for so short a window (growth of up to "
        f"{_rate(data, 'upper')} is possible)"
    ),
    ReasonCode.LEAKING_SEGMENTS: lambda data: (
        f"in {_count(data, 'leaking')} of {_count(data)} segments: {_last(data)}"
    ),
    ReasonCode.GROWING_SEGMENTS: lambda data: (
        f"over {_count(data)} segments: they grow together, and none is a leak alone"
    ),
    ReasonCode.LEAK_TOGETHER: lambda data: (
        f"no segment is long enough alone; all {_count(data)} grow, confirmed together"
    ),
    ReasonCode.BOUNDED_TOGETHER: lambda data: (
        f"no growth above the limit over {_count(data)} segments"
    ),
    ReasonCode.OPEN_SEGMENTS: lambda data: f"over {_count(data)} segments: {_last(data)}",
    ReasonCode.ANALYSIS_FAILED: lambda data: (
        f"the analysis failed: {text(data, 'error')}; this is a bug in hybridbench, please report "
        "it"
    ),
    ReasonCode.UNREADABLE: lambda data: (
        f"{_count(data, 'samples')} samples exceed {number(data, 'beyond'):g}, "
        "which no measurement can"
    ),
    ReasonCode.FEW_PROCESSES: lambda data: (
        f"it dropped sharply {_count(data, 'falls')} times, and restarts cannot be distinguished "
        "from a sawtooth; add a column with the process id or a work counter, or pass "
        "--never-restarted"
    ),
    ReasonCode.GAPS: lambda data: (
        f"{format_percent(number(data, 'share'))} of the judged time has no samples"
    ),
}
