"""When a run may end early, and when it must not."""

from __future__ import annotations

from dataclasses import replace

from hybridbench.analysis.stopping import InterimVerdict, StopReason, decide, settled
from hybridbench.records.finding import Finding, Rate, VerdictKind
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Covered, MetricResult, Verdict
from tests.unit.made_findings import a_finding, typed_finding

HOUR = 3600.0


def metric(outcome: str) -> MetricResult:
    rate = Rate(0.0, -1.0, 1.0, "B", "h")
    window = (0.0, 100.0)
    return MetricResult("rss_anon_swap_bytes", outcome, window, rate, None, 1.0, None, "flat")


def verdict(kind: VerdictKind, *findings: Finding) -> Verdict:
    return Verdict(kind, str(kind), findings, (metric("CLEAN"),), (0.0, 100.0), "")


def growth(expected_s: float | None = None) -> Finding:
    data: dict[str, JsonValue] = {}
    if expected_s is not None:
        ends: dict[str, JsonValue] = {"soonest_s": expected_s, "latest_s": None}
        data = {"exhaustion": {"expected_s": expected_s, "limit": 1.0, "limit_is": "", **ends}}
    return typed_finding("growth", data, subject="rss_anon_swap_bytes")


def leak(t_s: float, finding: Finding | None = None) -> InterimVerdict:
    return InterimVerdict(t_s, verdict(VerdictKind.LEAK, finding or growth()))


def clean(t_s: float) -> InterimVerdict:
    return InterimVerdict(t_s, verdict(VerdictKind.CLEAN))


def undecided(t_s: float) -> InterimVerdict:
    return InterimVerdict(t_s, verdict(VerdictKind.INCONCLUSIVE))


def word(reason: StopReason | None) -> str:
    return "" if reason is None else reason.word


def test_no_look_is_no_reason_to_stop() -> None:
    assert decide([], HOUR, None) is None


def test_a_leak_at_two_looks_after_steady_stops_the_run() -> None:
    reason = decide([leak(600), leak(700)], HOUR, steady_at_s=120.0)

    assert word(reason) == "leak"
    assert reason is not None
    assert "private memory grows" in reason.sentence


def test_a_leak_at_one_look_does_not() -> None:
    assert decide([undecided(600), leak(700)], HOUR, 120.0) is None
    assert decide([leak(500), undecided(600), leak(700)], HOUR, 120.0) is None


def test_two_looks_at_nearly_the_same_data_are_one() -> None:
    assert decide([leak(1000), leak(1001), leak(1002)], HOUR, 120.0) is None
    assert decide([leak(2000), leak(2100)], HOUR, 120.0) is None
    assert word(decide([leak(1700), leak(1800), leak(2000)], HOUR, 120.0)) == "leak"


def test_growth_while_filling_stops_nothing_before_half_of_the_time() -> None:
    assert decide([leak(600), leak(1200)], HOUR, None) is None
    assert decide([leak(600), leak(1900)], HOUR, None) is None
    assert word(decide([leak(1900), leak(2400)], HOUR, None)) == "leak"


def test_a_leak_by_arithmetic_needs_no_steady_state() -> None:
    lost = a_finding("residual", VerdictKind.LEAK, "pool.mamba", "3 slots are lost")

    assert word(decide([leak(300, lost), leak(400, lost)], HOUR, None)) == "leak"


def test_two_different_leaks_do_not_confirm_each_other() -> None:
    lost = a_finding("residual", VerdictKind.LEAK, "pool.mamba", "3 slots are lost")

    assert decide([leak(600), leak(700, lost)], HOUR, 120.0) is None


def test_clean_at_two_looks_stops_only_after_steady() -> None:
    looks = [clean(2000), clean(2500)]

    assert word(decide(looks, HOUR, 120.0)) == "bounded"
    assert decide(looks, HOUR, None) is None
    assert decide(looks, HOUR, 2100.0) is None


