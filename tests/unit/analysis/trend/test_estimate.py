"""The composite estimator on labelled traces: no false leaks, and few missed ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from hybridbench.analysis.trend.estimate import MIN_SAMPLES, Estimate, Options, Samples, estimate
from hybridbench.analysis.trend.shapes import SLOWEST
from hybridbench.analysis.trend.terms import LEAK_AFTER_STEADY_S
from tests.unit.analysis.traces import (
    HEALTHY,
    HEALTHY_STEADY,
    LEAKY,
    Setting,
    Trace,
    allowance,
    healthy,
    leaky,
    steady_setting,
    tooth,
)

LOADS = ("on_off_load", "diurnal_load", "tied")


@dataclass(frozen=True)
class Judged:
    """A trace with its estimate in MB/h, and whether it is called a leak."""

    trace: Trace
    found: Estimate
    lower: float
    upper: float
    rate: float
    called: bool

    @property
    def covered(self) -> bool:
        return self.lower <= self.trace.last_rate <= self.upper


def judged(trace: Trace, *, steady: bool) -> Judged:
    """Estimate with the thresholds that ``trend`` uses for a process's memory."""
    s = trace.setting
    hours = s.duration_s / 3600
    floor = max(max(0.5, 0.0002 * s.base) * hours, allowance(s.duration_s, s.base))
    long_enough = s.duration_s >= LEAK_AFTER_STEADY_S
    slowest = 0.5 if steady and long_enough else SLOWEST
    works = () if trace.work is None else (trace.work,)
    found = estimate(
        Samples(trace.t_s, trace.value, works, trace.load), Options(floor=floor, slowest=slowest)
    )
    window = (found.blocks.end_s - found.blocks.start_s) / 3600
    called = found.leak and (long_enough or not steady)
    return Judged(
        trace, found, found.lower / window, found.upper / window, found.growth / window, called
    )


def clean_corpus(seed: int, each: int, *, steady: bool) -> list[Judged]:
    kinds = (*(HEALTHY_STEADY if steady else HEALTHY), *LOADS)
    return [
        judged(healthy(kind, seed + i, setting(seed + i, kind, steady=steady)), steady=steady)
        for kind in kinds
        for i in range(each)
    ]


def leak_corpus(seed: int, each: int, *, steady: bool) -> list[Judged]:
    found = []
    for kind in LEAKY:
        for i in range(each):
            rng = np.random.default_rng([seed + i, 9])
            low, high = (500, 10_000) if steady else (1, 10_000)
            rate = float(np.exp(rng.uniform(np.log(low), np.log(high))))
            trace = leaky(kind, seed + i, rate, setting(seed + i, kind, steady=steady))
            found.append(judged(trace, steady=steady))
    return found


def setting(seed: int, kind: str, *, steady: bool) -> Setting | None:
    return steady_setting(np.random.default_rng([seed, 5, len(kind)])) if steady else None


def false_leaks(results: list[Judged]) -> list[str]:
    return [f"{r.trace.kind}: {r.found.model}, {r.rate:.0f} MB/h" for r in results if r.called]


def resolvable(results: list[Judged], *, steady: bool) -> list[Judged]:
    """Return the detectable leaks in windows long enough to call one."""
    shortest = LEAK_AFTER_STEADY_S if steady else 0.0
    return [r for r in results if r.trace.resolvable and r.trace.setting.duration_s >= shortest]


@pytest.mark.parametrize("steady", [False, True], ids=["whole-run", "after-steady"])
def test_no_healthy_process_is_called_a_leak(steady: bool) -> None:
    results = clean_corpus(300, 2, steady=steady)

    assert not false_leaks(results)
    assert np.mean([r.covered for r in results]) > 0.88


@pytest.mark.parametrize("steady", [False, True], ids=["whole-run", "after-steady"])
def test_leaks_that_can_be_resolved_are_found(steady: bool) -> None:
    results = leak_corpus(500, 2, steady=steady)

    visible = resolvable(results, steady=steady)
    assert len(visible) > 7
    assert np.mean([r.called for r in visible]) > 0.85
    assert np.mean([r.covered for r in results]) > 0.8
    errors = [abs(r.rate / r.trace.last_rate - 1) for r in visible]
    assert float(np.median(errors)) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("steady", [False, True], ids=["whole-run", "after-steady"])
def test_the_deep_corpus_holds_the_same_limits(steady: bool) -> None:
    clean = clean_corpus(900_000, 45, steady=steady)
    leaks = leak_corpus(900_000, 30, steady=steady)

    visible = resolvable(leaks, steady=steady)
    # With 2,000 clean traces, one in five hundred cannot be distinguished from zero.
    assert len(false_leaks(clean)) <= len(clean) / 500
    assert np.mean([r.covered for r in clean]) > 0.9
    assert np.mean([r.called for r in visible]) > 0.9
    assert np.mean([r.covered for r in leaks]) > 0.85


def test_work_explains_a_leak_per_request_better_than_time() -> None:
    trace = leaky("per_request_on_off", 3, 2000.0)

    found = judged(trace, steady=False).found

    assert found.leak
    assert "work" in found.model
    assert "work" in found.model


def test_a_fill_that_slows_down_is_still_filling() -> None:
    s = Setting(3600, 1.0, 1000.0, 0.5, 5.0)
    t = np.arange(1.0, 3600.0)
    rng = np.random.default_rng(1)
    value = 1000 + 300 * (1 - np.exp(-t / 2500)) + 0.5 * rng.normal(size=t.size)

    result = judged(Trace("fill", s, t, value, 0.0, 0.0), steady=False)

    assert not result.called
    assert result.found.reason == "still-filling"
    assert result.found.fade is not None
    assert result.found.fade[1] < result.found.fade[0]


