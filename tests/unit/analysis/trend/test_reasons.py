"""The wording of each reason; a stored reason keeps its text."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from hybridbench.analysis.trend.reasons import (
    AnalysisFailed,
    BelowFloor,
    Bounded,
    BoundedTogether,
    CacheIsFilling,
    ContainsCache,
    EveryModelGrows,
    FewCollections,
    FewCycles,
    FewDigits,
    FewProcesses,
    FewSteps,
    FloorsBounded,
    FloorsRise,
    Gaps,
    Growing,
    GrowingSegments,
    KvCacheIsFilling,
    LeakingSegments,
    LeakTogether,
    LimitNotMeasured,
    LoadClimbs,
    LowsRise,
    MayCount,
    NoLimit,
    NoNumber,
    NoSteadyState,
    NoUnit,
    OneCycle,
    OpenSegments,
    StillFilling,
    TooFewSamples,
    TooShort,
    Unreadable,
    WithinBudget,
    YoungRun,
    bound_of,
)
from hybridbench.records.codec import from_json, to_json
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import MetricResult, Reason, Why
from tests.unit.made_findings import reason_kinds

MIB = 2.0**20
GROWING = Growing(value=30 * MIB, lower=20 * MIB, upper=40 * MIB, unit="B")
LAST = GROWING.why()
UPPER, BOUND = 3 * MIB, 4 * MIB

WORDS: list[tuple[Reason, str]] = [
    (
        EveryModelGrows(model="line", faster_than=3.0, unit="slots"),
        "all well-fitting models show growth above 3 slots/h (best fit: line), and it is not "
        "slowing down",
    ),
    (
        FloorsRise(collections=7, upper=UPPER, bound=BOUND, unit="B"),
        "the level after each of 7 full collections keeps rising",
    ),
    (
        Bounded(upper=UPPER, bound=BOUND, source="margin", unit="B"),
        "growth of at most 3.00 MiB/h (95%), below the tolerance of 4.00 MiB/h",
    ),
    (
        FloorsBounded(collections=7, upper=UPPER, bound=BOUND, unit="B"),
        "growth of at most 3.00 MiB/h (95%) from collection to collection",
    ),
    (GROWING, "growing by 30.0 MiB/h (20.0 MiB/h to 40.0 MiB/h)"),
    (
        BelowFloor(value=30 * MIB, lower=20 * MIB, upper=40 * MIB, floor=50 * MIB, unit="B"),
        "growing by 30.0 MiB/h (20.0 MiB/h to 40.0 MiB/h), below the 50.0 MiB/h from which growth "
        "counts as a leak; a longer run would not decide this, but a threshold would",
    ),
    (
        NoSteadyState(value=30 * MIB, lower=20 * MIB, upper=40 * MIB, unit="B"),
        "growing by 30.0 MiB/h (20.0 MiB/h to 40.0 MiB/h), but without a steady event this may "
        "still be warm-up",
    ),
    (
        StillFilling(early=8 * MIB, late=2 * MIB, unit="B", growing=GROWING),
        "still filling: growth went from 8.00 MiB/h to 2.00 MiB/h in the second half; growing by "
        "30.0 MiB/h (20.0 MiB/h to 40.0 MiB/h)",
    ),
    (
        StillFilling(early=16 * MIB, late=-15 * MIB, unit="B"),
        "growth of 16.0 MiB/h in the first half, none in the second",
    ),
    (
        LoadClimbs(),
        "the number of requests in flight rose with it; repeat the run at constant load",
    ),
    (FewCycles(), "too few troughs to measure growth under the sawtooth"),
    (
        OneCycle(),
        "it rose as high and as slowly before, and all of that was freed; only a run of two "
        "full cycles would show whether it leaks",
    ),
    (
        LowsRise(value=30 * MIB, unit="B"),
        "from the low before a peak to the low after it, it rises by 30.0 MiB/h; only a run of "
        "two full cycles would show whether it leaks",
    ),
    (
        FewCollections(collections=2, upper=UPPER, bound=BOUND, unit="B"),
        "2 full collections cannot rule out growth up to 3.00 MiB/h (limit 4.00 MiB/h)",
    ),
    (FewSteps(), "it grew in too few steps to tell whether they continue"),
    (
        TooShort(upper=UPPER, bound=BOUND, unit="B"),
        "growth up to 3.00 MiB/h cannot be ruled out (limit 4.00 MiB/h)",
    ),
    (
        TooFewSamples(samples=16, judged_s=474.0, samples_needed=30, unit="B"),
        "too few samples (16 of 30 in 7m54s)",
    ),
    (YoungRun(), "it grows, but the run is too short to tell whether that continues"),
    (
        NoLimit(upper=UPPER, unit="B"),
        "the profile sets no limit (growth of up to 3.00 MiB/h is possible)",
    ),
    (
        LimitNotMeasured(upper=UPPER, unit="B"),
        "the profile has no limit for so short a window (growth of up to 3.00 MiB/h is possible)",
    ),
    (
        WithinBudget(
            caches=("prompt",),
            budget=8 * 2**30,
            grown=2.0**30,
            per_s=3.7e6,
            full_in_s=2160.0,
            full_wall_s=1.79e9,
        ),
        "at 3.53 MiB/s the prompt cache of 8.00 GiB is full in 36m: 14:13 UTC; growth so far is "
        "1.00 GiB",
    ),
    (
        CacheIsFilling(path="app.cache", size=1200.0, bound=5000, full_in_s=180.0),
        "app.cache still fills (1,200 of at most 5,000 entries, full in 3m), and memory grows with "
        "it",
    ),
    (
        CacheIsFilling(path="app.log", size=2048.0, bound=65536, unit="B"),
        "app.log still fills (2.00 KiB of at most 64.0 KiB), and memory grows with it",
    ),
    (
        KvCacheIsFilling(tokens=20_000.0, computed=30_000.0, full_in_s=180.0),
        "the server's KV cache of 20,000 tokens may still fill: 30,000 tokens were computed, and "
        "after twice its size it is full, in 3m",
    ),
    (
        LeakingSegments(leaking=2, segments=3, last=LAST),
        "in 2 of 3 segments: growing by 30.0 MiB/h (20.0 MiB/h to 40.0 MiB/h)",
    ),
    (
        GrowingSegments(segments=2),
        "over 2 segments together, growth is significant, but none is a leak alone",
    ),
    (LeakTogether(segments=2), "no segment is long enough alone; all 2 grow, confirmed together"),
    (BoundedTogether(segments=2, bound=3.0), "no growth above the limit over 2 segments"),
    (
        OpenSegments(segments=2, last=LAST),
        "over 2 segments: growing by 30.0 MiB/h (20.0 MiB/h to 40.0 MiB/h)",
    ),
    (
        AnalysisFailed(error="ValueError: x"),
        "the analysis failed: ValueError: x; this is a bug in hybridbench, please report it",
    ),
    (Unreadable(samples=2, beyond=1e18), "2 samples exceed 1e+18, which no measurement can"),
    (NoNumber(cell="1 GB+", line=2), "'1 GB+' in line 2 is not read as a number"),
    (
        ContainsCache(column="MemoryCurrent", instead="anon"),
        "MemoryCurrent contains the page cache, which grows by itself: record anon",
    ),
    (
        MayCount(column="messages"),
        "it may count events or data on a disk, which grow by themselves; if it shows something "
        "held, use --metric 'messages'",
    ),
    (
        FewProcesses(falls=3),
        "it dropped sharply 3 times, and restarts cannot be distinguished from a sawtooth; add a "
        "column with the process id or a work counter, or pass --never-restarted",
    ),
    (
        FewDigits(step=0.1 * 2**30),
        "it rises, and is written in steps of 102 MiB, too coarse to bound its growth; record more "
        "digits (`ps -o rss=`) or for longer",
    ),
    (
        NoUnit(column="rss"),
        "it grows, and whether too fast depends on its unit, which is unknown: set it with "
        "--metric 'rss:UNIT'",
    ),
    (Gaps(share=0.6), "60% of the judged time has no samples"),
]


@pytest.mark.parametrize(("reason", "words"), WORDS, ids=[reason.code for reason, _ in WORDS])
def test_each_reason_has_its_words(reason: Reason, words: str) -> None:
    assert reason.text() == reason.why().text == words


def test_no_reason_is_without_words_and_each_has_a_code_of_its_own() -> None:
    assert {type(reason) for reason, _ in WORDS} == set(reason_kinds())
    codes = {type(reason): reason.code for reason, _ in WORDS}
    assert len(set(codes.values())) == len(codes)


@pytest.mark.parametrize("reason", [reason for reason, _ in WORDS], ids=lambda one: one.code)
def test_code_and_values_are_stored_and_the_text_is_not(reason: Reason) -> None:
    why = reason.why()

    stored = to_json(why)

    assert stored == {"code": reason.code, "data": to_json(reason)}
    assert "text" not in repr(stored)
    assert from_json(stored, Why) == why
    assert from_json(why.data, type(reason)) == reason


def test_values_are_stored_under_the_names_that_verdict_json_has() -> None:
    growing = {"value": 30 * MIB, "lower": 20 * MIB, "upper": 40 * MIB, "unit": "B"}
    filling = StillFilling(early=8.0, late=2.0, unit="B", growing=GROWING)
    unlimited = TooShort(upper=float("inf"), bound=1.0, unit="B")

    assert filling.why().data == {"early": 8.0, "late": 2.0, "unit": "B", "growing": growing}
    assert unlimited.why().data == {"upper": None, "bound": 1.0, "unit": "B"}
    assert FewSteps().why().data == {}
    assert OpenSegments(segments=2, last=LAST).why().data == {
        "segments": 2,
        "last": {"code": "growing", "data": growing},
    }


def test_a_text_comes_along_from_another_process() -> None:
    reason = pickle.loads(pickle.dumps(LAST))

    assert (reason, reason.text) == (LAST, LAST.text)


def metric(why: Why) -> MetricResult:
    return MetricResult(
        "rss_anon_swap_bytes", "CLEAN", (0.0, 1.0), None, None, 1.0, None, "flat", why=why
    )


def test_the_text_that_was_stored_is_kept() -> None:
    new = metric(YoungRun().why())
    stored = to_json(new)
    changed: dict[str, JsonValue] = {**stored, "reason": "as it was said then"}
    later: dict[str, JsonValue] = {**changed, "why": {"code": "moon-phase", "data": {}}}

    assert new.reason == "it grows, but the run is too short to tell whether that continues"
    assert from_json(stored, MetricResult) == new
    for other in (changed, later):
        assert from_json(other, MetricResult).reason == "as it was said then"


def test_another_reason_has_another_text() -> None:
    result = msgspec.structs.replace(metric(YoungRun().why()), why=FewSteps().why())

    assert result.reason == "it grew in too few steps to tell whether they continue"


def test_a_result_names_the_bound_that_it_was_held_against() -> None:
    reasons = [
        Bounded(upper=UPPER, bound=BOUND, source="margin", unit="B"),
        TooShort(upper=UPPER, bound=BOUND, unit="B"),
        YoungRun(),
    ]

    assert [bound_of(metric(reason.why())) for reason in reasons] == [BOUND, BOUND, None]
    limited = msgspec.structs.replace(metric(YoungRun().why()), limit_per_hour=7.0)
    assert bound_of(limited) == 7.0


def test_one_sample_is_in_the_singular() -> None:
    one = Unreadable(samples=1, beyond=1e18)

    assert one.text() == "1 sample exceeds 1e+18, which no measurement can"
