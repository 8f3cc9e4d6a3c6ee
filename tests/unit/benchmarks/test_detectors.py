"""The comparison of detectors counts what it claims to count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.corpus import LabelledTrace, clean_trace, leaking_trace
from benchmarks.detectors import (
    ANALYSIS,
    CORPORA,
    Seen,
    analysis_answer,
    compare_detectors,
    judge_corpus,
    rows,
)
from benchmarks.rival_detectors import (
    CLEAN,
    INCONCLUSIVE,
    LEAK,
    RIVALS,
    Thresholds,
    least_squares,
)

LIMITS = Thresholds(floor=1.0, margin=10.0)


def line(rate: float, noise: float = 0.5, extra: float = 0.0) -> LabelledTrace:
    """Four hours at 1 GB, growing by ``rate`` MB/h, with a late step of ``extra`` MB."""
    t = np.arange(0.0, 4 * 3600.0, 10.0)
    value = 1000.0 + rate * t / 3600 + noise * np.random.default_rng(1).normal(size=t.size)
    value = value + extra * (t > 0.8 * t[-1])
    return LabelledTrace("line", 1000.0, t, value, rate, rate, resolvable=True)


@pytest.mark.parametrize("name", [name for name in RIVALS if not name.startswith("endpoints")])
def test_every_rival_sees_a_plain_leak_and_no_leak_in_noise(name: str) -> None:
    assert RIVALS[name](line(50.0), LIMITS).word == LEAK
    assert RIVALS[name](line(0.0, noise=0.01), LIMITS).word == CLEAN


def test_the_endpoint_rule_misses_what_is_under_a_tenth() -> None:
    rule = RIVALS["endpoints > 10% and > 20 MB"]

    assert rule(line(15.0), LIMITS).word == CLEAN
    assert rule(line(60.0), LIMITS).word == LEAK


@pytest.mark.parametrize("name", ["least squares, t-test", "Theil-Sen"])
def test_intervals_of_lines_hold_the_slope_of_a_line(name: str) -> None:
    answer = RIVALS[name](line(50.0), LIMITS)

    assert answer.lower is not None
    assert answer.upper is not None
    assert answer.lower < 50.0 < answer.upper
    assert answer.upper - answer.lower < 1.0


def test_one_late_step_is_no_leak_to_the_analysis_and_one_to_a_line() -> None:
    trace = line(0.0, extra=60.0)

    assert analysis_answer(trace, LIMITS).word != LEAK
    assert least_squares(trace, LIMITS).word == LEAK


def test_a_plain_leak_is_one_to_the_analysis_too() -> None:
    assert analysis_answer(line(50.0), LIMITS).word == LEAK


def test_rows_count_each_answer_where_it_belongs() -> None:
    false = Seen("d", "k", leaking=False, resolvable=False, word=LEAK, covered=False, cpu_s=0.001)
    leak = replace(false, leaking=True, resolvable=True, covered=True)
    answers = [
        false,
        replace(false, word=INCONCLUSIVE, covered=True),
        replace(false, word=CLEAN, covered=None),
        leak,
        replace(leak, word=CLEAN),
        replace(leak, resolvable=False, word=CLEAN),
    ]

    (row,) = rows(answers)

    assert (row.clean, row.false_alarms, row.clean_inconclusive) == (3, 1, 1)
    assert (row.resolvable, row.found, row.called_clean) == (2, 1, 1)
    assert row.coverage == pytest.approx(4 / 5)
    assert row.ms == pytest.approx(1.0)


@pytest.mark.slow
def test_the_analysis_keeps_its_promises_on_fresh_seeds() -> None:
    table = {row.detector: row for row in compare_detectors(traces=8, seed=4_000)}
    own = table[ANALYSIS]

    assert own.false_alarms <= own.clean / 100
    assert own.found > 0.75 * own.resolvable
    assert own.coverage is not None
    assert own.coverage > 0.9
    # The reference may have none on so few traces, as the analysis has.
    assert all(own.false_alarms <= row.false_alarms for row in table.values())


def test_a_trace_of_each_sort_has_its_answer() -> None:
    for trace in (clean_trace("load known", 1), leaking_trace("per request, bursts", 1)):
        assert analysis_answer(trace, LIMITS).word in (LEAK, CLEAN, INCONCLUSIVE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["processes", "processes-held-out"])
def test_the_analysis_keeps_its_promises_on_simulated_processes(name: str) -> None:
    own = rows(
        [seen for seen in judge_corpus(4, 9_000, corpus_name=name) if seen.detector == ANALYSIS]
    )[0]

    assert own.false_alarms <= own.clean / 100
    assert own.found > 0.7 * own.resolvable
    assert own.coverage is not None
    assert own.coverage > 0.85


def test_every_corpus_makes_its_kinds() -> None:
    for corpus in CORPORA.values():
        assert corpus.clean(corpus.clean_kinds[0], 1).kind == corpus.clean_kinds[0]
        assert corpus.leaking(corpus.leak_kinds[0], 1).kind == corpus.leak_kinds[0]
