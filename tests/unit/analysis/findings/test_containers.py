"""Containers that only grow, and those that merely fill."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from hybridbench.analysis.drivers.search import Driver
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.containers import _whole, container_findings
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.records.events import Checkpoint
from hybridbench.records.finding import Finding, VerdictKind
from tests.unit.analysis.records import (
    Run,
    checkpoint,
    healthy_record,
    with_checkpoints,
    with_series,
)
from tests.unit.analysis.traffic import traffic

LONG = Run(duration_s=300.0, steady_s=30.0)
SHORT = Run(duration_s=45.0, steady_s=12.0)


def found(record: RunRecord) -> list[Finding]:
    return container_findings(Facts.of(record))


def lengths(*values: float, idle_at_end: bool = False) -> RunRecord:
    """A container seen only at checkpoints; ``idle_at_end``: no work before the last one."""
    rests = []
    for i, value in enumerate(values):
        rest = checkpoint(40.0 * (i + 1))
        work = {"finishes": 100.0 * (i - (idle_at_end and i == len(values) - 1))}
        rests.append(msgspec.structs.replace(rest, containers={"rids": value}, counters=work))
    return with_checkpoints(healthy_record(LONG), rests)


def sampled(run: Run, seed: int = 1) -> tuple[FloatArray, dict[str, FloatArray], FloatArray]:
    """Sample times, counters and requests in flight (none once the run is drained)."""
    t = np.arange(1.0, run.duration_s, 0.5)
    counts = traffic(seed, t)
    rng = np.random.default_rng(seed)
    live = np.where(t < run.duration_s - 6.0, 12.0 + rng.integers(-4, 5, t.size), 0.0)
    for count in counts.values():
        count[t >= run.duration_s - 6.0] = count[t < run.duration_s - 6.0][-1]
    return t, counts, live


def with_container(run: Run, value: FloatArray, t: FloatArray, **more: FloatArray) -> RunRecord:
    """A run with counters, one container, and an idle checkpoint at its end."""
    t_all, counts, live = sampled(run)
    assert t_all.size == t.size
    columns = {f"events.{n}": c for n, c in counts.items()}
    columns |= {"running_requests": live, "container.rids.len": value}
    columns |= {name.replace("__", "."): v for name, v in more.items()}
    end = checkpoint(run.duration_s - 2.0)
    shown = {n: float(c[-1]) for n, c in counts.items()}
    rest = msgspec.structs.replace(end, containers={"rids": float(value[-1])}, counters=shown)
    record = with_checkpoints(healthy_record(run), [rest])
    return with_series(record, *(Series(name, t, v) for name, v in columns.items()))


@pytest.mark.parametrize("run", [SHORT, LONG], ids=["45s", "300s"])
def test_an_entry_for_each_rejected_request_is_a_leak_with_one_rest(run: Run) -> None:
    t, counts, live = sampled(run)

    (finding,) = found(with_container(run, counts["requests_rejected"] + live, t))

    assert (finding.kind, finding.verdict) == ("container-grows", VerdictKind.LEAK)
    assert (finding.subject, finding.driver) == ("container: rids", "requests_rejected")
    assert finding.rates[0].lower <= 1.0 <= finding.rates[0].upper
    assert (finding.rates[0].unit, finding.rates[0].per) == ("entries", "rejected request")
    assert finding.rates[-1].per == "h"


def test_an_entry_for_each_token_is_a_leak() -> None:
    t, counts, _ = sampled(LONG)

    (finding,) = found(with_container(LONG, counts["prompt_tokens"], t))

    assert finding.driver == "prompt_tokens"
    assert finding.rates[0].value == 1.0


def test_requests_in_flight_are_no_leak() -> None:
    t, counts, live = sampled(LONG)
    piled = np.cumsum(np.random.default_rng(3).integers(0, 3, t.size)) * (live > 0)

    assert found(with_container(LONG, live, t)) == []
    # A queue that grows all the time but is empty when idle.
    assert found(with_container(LONG, piled.astype(np.float64), t)) == []
    assert found(with_container(LONG, counts["finishes"] * (live > 0), t)) == []


def test_what_is_gone_at_rest_was_no_leak_however_well_it_is_counted() -> None:
    t, counts, _ = sampled(LONG)
    record = with_container(LONG, counts["finishes"], t)
    (rest,) = record.all_events(Checkpoint)
    empty = msgspec.structs.replace(rest, containers={"rids": 0.0})

    assert len(found(record)) == 1
    assert found(with_checkpoints(record, [empty])) == []


@pytest.mark.parametrize("tau_s", [30.0, 80.0, 150.0])
def test_what_fills_ever_more_slowly_is_no_leak(tau_s: float) -> None:
    t, counts, _ = sampled(LONG)
    shapes = np.round(40 * (1 - np.exp(-t / tau_s)))
    share = np.round(500 * (1 - np.exp(-counts["finishes"] / 1500.0)))

    assert found(with_container(LONG, shapes, t)) == []
    assert found(with_container(LONG, share, t)) == []


def test_a_tree_that_grows_as_its_pool_fills_is_no_leak() -> None:
    t, counts, _ = sampled(LONG)
    nodes = counts["finishes"]
    tokens = np.random.default_rng(1).poisson(16.0, int(nodes[-1])).cumsum()
    filling = np.append(0, tokens)[nodes.astype(int)].astype(np.float64)

    assert found(with_container(LONG, nodes, t, pool__kv__evictable=filling)) == []
    (finding,) = found(with_container(LONG, nodes, t, pool__kv__evictable=np.full(t.size, 640.0)))
    assert finding.driver == "finishes"


@pytest.mark.parametrize(
    ("seed", "counter", "first", "last"),
    [
        (19, "node_splits", 26, 51),
        (254, "prefix_hits", 36, 47),
        (318, "requests_submitted", 29, 35),
    ],
)
def test_a_full_tree_of_which_two_rests_agree_with_a_counter_is_no_leak(
    seed: int, counter: str, first: int, last: int
) -> None:
    t, counts, _ = sampled(SHORT)
    steps = np.random.default_rng(seed).normal(0.0, 8.0, t.size - 1)
    nodes = [0.0]
    for step in steps.tolist():
        nodes.append(0.8 * nodes[-1] + step)
    value = np.round(nodes) + 260.0
    gained = value[last] - value[first]
    assert gained == counts[counter][last] - counts[counter][first] >= 20.0
    rests = [
        msgspec.structs.replace(
            checkpoint(float(t[at])),
            containers={"rids": float(value[at])},
            counters={name: float(count[at]) for name, count in counts.items()},
        )
        for at in (first, last)
    ]

    assert found(with_checkpoints(with_container(SHORT, value, t), rests)) == []


def test_a_container_that_is_longer_at_every_rest_is_a_leak() -> None:
    (finding,) = found(lengths(10, 30, 52, 70, 91))

    assert (finding.kind, finding.subject) == ("container-grows", "container: rids")
    rate = finding.rates[0]
    assert rate.lower <= rate.value <= rate.upper
    assert rate.value == pytest.approx(81 / 160 * 3600)


@pytest.mark.parametrize("worked", [True, False])
def test_an_idle_point_without_work_before_it_shows_nothing(worked: bool) -> None:
    findings = found(lengths(10, 30, 52, 70, 91, 91, idle_at_end=not worked))

    assert [f.kind for f in findings] == ([] if worked else ["container-grows"])
    assert all("each of 5 checkpoints" in finding.title for finding in findings)


@pytest.mark.parametrize(("at_end", "is_leak"), [(433.0, True), (560.0, False)])
def test_a_cache_that_is_full_at_each_idle_point_explains_no_growth(
    at_end: float, is_leak: bool
) -> None:
    """In the samples it grows in both cases, because the last requests leave their entries."""
    t, _, live = sampled(LONG)
    value = np.round(2000 + 137.3 * t + 4000 * np.sin(t / 17))
    record = with_container(LONG, value, t, pool__kv__evictable=430.0 - 10 * live)
    # The last idle point soon follows the previous one, when the traffic ends.
    rests = [
        msgspec.structs.replace(
            checkpoint(at, kv={"evictable": 430.0 + (at_end - 430.0) * at / 290.0}),
            containers={"rids": 2000 + 137.3 * at},
        )
        for at in (60.0, 120.0, 180.0, 240.0, 285.0, 290.0)
    ]

    findings = found(with_checkpoints(record, rests))

    assert [finding.driver for finding in findings] == ([None] if is_leak else [])


def test_a_full_cache_that_holds_more_at_one_idle_point_explains_no_growth() -> None:
    """An entry for each match, and admissions that match 2.2 times each: no whole number."""
    t, counts, _ = sampled(LONG)
    value = np.round(2.23 * counts["admissions"])
    states = (153.0, 157.0, 156.0, 159.0, 158.0, 160.0)
    record = with_container(
        LONG, value, t, pool__mamba__evictable=130.0 + 20.0 * (t > 20.0).astype(np.float64)
    )
    rests = [
        msgspec.structs.replace(
            checkpoint(at, mamba={"evictable": held}),
            containers={"rids": float(np.interp(at, t, value))},
            counters={name: float(np.interp(at, t, count)) for name, count in counts.items()},
        )
        for at, held in zip((40.0, 90.0, 140.0, 190.0, 240.0, 290.0), states, strict=True)
    ]

    (finding,) = found(with_checkpoints(record, rests))

    assert finding.driver == "admissions"
    assert finding.rates[0].lower <= 2.23 <= finding.rates[0].upper


@pytest.mark.parametrize(
    "values", [(10, 30, 50), (10, 60, 80, 85, 86), (5, 9, 7, 12, 15), (4, 4, 4, 4, 4)]
)
def test_one_that_fills_up_or_comes_back_or_is_young_is_not(values: tuple[float, ...]) -> None:
    assert found(lengths(*values)) == []


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_a_list_that_only_grows_is_counted_whatever_the_load_does(seed: int) -> None:
    """More requests in flight at the end than at the start do not explain its growth."""
    record = healthy_record(Run(seed=seed))
    finishes = record.series["events.finishes"]
    kept = with_series(record, Series("container.kept.len", finishes.t_s, finishes.value))

    (finding,) = container_findings(Facts.of(kept))

    assert finding.driver == "finishes"
    assert finding.driven is not None
    assert finding.driven.exact
    assert finding.data["last"] == finishes.value[-1]


@pytest.mark.parametrize(
    ("lower", "per_event", "upper", "whole"),
    [
        (2.28, 2.70, 3.12, False),  # pages of a store that fills
        (0.95, 1.02, 1.09, True),
        (0.31, 0.40, 0.49, False),
        (1.20, 1.30, 1.40, False),
    ],
)
def test_a_wide_interval_contains_a_whole_number_by_accident(
    lower: float, per_event: float, upper: float, whole: bool
) -> None:
    driver = Driver("finishes", per_event, lower, upper, events=300.0, rise=800.0, covered=1.0)

    assert _whole(driver) == whole
