"""Growth caused by measuring is attributed to the bench; other growth is not."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.findings.growth import probe_growth_findings
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.records.finding import Rate, VerdictKind
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import MetricResult

MIB = float(2**20)


def memory(mib_per_hour: float, outcome: str = "LEAK") -> MetricResult:
    value = mib_per_hour * MIB
    return MetricResult(
        metric="rss_anon_swap_bytes",
        outcome=outcome,
        window_s=(100.0, 400.0),
        rate_per_hour=Rate(value, 0.99 * value, 1.01 * value, "B", "h"),
        rate_per_request=None,
        floor_per_hour=MIB,
        limit_per_hour=None,
        model="line",
    )


def looked_at(held: FloatArray) -> RunRecord:
    t = np.linspace(0.0, 400.0, held.size)
    return RunRecord(
        Manifest(), {"observer_held_bytes": Series("observer_held_bytes", t, held)}, ()
    )


def test_a_worker_that_keeps_every_answer_makes_the_run_invalid() -> None:
    looks = np.arange(321, dtype=np.float64)
    noise = 2048 * np.random.default_rng(1).standard_normal(321)

    (finding,) = probe_growth_findings(looked_at(131072 * looks + noise), [memory(360.0)])

    assert finding.verdict is VerdictKind.INVALID
    per_hour, per_look = finding.rates
    assert per_look.value == pytest.approx(131072, rel=0.01)
    assert per_hour.value == pytest.approx(131072 * 2880, rel=0.01)


def test_the_same_looking_beside_a_much_larger_leak_explains_nothing() -> None:
    looks = np.arange(321, dtype=np.float64)

    assert probe_growth_findings(looked_at(131072 * looks), [memory(3700.0)]) == []


def test_looking_that_leaves_nothing_leaves_a_leak_what_it_is_seed_2() -> None:
    noise = 8192 * np.random.default_rng(2).standard_normal(321)

    assert probe_growth_findings(looked_at(noise), [memory(20.0)]) == []


def test_what_a_few_looks_caught_of_another_thread_is_not_the_bench_s_own_seed_3() -> None:
    rng = np.random.default_rng(3)
    left = np.where(rng.random(321) < 0.3, 4.0 * MIB, 0.0)

    assert probe_growth_findings(looked_at(np.cumsum(left)), [memory(3700.0)]) == []


def test_without_a_leak_there_is_nothing_to_explain() -> None:
    looks = np.arange(321, dtype=np.float64)

    assert probe_growth_findings(looked_at(131072 * looks), [memory(360.0, "INCONCLUSIVE")]) == []
