"""The words of each reason, and that a stored reason stays as it is."""

from __future__ import annotations

import pytest

from hybridbench.records.codec import from_json, to_json
from hybridbench.records.codes import ReasonCode
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import MetricResult, Why
from hybridbench.sentences.reasons import phrased_metric, reason_text

MIB = 2.0**20
GROWTH: dict[str, JsonValue] = {
    "value": 30 * MIB,
    "lower": 20 * MIB,
    "upper": 40 * MIB,
    "unit": "B",
}
BOUND: dict[str, JsonValue] = {"upper": 3 * MIB, "bound": 4 * MIB, "unit": "B"}
LAST: JsonValue = {"code": "growing", "data": GROWTH}

WORDS: list[tuple[ReasonCode, dict[str, JsonValue], str]] = [
    (
        ReasonCode.EVERY_MODEL_GROWS,
        {"model": "line", "faster_than": 3.0, "unit": "slots"},
        "all well-fitting models show growth above 3 slots/h (best fit: line), and it is not "
        "slowing down",
    ),
    (
        ReasonCode.FLOORS_RISE,
        {"collections": 7},
        "the level after each of 7 full collections keeps rising",
    ),
    (
        ReasonCode.BOUNDED,
        {**BOUND, "source": "margin"},
        "growth of at most 3.00 MiB/h (95%), below the tolerance of 4.00 MiB/h",
    ),
    (
        ReasonCode.FLOORS_BOUNDED,
        BOUND,
        "growth of at most 3.00 MiB/h (95%) from collection to collection",
    ),
    (ReasonCode.GROWING, GROWTH, "growing by 30.0 MiB/h (20.0 MiB/h to 40.0 MiB/h)"),
    (
        ReasonCode.NO_STEADY_STATE,
        GROWTH,
        "growing by 30.0 MiB/h (20.0 MiB/h to 40.0 MiB/h), but without a steady event this may "
        "still be warm-up",
    ),
    (
        ReasonCode.STILL_FILLING,
        {"early": 8 * MIB, "late": 2 * MIB, "unit": "B", "growing": GROWTH},
        "still filling: growth went from 8.00 MiB/h to 2.00 MiB/h in the second half; growing by "
        "30.0 MiB/h (20.0 MiB/h to 40.0 MiB/h)",
    ),
    (
        ReasonCode.LOAD_CLIMBS,
        {},
        "the number of requests in flight rose with it; repeat the run at constant load",
    ),
    (
        ReasonCode.FEW_CYCLES,
        {},
        "too few troughs to measure growth under the sawtooth",
    ),
    (
        ReasonCode.FEW_COLLECTIONS,
        {**BOUND, "collections": 2},
        "2 full collections cannot rule out growth up to 3.00 MiB/h (limit 4.00 MiB/h)",
    ),
    (
        ReasonCode.FEW_STEPS,
        {},
        "it grew in too few steps to tell whether they continue",
    ),
    (
        ReasonCode.TOO_SHORT,
        BOUND,
        "growth up to 3.00 MiB/h cannot be ruled out (limit 4.00 MiB/h)",
    ),
    (
        ReasonCode.TOO_FEW_SAMPLES,
        {"samples": 16, "judged_s": 474.0, "samples_needed": 30},
        "too few samples (16 of 30 in 7m54s)",
    ),
    (ReasonCode.YOUNG_RUN, {}, "it grows, but the run is too short to tell whether that continues"),
    (
        ReasonCode.NO_LIMIT,
        BOUND,
        "the profile sets no limit (growth of up to 3.00 MiB/h is possible)",
    ),
    (
        ReasonCode.LIMIT_NOT_MEASURED,
        BOUND,
        "the profile has no limit for so short a window (growth of up to 3.00 MiB/h is possible)",
    ),
    (
        ReasonCode.LEAKING_SEGMENTS,
        {"leaking": 2, "segments": 3, "last": LAST},
        "in 2 of 3 segments: growing by 30.0 MiB/h (20.0 MiB/h to 40.0 MiB/h)",
    ),
    (
        ReasonCode.GROWING_SEGMENTS,
        {"segments": 2},
        "over 2 segments: they grow together, and none is a leak alone",
    ),
    (
        ReasonCode.LEAK_TOGETHER,
        {"segments": 2},
        "no segment is long enough alone; all 2 grow, confirmed together",
    ),
    (ReasonCode.BOUNDED_TOGETHER, {"segments": 2}, "no growth above the limit over 2 segments"),
    (
        ReasonCode.OPEN_SEGMENTS,
        {"segments": 2, "last": LAST},
        "over 2 segments: growing by 30.0 MiB/h (20.0 MiB/h to 40.0 MiB/h)",
    ),
    (
        ReasonCode.ANALYSIS_FAILED,
        {"error": "ValueError: x"},
        "the analysis failed: ValueError: x; this is a bug in hybridbench, please report it",
    ),
    (
        ReasonCode.UNREADABLE,
        {"samples": 2, "beyond": 1e18},
        "2 samples exceed 1e+18, which no measurement can",
    ),
    (
        ReasonCode.FEW_PROCESSES,
        {"falls": 3},
        "it dropped sharply 3 times, and restarts cannot be distinguished from a sawtooth; add a "
        "column with the process id or a work counter, or pass --never-restarted",
    ),
    (ReasonCode.GAPS, {"share": 0.6}, "60% of the judged time has no samples"),
]


@pytest.mark.parametrize(("code", "data", "words"), WORDS, ids=[code for code, _, _ in WORDS])
def test_each_reason_has_its_words(
    code: ReasonCode, data: dict[str, JsonValue], words: str
) -> None:
    assert reason_text(code, data) == words


def test_no_reason_is_without_words() -> None:
    assert {code for code, _, _ in WORDS} == set(ReasonCode)


def test_a_reason_of_a_later_version_is_named_by_its_code() -> None:
    assert reason_text("moon-phase", {}) == "moon-phase"


def test_the_text_that_an_older_version_stored_is_kept() -> None:
    new = MetricResult(
        "rss_anon_swap_bytes",
        "CLEAN",
        (0.0, 1.0),
        None,
        None,
        1.0,
        None,
        "flat",
        why=Why(ReasonCode.YOUNG_RUN),
    )
    stored = to_json(new)
    del stored["why"]
    old = from_json({**stored, "reason": "as it was said then"}, MetricResult)

    assert phrased_metric(old).reason == "as it was said then"
    assert (
        phrased_metric(new).reason
        == "it grows, but the run is too short to tell whether that continues"
    )
    assert from_json(to_json(new), MetricResult) == new