@pytest.mark.parametrize(("start", "noise"), [(0.1, 0.3), (0.1, 1.0), (0.17, 0.3), (0.25, 0.3)])
def test_growth_that_decays_with_time_is_no_leak_however_little_noise_it_has(
    start: float, noise: float
) -> None:
    """No shape of the whole run fits so well; over its later half alone it is nearly a line."""
    rng = np.random.default_rng(int(100 * start))
    x = np.linspace(start, 1.0, 8640)
    fill = 900.0 * np.log(x / start) + noise * rng.normal(size=x.size)

    found = estimate(Samples(86_400.0 * x, fill), Options(floor=1.0))

    assert not found.leak


def test_a_refill_in_the_later_half_does_not_hide_a_leak() -> None:
    rng = np.random.default_rng(3)
    x = np.linspace(0.1, 1.0, 8640)
    helper = np.where(x < 0.52, 600.0, 600.0 * (1 - np.exp(-(x - 0.52) / 0.04)))
    helper -= np.where(x < 0.25, 0.0, 600.0 * np.exp(-np.maximum(x - 0.25, 0.0) / 0.02))

    found = estimate(Samples(36_000.0 * x, 700 * x + helper + 8 * rng.normal(size=x.size)))

    assert found.leak


def test_one_tooth_that_gives_most_back_is_too_few_cycles() -> None:
    t = np.arange(1.0, 1800.0)
    rng = np.random.default_rng(2)
    value = 1000 + 0.2 * t - 250 * (t > 1400) + 0.5 * rng.normal(size=t.size)

    found = estimate(Samples(t, value), Options(floor=10.0))

    assert not found.leak
    assert found.reason == "few-cycles"


def test_growth_under_long_teeth_is_the_growth_of_their_troughs() -> None:
    t = np.arange(1.0, 3600.0)
    rng = np.random.default_rng(3)
    value = 1000 + 100 * ((t / 300) % 1.0) + 0.05 * t + rng.normal(size=t.size)

    found = estimate(Samples(t, value), Options(floor=10.0))

    assert found.leak
    assert "troughs" in found.model
    assert found.lower < 0.05 * 3600 < found.upper


@pytest.mark.parametrize("cycles", [1.9, 2.6, 3.4])
def test_small_teeth_on_a_few_large_ones_are_no_leak(cycles: float) -> None:
    t = np.arange(1.0, 14_400.0, 4.0)
    young = 24.0 * cycles * t / t[-1]
    old = 30.0 * np.floor(young % 24.0) / 24.0
    value = 1000 + 40 * tooth(young) + old + np.random.default_rng(1).normal(size=t.size)

    healthy = estimate(Samples(t, value), Options(floor=5.0))
    leaking = estimate(Samples(t, value + 0.03 * t), Options(floor=5.0))

    assert not healthy.leak
    assert leaking.leak


def test_a_constant_grows_by_nothing() -> None:
    t = np.arange(100.0)

    found = estimate(Samples(t, np.full(100, 7.0)))

    assert (found.lower, found.growth, found.upper) == (0.0, 0.0, 0.0)
    assert not found.leak


def test_too_few_samples_are_refused() -> None:
    t = np.arange(MIN_SAMPLES - 1.0)

    with pytest.raises(ValueError, match="too few"):
        estimate(Samples(t, t))


def test_growth_far_beyond_two_early_falls_is_not_taken_for_a_sawtooth() -> None:
    t = np.arange(1.0, 7200.0)
    rng = np.random.default_rng(4)

    def with_falls(rate: float) -> Estimate:
        """A helper that dies twice in the first third and refills with a time constant of 170 s."""
        missing = sum(np.exp(-np.maximum(t - at, 0) / 170) * (t > at) for at in (900, 2100))
        value = 1000 + rate * t - 90 * missing + rng.normal(size=t.size)
        return estimate(Samples(t, value), Options(floor=10.0))

    assert with_falls(0.05).leak
    assert not with_falls(0.0).leak


@pytest.mark.parametrize("seed", range(4))
def test_blocks_decide_if_they_are_more_precise_than_uneven_troughs(seed: int) -> None:
    t = np.arange(1.0, 14_400.0, 4.0)
    rng = np.random.default_rng(seed)
    lives = 2500.0 * rng.uniform(0.8, 1.2, 4)
    ages = np.mod(t[:, None] + lives * rng.uniform(size=4), lives)
    helpers = 40 * (1 - np.exp(-ages / 120.0)).sum(axis=1) + rng.normal(size=t.size)

    found = estimate(Samples(t, 1000 + helpers), Options(floor=5.0))

    # The troughs of such teeth differ by up to 40, and which one is lowest is chance.
    assert not found.leak
    assert found.lower < 0.0 < found.upper
    assert found.upper - found.lower < 60.0


def test_a_leak_that_gets_faster_with_the_work_is_told_by_the_work() -> None:
    t = np.arange(1.0, 14_400.0, 5.0)
    rng = np.random.default_rng(8)
    busy = np.where((t / 2400.0) % 1.0 < 0.5, 1.0, 0.1)
    work = np.cumsum(busy)
    done = work / work[-1]
    value = 1000 + 200 * (0.3 * done + 0.7 * done**2) + rng.normal(size=t.size)

    found = estimate(Samples(t, value, [work]), Options(floor=10.0))

    # The rate over the last quarter of the work.
    truth = 200 * (0.3 * 0.25 + 0.7 * (1 - 0.75**2)) / 0.25
    assert found.leak
    assert "work" in found.model
    assert found.lower < truth < found.upper
