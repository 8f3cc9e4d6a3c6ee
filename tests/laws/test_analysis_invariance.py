"""Laws of the estimator: units, origin and order must not change a verdict."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.analysis.trend.estimate import Estimate, Options, Samples, estimate
from hybridbench.records.manifest import manifest_to_json
from hybridbench.records.verdict import Verdict
from tests.unit.analysis.records import GIB, Run, healthy_record, with_manifest, with_series
from tests.unit.analysis.traces import HEALTHY, LEAKY, Setting, healthy, leaky

SETTING = Setting(3600.0, 5.0, 1000.0, 1.0, 20.0)
FLOOR = 12.0

# Each example fits a whole trace once or twice, which takes a third of a second.
FEW = settings(
    max_examples=max(5, (settings.default.max_examples if settings.default else 25) // 5)
)

kinds = st.sampled_from([*HEALTHY, *LEAKY])
seeds = st.integers(0, 10_000)


def series(kind: str, seed: int) -> tuple[FloatArray, FloatArray]:
    if kind in HEALTHY:
        trace = healthy(kind, seed, SETTING)
    else:
        trace = leaky(kind, seed, 200.0, SETTING)
    return trace.t_s, trace.value


def judged(t: FloatArray, y: FloatArray, floor: float = FLOOR) -> Estimate:
    return estimate(Samples(t, y), Options(floor=floor))


@FEW
@given(kinds, seeds, st.sampled_from([2.0**-20, 0.125, 1024.0, 2.0**30]))
def test_the_unit_of_the_values_changes_no_verdict(kind: str, seed: int, unit: float) -> None:
    t, y = series(kind, seed)

    once, again = judged(t, y), judged(t, unit * y, unit * FLOOR)

    assert (again.leak, again.reason, again.model) == (once.leak, once.reason, once.model)
    assert again.growth == pytest.approx(unit * once.growth, rel=1e-6, abs=1e-6 * unit)
    assert again.upper == pytest.approx(unit * once.upper, rel=1e-6, abs=1e-6 * unit)


@FEW
@given(kinds, seeds, st.sampled_from([-512.0, 4096.0, 65536.0]))
def test_memory_that_was_always_there_changes_no_verdict(kind: str, seed: int, more: float) -> None:
    t, y = series(kind, seed)

    once, again = judged(t, y), judged(t, y + more)

    assert again.leak == once.leak
    assert again.growth == pytest.approx(once.growth, rel=1e-3, abs=1e-2)


@FEW
@given(kinds, seeds, st.floats(0.0, 1e6))
def test_when_the_run_began_changes_no_verdict(kind: str, seed: int, later_s: float) -> None:
    t, y = series(kind, seed)

    once, again = judged(t, y), judged(t + np.round(later_s), y)

    assert again.leak == once.leak
    assert again.growth == pytest.approx(once.growth, rel=1e-3, abs=1e-2)


@FEW
@given(kinds, seeds)
def test_the_estimate_lies_in_its_own_interval(kind: str, seed: int) -> None:
    found = judged(*series(kind, seed))

    assert found.lower <= found.growth <= found.upper
    assert not (found.leak and found.lower <= FLOOR)
    assert bool(found.reason) or found.leak or found.growth == 0.0


@FEW
@given(seeds, st.floats(50.0, 5000.0))
def test_planting_a_leak_moves_the_estimate_by_the_leak(seed: int, rate: float) -> None:
    t, y = series("flat", seed)

    found = judged(t, y + rate * (t - t[0]) / 3600)

    assert found.leak
    assert found.growth == pytest.approx(rate * (t[-1] - t[0]) / 3600, abs=0.05 * rate + 12)


# Laws of whole verdicts: names, order, units and clocks of a stored run must not change them.

RUNS = {
    "healthy": Run(seed=3),
    "leaking": Run(seed=3, leak_bytes_per_h=GIB),
    "undecided": Run(240.0, 120.0, 3, limit=None, probe_s=2.0),
}


@cache
def stored(name: str) -> tuple[RunRecord, Verdict]:
    record = healthy_record(RUNS[name])
    return record, judge(record)


def told(verdict: Verdict) -> list[tuple[str, str, str]]:
    """Return a verdict's findings without figures."""
    return [(f.kind, str(f.verdict), f.subject) for f in verdict.findings]


@pytest.mark.parametrize("name", RUNS)
def test_the_three_runs_differ(name: str) -> None:
    expected = {"healthy": "CLEAN", "leaking": "LEAK", "undecided": "INCONCLUSIVE"}

    assert stored(name)[1].kind.value == expected[name]


@pytest.mark.parametrize("name", RUNS)
def test_the_order_of_metrics_changes_no_verdict(name: str) -> None:
    record, once = stored(name)
    order = np.random.default_rng(5).permutation(sorted(record.series))

    again = judge(replace(record, series={str(n): record.series[str(n)] for n in order}))

    assert again == once


@pytest.mark.parametrize("name", RUNS)
def test_what_the_manifest_calls_things_changes_no_verdict(name: str) -> None:
    record, once = stored(name)
    profile = manifest_to_json(record.manifest)["profile"]
    assert isinstance(profile, dict)
    renamed = with_manifest(
        record,
        profile={**profile, "name": "leaks-badly", "source": "elsewhere.yaml"},
        defects=["lru-reference-cycle"],
        run_id="another",
        seed=99,
        command=["soak", "--defect", "lru-reference-cycle"],
    )

    again = judge(renamed)

    assert (again.kind, told(again), again.metrics) == (once.kind, told(once), once.metrics)


@pytest.mark.parametrize("name", RUNS)
def test_a_later_origin_of_time_changes_no_verdict(name: str) -> None:
    record, once = stored(name)
    later_s = 4096.0
    series = {n: replace(s, t_s=s.t_s + later_s) for n, s in record.series.items()}
    events = [msgspec.structs.replace(event, t_s=event.t_s + later_s) for event in record.events]

    again = judge(replace(record, series=series, events=events))

    assert (again.kind, told(again)) == (once.kind, told(once))


@pytest.mark.parametrize("name", RUNS)
def test_memory_beside_the_worker_s_own_changes_no_verdict(name: str) -> None:
    record, once = stored(name)
    memory = record.series["rss_anon_swap_bytes"]
    more = replace(memory, value=memory.value + 16 * 2.0**20)

    again = judge(with_series(record, more))

    assert (again.kind, told(again)) == (once.kind, told(once))
