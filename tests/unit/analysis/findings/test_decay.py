"""Decay in made-up runs: found where planted, not reported for a machine with slow spells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.decay import Decay, judge_decay
from hybridbench.analysis.reading import number
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.finding import VerdictKind
from tests.unit.analysis.records import with_series
from tests.unit.analysis.work import HIT_SHARE, Work, uneven, working_record

PARTS = {
    "evict_s": "evict_ms",
    "match_s": "match_ms",
    "insert_s": "insert_ms",
    "own_s": "schedule_ms",
    "forward_cpu_s": "forward_cpu_ms",
}


def judged(work: Work) -> Decay:
    record = working_record(work)
    return judge_decay(Facts.of(record))


def outcomes(decay: Decay) -> dict[str, str]:
    return {result.name: result.outcome for result in decay.results}


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_engine_on_an_uneven_machine_has_no_finding(seed: int) -> None:
    decay = judged(uneven(seed))

    assert decay.findings == ()
    assert outcomes(decay)["evict_ms"] in ("no change", "machine")


@pytest.mark.parametrize("part", PARTS)
def test_one_part_that_takes_twice_as_long_at_the_end_is_named(part: str) -> None:
    findings = judged(Work(seed=3, worse={part: 2.0})).findings

    assert PARTS[part] in [finding.subject for finding in findings]
    first = next(finding for finding in findings if finding.subject == PARTS[part])
    assert (first.kind, first.verdict) == ("decay", VerdictKind.DEGRADED)
    assert 1.4 < float(str(first.data["factor"])) < 2.6


def test_a_step_is_dated() -> None:
    (finding,) = judged(Work(seed=5, worse={"evict_s": 3.0}, step_at=0.5)).findings

    assert finding.subject == "evict_ms"
    assert finding.data["shape"] == "step"
    assert finding.since_s == pytest.approx(150.0, abs=15.0)


def test_a_machine_that_gets_slower_is_a_note_and_no_finding() -> None:
    decay = judged(Work(seed=2, stolen=((0.5, 1.1, 2.5),)))

    assert decay.findings == ()
    assert outcomes(decay)["evict_ms"] == "machine"
    (note,) = decay.notes
    assert note.startswith("the machine slowed down in the judged window: ")
    assert note.endswith(" rose, but not more than the other times did")
    assert "CPU time of an eviction" in note


@pytest.mark.parametrize("since", [0.3, 0.5, 0.8])
def test_a_neighbour_that_takes_the_processor_away_is_no_decay(since: float) -> None:
    decay = judged(Work(seed=2, preempted=((since, 1.1, 3.0),)))

    assert decay.findings == ()
    assert outcomes(decay)["forward_cpu_ms"] == "no change"


def test_a_growing_batch_is_no_decay() -> None:
    assert judged(Work(seed=4, load_ramp=3.0)).findings == ()


def test_a_whole_step_that_is_dear_since_before_steady_is_found_from_the_traffic_on() -> None:
    work = Work(seed=6, steady_s=150.0, worse={"evict_s": 400.0}, step_at=0.45)

    findings = judged(work).findings

    assert "token_ms" in [finding.subject for finding in findings]
    assert "evict_ms" not in [finding.subject for finding in findings]


def test_hits_that_are_lost_are_found() -> None:
    (finding,) = judged(Work(seed=1, hit_lost=0.4)).findings

    assert finding.subject == "hit_rate"
    assert number(finding.data, "after") < number(finding.data, "before")


def with_rare_hits(seed: int, total: float, busier: float) -> RunRecord:
    """A healthy run of ``total`` hits of 80 tokens, always one hit per 800 prompt tokens.

    At its end there are ``busier`` times as many prompts as at its beginning.
    """
    record = working_record(Work(seed=seed))
    t = record.series["events.prefix_hit_tokens"].t_s
    rng = np.random.default_rng(seed)
    pace = np.linspace(1.0, busier, t.size)
    hits = rng.poisson(total * pace / pace.sum()).astype(np.float64)
    columns = {
        "prefix_hits": hits,
        "prefix_hit_tokens": 80.0 * hits,
        "prompt_tokens": 720.0 * total * pace / pace.sum(),
    }
    added = [Series(f"events.{name}", t, np.cumsum(x)) for name, x in columns.items()]
    return with_series(record, *added)


@pytest.mark.parametrize("seeds", [1, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("total", [40.0, 80.0, 160.0, 600.0, 3000.0])
@pytest.mark.parametrize("busier", [0.3, 1.0, 3.0])
def test_hits_that_are_rare_are_no_decay_however_the_load_moves(
    total: float, busier: float, seeds: int
) -> None:
    found = [
        f
        for seed in range(seeds)
        for f in judge_decay(Facts.of(with_rare_hits(seed, total, busier))).findings
        if f.subject == "hit_rate"
    ]

    assert found == []


def test_a_cache_that_stops_helping_is_found_although_its_last_blocks_have_no_hit() -> None:
    record = with_rare_hits(1, 3000.0, 1.0)
    hits, tokens = (record.series[f"events.prefix_hit{s}"] for s in ("s", "_tokens"))
    end = hits.t_s.size // 2
    stopped = [replace(one, value=np.minimum(one.value, one.value[end])) for one in (hits, tokens)]

    (finding,) = [
        f
        for f in judge_decay(Facts.of(with_series(record, *stopped))).findings
        if f.subject == "hit_rate"
    ]

    assert finding.kind == "decay"


@pytest.mark.parametrize("least", [HIT_SHARE - 0.05, HIT_SHARE + 0.05])
def test_a_hit_rate_below_its_limit_is_found_however_flat(least: float) -> None:
    findings = judged(Work(seed=1, limits={"hit_rate": least})).findings

    below = [f for f in findings if f.kind == "below-threshold"]
    assert bool(below) == (least > HIT_SHARE)
    assert all(f.verdict is VerdictKind.DEGRADED and f.subject == "hit_rate" for f in below)


@pytest.mark.parametrize("most_ms", [0.01, 1.0])
def test_an_eviction_longer_than_its_limit_is_found(most_ms: float) -> None:
    findings = judged(Work(seed=1, limits={"evict_ms": most_ms})).findings

    assert [f.subject for f in findings] == (["evict_ms"] if most_ms < 0.02 else [])


def test_the_tree_is_named_where_an_eviction_follows_its_size() -> None:
    record = working_record(Work(seed=8, worse={"evict_s": 4.0}, step_at=0.3))
    cost = record.series["evict_s"]
    nodes = np.where(cost.t_s > 0.3 * 300.0, 4000.0, 1000.0)
    record = with_series(record, replace(cost, name="container.tree_nodes.len", value=nodes))

    (finding,) = judge_decay(Facts.of(record)).findings

    assert finding.driver == "tree_nodes"


def test_nothing_is_judged_before_steady_or_without_timings() -> None:
    record = working_record(Work(seed=1, worse={"evict_s": 3.0}))
    unsteady = replace(record, events=record.events[1:])
    bare = replace(record, series={"rss_bytes": record.series["step_s"]})

    assert judge_decay(Facts.of(unsteady)).findings == ()
    assert judge_decay(Facts.of(bare)) == Decay()
    assert judge_decay(replace(Facts.of(record), window=None)) == Decay()


@pytest.mark.slow
def test_five_hundred_healthy_runs_raise_at_most_one_alarm() -> None:
    alarms = [
        seed
        for seed in range(500)
        if judged(uneven(seed, duration_s=(180.0, 300.0, 600.0)[seed % 3])).findings
    ]

    assert len(alarms) <= 1, alarms


@pytest.mark.slow
@pytest.mark.parametrize("part", ["evict_s", "match_s", "own_s"])
def test_twice_the_cost_over_the_window_is_found_19_times_of_20(part: str) -> None:
    found = [
        PARTS[part] in [f.subject for f in judged(Work(seed=s, worse={part: 2.0})).findings]
        for s in range(100)
    ]

    assert sum(found) >= 95


@pytest.mark.parametrize(
    ("leaves", "grows", "found"), [(True, 1.0, False), (False, 5.0, True), (False, 1.0, False)]
)
def test_a_crowd_that_leaves_makes_no_collections_more_expensive(
    leaves: bool, grows: float, found: bool
) -> None:
    """Steps wait for a CPU ten times as long as collections, which take 6% of the time alone."""
    record = working_record(Work(seed=11))
    step = record.series["step_s"]
    x = np.linspace(0.0, 1.0, len(step))
    rng = np.random.default_rng(11)
    waits = (0.3 + 6.0 * (1.0 - x * leaves) ** 2) * np.exp(rng.normal(0.0, 0.1, x.size))
    computed = np.diff(step.value, prepend=0.0)
    pauses = 0.06 * grows**x * computed * (1.0 + 0.1 * waits)
    crowded = with_series(
        record,
        Series("step_s", step.t_s, np.cumsum(computed * (1.0 + waits))),
        Series("gc_pause_s", step.t_s, np.cumsum(pauses)),
        Series("worker_cpu_s", step.t_s, np.cumsum(computed)),
        Series("worker_cpu_wait_s", step.t_s, np.cumsum(waits * computed)),
    )

    findings = judge_decay(Facts.of(crowded)).findings

    assert ("gc_share" in [finding.subject for finding in findings]) == found
