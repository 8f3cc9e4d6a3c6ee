"""Gates of a run for CI: the same in every nightly run, and never better than the run's verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hybridbench.analysis.findings.checkpoints import ShareInUseAtIdle
from hybridbench.analysis.findings.requests import NotIdle
from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.errors import ExitCode
from hybridbench.records.finding import Basis, Finding, VerdictKind
from hybridbench.records.verdict import DecayResult, Verdict
from hybridbench.report.document import Gate, GateState, tally
from hybridbench.report.gates import gates_of, questions_asked
from tests.unit.made_findings import typed_finding
from tests.unit.report import synthetic

RECORD = synthetic.record_of(300.0)


def gates(verdict: Verdict, code: ExitCode | None = None) -> dict[str, Gate]:
    found = gates_of(verdict, verdict.exit_code if code is None else code)
    assert len({(gate.group, gate.name) for gate in found}) == len(found)
    return {gate.name: gate for gate in found}


def test_a_leak_fails_its_metric_and_its_finding_with_slope_and_interval() -> None:
    found = gates(synthetic.leak_verdict(RECORD))

    assert found["verdict"].state is GateState.FAILED
    memory = found["rss_anon_swap_bytes"]
    assert memory.state is GateState.FAILED
    assert "+1.61 GiB/h (95% interval +1.55 to +1.67 GiB/h)" in str(memory.text)
    cycle = found["instances-wait-for-collector"]
    assert cycle.state is GateState.FAILED
    assert "+0.930 nodes per evicted node" in str(cycle.text)
    assert "a forked collection frees 662 of 662" in cycle.detail
    assert found["residual"].state is GateState.PASSED
    assert found["nodes_evicted"].state is GateState.PASSED


@pytest.mark.parametrize(
    ("kind", "other", "others", "do"),
    [
        (
            "instances-retained",
            "instances-wait-for-collector",
            "collectible_most",
            "are left to the collector",
        ),
        (
            "instances-wait-for-collector",
            "instances-retained",
            "retained_most",
            "survive a full gc.collect()",
        ),
    ],
)
def test_no_row_passes_that_the_minority_of_the_instances_contradicts(
    kind: str, other: str, others: str, do: str
) -> None:
    verdict = synthetic.leak_verdict(RECORD)
    both = {"retained_most": 10_400.0, "collectible_most": 10_400.0}
    mixed = typed_finding(kind, {**both, others: 200.0}, subject="TreeNode")

    found = gates(replace(verdict, findings=(mixed, *verdict.findings[1:])))

    assert found[kind].state is GateState.FAILED
    assert found[other].state is GateState.FAILED
    assert str(found[other].text) == f"up to 200 TreeNode objects {do} (see {kind})"
    alone = typed_finding(kind, {**both, others: 0.0}, subject="TreeNode")
    pure = gates(replace(verdict, findings=(alone, *verdict.findings[1:])))
    assert pure[other].state is GateState.PASSED


def test_a_clean_run_passes_every_gate_and_asks_the_same_questions_as_a_leaking_one() -> None:
    clean, leak = gates(synthetic.clean_verdict(RECORD)), gates(synthetic.leak_verdict(RECORD))

    assert {gate.state for gate in clean.values()} == {GateState.PASSED}
    assert set(clean) == set(leak)
    assert set(questions_asked()) < set(clean)


def test_what_is_not_decided_is_skipped_and_says_how_long_it_needs() -> None:
    found = gates(synthetic.open_verdict(RECORD))

    assert found["verdict"].state is GateState.SKIPPED
    memory = found["rss_anon_swap_bytes"]
    assert memory.state is GateState.SKIPPED
    assert "too-short" in str(memory.text)
    assert str(memory.text).endswith("; a judged window of about 44m would decide")


@pytest.mark.parametrize(
    "basis",
    [
        NotIdle(requests=2.0, waited_s=30.0),
        ShareInUseAtIdle(pool="kv_cache", in_use=4e4, at_checkpoints=(2e4, 4e4)),
    ],
)
def test_no_row_passes_that_an_undecided_finding_contradicts(basis: Basis) -> None:
    finding = Finding(basis, VerdictKind.INCONCLUSIVE, "engine")
    verdict = synthetic.clean_verdict(RECORD)

    found = gates(replace(verdict, kind=VerdictKind.INCONCLUSIVE, findings=(finding,)))

    assert found[basis.kind].state is GateState.SKIPPED
    assert str(found[basis.kind].text) == finding.title


@pytest.mark.parametrize("make", [synthetic.invalid_verdict, synthetic.crash_verdict])
def test_an_invalid_or_crashed_run_passes_nothing_but_what_it_covered(
    make: Callable[[RunRecord], Verdict],
) -> None:
    found = gates(make(RECORD))

    assert found["verdict"].state is GateState.ERROR
    passed = {gate.group for gate in found.values() if gate.state is GateState.PASSED}
    assert passed == {"coverage"}


def test_a_path_that_was_not_covered_is_an_error() -> None:
    found = gates(synthetic.invalid_verdict(RECORD))

    assert found["retracts"].state is GateState.ERROR
    assert str(found["retracts"].text) == "retracts seen 0, required 5"


def test_a_run_that_was_stopped_is_no_pass_but_a_leak_stays_one() -> None:
    clean = gates(synthetic.clean_verdict(RECORD), ExitCode.INTERRUPTED)
    leak = gates(synthetic.leak_verdict(RECORD), ExitCode.INTERRUPTED)

    assert clean["verdict"].state is GateState.ERROR
    assert "stopped by a signal" in str(clean["verdict"].text)
    assert leak["verdict"].state is GateState.FAILED


def test_what_work_costs_is_a_gate_that_may_stay_open() -> None:
    worse = DecayResult("match_ms", "time of a match", "ms", 2.0, "worse", 0.5, 0.8, 0.6, 1.0)
    short = DecayResult("evict_ms", "time of an eviction", "ms", 1.0, "not judged", 0.5)
    shown = replace(short, name="other", outcome="shown")

    found = gates(replace(synthetic.clean_verdict(RECORD), decay=(worse, short, shown)))

    assert found["match_ms"].state is GateState.FAILED
    assert "+80% (95% interval +60% to +100%)" in str(found["match_ms"].text)
    assert found["evict_ms"].state is GateState.SKIPPED
    assert found["evict_ms"].minor
    assert "other" not in found


def test_the_word_of_the_verdict_is_not_said_twice() -> None:
    verdict = replace(synthetic.open_verdict(RECORD), headline="too short")

    assert gates(verdict)["verdict"].text == "INCONCLUSIVE: too short"
    assert verdict.kind is VerdictKind.INCONCLUSIVE


def test_gates_are_counted_worst_first() -> None:
    found = gates_of(synthetic.leak_verdict(RECORD), ExitCode.LEAK)

    states = [gate.state for gate in found]
    failed, passed = states.count(GateState.FAILED), states.count(GateState.PASSED)
    assert tally(found) == f"{len(found)} gates: {failed} failed, {passed} passed"