def test_clean_is_not_enough_while_the_traffic_has_not_been_covered() -> None:
    missing = {"aborts": Covered(required=10, seen=3, met=False)}
    late = replace(clean(2500).verdict, coverage=missing)

    assert decide([clean(2000), InterimVerdict(2500, late)], HOUR, 120.0) is None


def test_a_look_that_judged_nothing_is_not_clean() -> None:
    empty = replace(clean(0).verdict, metrics=())

    assert decide([InterimVerdict(2000, empty), InterimVerdict(2500, empty)], HOUR, 120.0) is None


def test_memory_that_runs_out_before_the_end_stops_at_once() -> None:
    reason = decide([undecided(600), leak(700, growth(expected_s=900.0))], HOUR, 120.0)

    assert word(reason) == "exhaustion"
    assert reason is not None
    assert "15m" in reason.sentence
    assert decide([undecided(600), leak(700, growth(expected_s=9000.0))], HOUR, 120.0) is None


def test_nothing_stops_a_run_that_has_reached_its_end() -> None:
    assert decide([leak(3500), leak(3600)], HOUR, 120.0) is None


def still_open(t_s: float) -> InterimVerdict:
    data: dict[str, JsonValue] = {"needed_s": 300.0}
    finding = a_finding("undecided", VerdictKind.INCONCLUSIVE, "rss_anon_swap_bytes", "", data=data)
    return InterimVerdict(t_s, verdict(VerdictKind.INCONCLUSIVE, finding))


def test_the_look_at_the_planned_end_decides_alone() -> None:
    assert word(settled([clean(300)])) == "decided"
    assert word(settled([leak(300)])) == "decided"
    assert settled([still_open(300)]) is None


def test_what_more_time_cannot_decide_extends_nothing() -> None:
    assert word(settled([undecided(300)])) == "decided"


def test_clean_in_an_extension_needs_two_looks_at_different_data() -> None:
    assert settled([still_open(300), clean(330)]) is None
    assert settled([still_open(300), clean(330), clean(360)]) is None
    assert settled([still_open(300), clean(330), still_open(360), clean(390)]) is None
    assert word(settled([still_open(300), clean(330), clean(360), clean(390)])) == "bounded"


def test_a_trend_in_an_extension_needs_two_looks_as_well() -> None:
    assert settled([still_open(300), leak(330)]) is None
    assert word(settled([still_open(300), leak(330), leak(360), leak(390)])) == "leak"


def test_what_needs_no_statistics_ends_an_extension_at_once() -> None:
    lost = a_finding("residual", VerdictKind.LEAK, "mamba", "3 slots are lost")
    broken = InterimVerdict(
        330, verdict(VerdictKind.INVARIANT, a_finding("x", VerdictKind.INVARIANT, "", ""))
    )

    assert word(settled([still_open(300), leak(330, lost)])) == "decided"
    assert word(settled([still_open(300), broken])) == "decided"


def decay(t_s: float, subject: str = "hit_rate") -> InterimVerdict:
    finding = a_finding("decay", VerdictKind.DEGRADED, subject, "the hit rate fell")
    return InterimVerdict(t_s, verdict(VerdictKind.DEGRADED, finding))


def test_a_decay_at_the_planned_end_must_stand_in_half_as_much_more_data() -> None:
    assert settled([decay(300)]) is None
    assert settled([decay(300), decay(400)]) is None
    assert word(settled([decay(300), decay(400), decay(451)])) == "decay"


def test_a_decay_that_passes_or_becomes_another_is_none() -> None:
    assert settled([decay(300), still_open(400), decay(451)]) is None
    assert settled([decay(300), decay(451, "evict_ms")]) is None
    assert word(settled([decay(300), clean(400), clean(470)])) == "bounded"


def test_a_missed_threshold_is_degraded_at_once() -> None:
    missed = a_finding("below-threshold", VerdictKind.DEGRADED, "hit_rate", "below")
    both = (missed, *decay(300).verdict.findings)

    assert word(settled([InterimVerdict(300, verdict(VerdictKind.DEGRADED, *both))])) == "decided"
