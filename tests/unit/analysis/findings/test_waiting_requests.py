"""Waiting requests that hold slots."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.requests import waiting_findings
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import EngineViolation
from hybridbench.records.finding import Finding, VerdictKind
from tests.unit.analysis.records import (
    Run,
    checkpoint,
    healthy_record,
    refused_and_holding,
    with_events,
    with_series,
)

RUN = Run(duration_s=240.0, steady_s=60.0)


def found(record: RunRecord) -> list[Finding]:
    return waiting_findings(Facts.of(record))


def test_the_pool_the_holders_and_the_driver_are_named() -> None:
    record = refused_and_holding(healthy_record(RUN))
    held = record.series["pool.mamba.waiting_held"].value

    (finding,) = found(record)

    assert finding.verdict is VerdictKind.LEAK
    assert finding.subject == "mamba: state slots"
    assert finding.driver == "refusals"
    assert finding.data["most"] == float(held.max())
    assert finding.rates[0].per == "refusal"
    assert judge(record).kind is VerdictKind.LEAK
    assert judge(healthy_record(RUN)).kind is not VerdictKind.LEAK


def test_refusals_in_every_interval_are_still_the_likeliest_driver() -> None:
    record = refused_and_holding(healthy_record(RUN))
    t = record.series["events.refusals"].t_s
    rng = np.random.default_rng(4)
    always = {
        name: Series(f"events.{name}", t, np.cumsum(rng.poisson(mean, t.size)).astype(float))
        for name, mean in (("refusals", 9.0), ("cow_copies", 9.0), ("steps", 40.0))
    }

    assert found(with_series(record, *always.values()))[0].driver == "refusals"


def test_a_counter_that_clearly_fits_better_beats_the_likely_one() -> None:
    record = refused_and_holding(healthy_record(RUN))
    refusals = record.series["events.refusals"]
    rng = np.random.default_rng(4)
    always = np.cumsum(rng.poisson(9.0, len(refusals))).astype(np.float64)
    swapped = with_series(
        record,
        Series("events.session_closes", refusals.t_s, refusals.value),
        Series("events.refusals", refusals.t_s, always),
    )

    assert found(swapped)[0].driver == "session_closes"


@pytest.mark.parametrize("kind", ["waiting-held", "waiting_held"])
def test_the_engines_own_words_are_cited_and_suffice(kind: str) -> None:
    said = EngineViolation(kind=kind, pool="mamba", message="r7 holds slot 4", t_s=90.0)

    (alone,) = found(with_events(healthy_record(RUN), said))
    (cited,) = found(with_events(refused_and_holding(healthy_record(RUN)), said))

    assert alone.verdict is cited.verdict is VerdictKind.LEAK
    assert cited.data["violation"] == "r7 holds slot 4"
    assert len(judge(with_events(healthy_record(RUN), said)).findings) == 1


def test_one_sample_taken_while_an_admission_is_decided_is_no_finding() -> None:
    record = healthy_record(RUN)
    t = record.series["pool.mamba.waiting_held"].t_s

    once = with_series(record, Series("pool.mamba.waiting_held", t, (t == 100) * 1.0))

    assert found(once) == []


def test_what_is_still_held_at_a_checkpoint_counts_at_once() -> None:
    (finding,) = found(
        with_events(healthy_record(RUN), checkpoint(200.0, mamba={"waiting_held": 2.0}))
    )

    assert finding.data["most"] == 2.0
    assert finding.since_s == 200.0


def last_values(**values: float) -> list[Series]:
    """Series of one sample at the end of the run; ``__`` in a name stands for a dot."""
    at = np.array([240.0])
    return [Series(name.replace("__", "."), at, np.array([v])) for name, v in values.items()]


def test_the_steps_in_which_slots_were_taken_tell_the_driver_without_any_expectation() -> None:
    record = refused_and_holding(healthy_record(RUN))
    # Retracts moved in all steps that took slots and in few others; refusals move in most steps.
    looked = last_values(
        steps_with__steps=1000.0,
        steps_with__refusals=800.0,
        steps_with__retracts=60.0,
        steps_with__admissions=900.0,
        waiting_taken__mamba__steps=40.0,
        waiting_taken__mamba__refusals=39.0,
        waiting_taken__mamba__retracts=40.0,
        waiting_taken__mamba__admissions=20.0,
        events__retracts=60.0,
        events__admissions=5000.0,
    )

    (finding,) = found(with_series(record, *looked))

    assert finding.driver == "retracts"
    assert finding.rates[0].value == pytest.approx(40 / 60)
    assert (finding.data["driver_share"], finding.data["driver_rise"]) == (1.0, 40.0)
    assert finding.data["driver_of_steps"] == pytest.approx(0.06)


def test_of_counters_that_move_in_the_very_same_steps_the_likely_one_is_named() -> None:
    record = refused_and_holding(healthy_record(RUN))
    looked = last_values(
        steps_with__steps=1000.0,
        steps_with__refusals=300.0,
        steps_with__cow_copies=300.0,
        waiting_taken__mamba__steps=40.0,
        waiting_taken__mamba__refusals=40.0,
        waiting_taken__mamba__cow_copies=40.0,
        events__cow_copies=900.0,
    )

    assert found(with_series(record, *looked))[0].driver == "refusals"
