"""Gates of a comparison for CI: one per question, stable names, numbers with intervals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridbench.analysis.comparison.records import Change, Comparison
from hybridbench.analysis.findings.incomplete import bench_failed
from hybridbench.foundation.errors import ExitCode
from hybridbench.records.finding import VerdictKind
from hybridbench.records.verdict import Verdict
from hybridbench.report.comparison_gates import comparison_gates, comparison_measures
from hybridbench.report.document import GateState
from tests.unit.analysis.comparisons import verdict
from tests.unit.report.comparisons import comparison, judged


def _states(made: Comparison, code: ExitCode | None = None) -> dict[str, GateState]:
    found = judged(made)
    gates = comparison_gates(made, found, code or found.exit_code)
    return {gate.name: gate.state for gate in gates}


def test_a_comparison_without_a_difference_passes_every_gate() -> None:
    states = _states(comparison())

    assert set(states.values()) == {GateState.PASSED}
    assert {"answer", "throughput_tokens_per_s", "hit_rate", "leaks", "worker"} <= set(states)
    assert "itl_ms_p99" not in states


def test_a_slower_version_fails_the_answer_and_its_metric_alone() -> None:
    states = _states(comparison(0.8))

    failed = {name for name, state in states.items() if state is GateState.FAILED}
    assert failed == {"answer", "throughput_tokens_per_s"}


def test_an_introduced_leak_fails_the_leak_gate_with_its_rate() -> None:
    made = comparison(leaks=True)

    gate = next(g for g in comparison_gates(made, judged(made), ExitCode.REGRESSION)
                if g.name == "leaks")  # fmt: skip

    assert gate.state is GateState.FAILED
    assert "INTRODUCED" in str(gate.text)
    assert "+3.70 GiB/h" in str(gate.text)


def test_an_undecided_leak_is_skipped_and_listed_on_a_line() -> None:
    made = comparison(leaks=True)
    found = judged(made)
    (side,) = found.sides
    rows = tuple(replace(row, change=Change.UNDECIDED) for row in side.leaks)
    found = replace(found, sides=(replace(side, leaks=rows),))

    gates = comparison_gates(made, found, ExitCode.INCONCLUSIVE)
    gate = next(gate for gate in gates if gate.name == "leaks")

    assert gate.state is GateState.SKIPPED
    assert gate.detail.startswith(f"UNDECIDED: {rows[0].title}")
    assert len(gate.detail.splitlines()) == len(rows)


def test_growth_of_two_metrics_below_the_limit_is_in_the_plural() -> None:
    made = comparison(leaks=True)
    found = judged(made)
    (side,) = found.sides
    row = replace(side.leaks[0], change=Change.GROWS_FASTER, subject="rss_anon_swap_bytes")
    for rows, said in (((row,), " grows faster"), ((row, row), " grow faster")):
        several = replace(found, sides=(replace(side, leaks=rows),))
        gates = comparison_gates(made, several, ExitCode.CLEAN)
        assert said in str(next(gate for gate in gates if gate.name == "leaks").text)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (verdict(VerdictKind.INVALID), "not judged: b is INVALID"),
        (
            verdict(VerdictKind.INCONCLUSIVE, [bench_failed("the soak", "OSError: no", "errors")]),
            "not judged: b is INCONCLUSIVE",
        ),
    ],
    ids=["invalid", "the bench failed"],
)
def test_what_a_run_that_proves_nothing_did_not_find_is_no_pass(own: Verdict, said: str) -> None:
    made = comparison()
    void = replace(made.versions[1], verdict=own, name="b")
    made = replace(made, versions=(made.versions[0], void))

    gates = comparison_gates(made, judged(made), ExitCode.INCONCLUSIVE)
    gate = next(gate for gate in gates if gate.name == "leaks")

    assert (gate.state, gate.text) == (GateState.SKIPPED, said)


def test_a_crash_is_an_error_of_its_own_gate() -> None:
    made = comparison()
    dead = replace(made.versions[1], verdict=verdict(VerdictKind.CRASHED))

    states = _states(replace(made, versions=(made.versions[0], dead)))

    assert states["worker"] is GateState.ERROR
    assert states["answer"] is GateState.FAILED


def test_an_interrupted_comparison_does_not_pass() -> None:
    states = _states(comparison(), ExitCode.INTERRUPTED)

    assert states["answer"] is GateState.ERROR


def test_gates_are_called_the_same_whatever_was_measured() -> None:
    first, second = comparison(), comparison(0.8, leaks=True)

    names = [
        [(g.group, g.name) for g in comparison_gates(made, judged(made), ExitCode.CLEAN)]
        for made in (first, second)
    ]

    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0])


def test_measures_are_ratios_that_know_which_way_is_better() -> None:
    made = comparison(0.8)

    measures = {m.name.rpartition(": ")[2]: m for m in comparison_measures(made, judged(made))}

    assert not measures["throughput"].smaller_is_better
    assert measures["peak memory"].smaller_is_better
    assert measures["throughput"].quantity.upper is not None
    assert measures["throughput"].quantity.upper < 0.85
