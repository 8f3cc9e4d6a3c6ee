"""The engine's own reports, and its crashes."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.containers import ContainerGrows
from hybridbench.analysis.findings.engine_reports import violation_findings
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord
from hybridbench.records.events import TARGET_ENDED, Crash, EngineViolation, StoppedEarly
from hybridbench.records.finding import Finding, Rate, VerdictKind
from hybridbench.records.manifest import OBSERVED, Manifest, Model, TargetFacts
from hybridbench.report.advice import next_step
from tests.unit.analysis.records import (
    Run,
    checkpoint,
    healthy_record,
    with_checkpoints,
    with_events,
)

RUN = Run(duration_s=240.0, steady_s=60.0)


def said(
    kind: str,
    t_s: float = 100.0,
    slots: tuple[int, ...] = (),
    count: float = 0,
    pool: str = "mamba",
) -> EngineViolation:
    return EngineViolation(kind, pool, "as the engine puts it", slots, count, t_s=t_s)


def without_rest() -> RunRecord:
    return with_checkpoints(healthy_record(RUN), [])


@pytest.mark.parametrize("kind", ["alias", "negative", "sanity", "ledger", "new-one"])
def test_a_contradiction_is_an_invariant(kind: str) -> None:
    verdict = judge(with_events(healthy_record(RUN), said(kind)))

    assert verdict.kind is VerdictKind.INVARIANT
    assert verdict.findings[0].kind == f"engine-{kind}"


@pytest.mark.parametrize("kind", ["residual", "locked_at_idle", "in_flight_at_idle"])
def test_what_is_held_that_should_not_be_is_a_leak(kind: str) -> None:
    verdict = judge(with_events(without_rest(), said(kind, slots=(3, 9))))

    assert verdict.kind is VerdictKind.LEAK


def test_a_residual_below_zero_was_counted_twice() -> None:
    verdict = judge(with_events(without_rest(), said("residual", count=-2)))

    assert verdict.kind is VerdictKind.INVARIANT


def test_a_report_that_the_next_rest_contradicts_is_a_false_alarm() -> None:
    verdict = judge(with_events(healthy_record(RUN), said("residual", slots=(1,))))

    assert verdict.kind is VerdictKind.INVARIANT
    assert verdict.findings[0].kind == "false-alarm"


def test_a_report_made_at_a_rest_that_misses_nothing_is_a_false_alarm() -> None:
    """No later checkpoint can contradict a report made at the last one, but its own counts can."""
    rest = checkpoint(200.0, mamba={"residual": 0.0})
    record = with_checkpoints(healthy_record(RUN), [rest])

    verdict = judge(with_events(record, said("residual", t_s=200.0, count=3, slots=())))

    assert verdict.kind is VerdictKind.INVARIANT
    assert verdict.findings[0].kind == "false-alarm"


def test_requests_without_an_answer_are_told_per_event_that_adds_them() -> None:
    record = with_events(healthy_record(RUN), said("unanswered", pool=""))
    rate = Rate(1.0, 1.0, 1.0, "entries", "rejected request")
    grows = ContainerGrows(
        container="front_end", first=0.0, last=30.0, checkpoints=4, at_checkpoints=(10.0, 30.0)
    )
    known = Finding(grows, VerdictKind.LEAK, "container: front_end", "requests_rejected", (rate,))

    (finding,) = violation_findings(Facts.of(record), [known])

    assert (finding.driver, finding.rates, finding.exact) == ("requests_rejected", (rate,), True)
    assert finding.title.endswith(", 1.00 per rejected request")


@pytest.mark.parametrize(("kind", "told"), [("unanswered", "then 4"), ("answer", "first 1")])
def test_reports_that_count_everything_so_far_are_told_by_the_last(kind: str, told: str) -> None:
    reports = [
        msgspec.structs.replace(said(kind, t_s=t_s, pool=""), message=message)
        for t_s, message in ((100.0, "first 1"), (150.0, "then 4"))
    ]

    (finding,) = violation_findings(Facts.of(with_events(healthy_record(RUN), *reports)), [])

    assert (finding.title, finding.since_s) == (told, 100.0)


def test_what_the_arithmetic_already_says_is_not_said_twice() -> None:
    rest = checkpoint(200.0, mamba={"residual": 2.0})
    record = with_checkpoints(healthy_record(RUN), [rest])

    verdict = judge(with_events(record, said("residual", slots=(1, 2))))

    assert [f.kind for f in verdict.findings if f.verdict is VerdictKind.LEAK] == ["residual"]


@pytest.mark.parametrize("reason", ["signal", "hang", "oom", "exit"])
def test_a_death_is_a_crash_with_its_last_words(reason: str) -> None:
    event = Crash(reason=reason, detail="x", stderr_tail=("a", "b"), t_s=150.0)

    verdict = judge(with_events(healthy_record(RUN), event))

    assert verdict.kind is VerdictKind.CRASHED
    assert verdict.findings[0].data["reason"] == reason
    assert verdict.findings[0].data["stderr"] == ["a", "b"]


def test_the_error_that_ends_a_traceback_is_among_the_first_lines_of_evidence() -> None:
    said = ("Traceback", "File a", "File b", "File c", "ValueError: x", "[3 lines are left out]")
    event = Crash(reason="exit", detail="x", stderr_tail=said, t_s=150.0)

    verdict = judge(with_events(healthy_record(RUN), event))

    assert "stderr: ValueError: x" in verdict.findings[0].evidence[:3]


def test_the_first_error_is_named_with_its_place_and_not_what_followed_from_it() -> None:
    left_out = "[its message is left out]"
    said = (
        '  File "/env/site-packages/sglang/srt/scheduler.py", line 9, in run_batch',
        '  File "/env/site-packages/torch/module.py", line 1789, in _call_impl',
        '  File "/env/site-packages/sglang/srt/logprob.py", line 40, in get_top_logprobs',
        '  File "/env/site-packages/torch/functional.py", line 5, in topk',
        f"RuntimeError: {left_out}",
        '  File "/env/server.py", line 3, in <module>',
        f"vllm.v1.engine.exceptions.EngineDeadError: {left_out}",
    )
    event = Crash(reason="exit", detail="(exit code 1)", stderr_tail=said, t_s=150.0)

    verdict = judge(with_events(healthy_record(RUN), event))

    assert verdict.findings[0].title.endswith(
        "(exit code 1): RuntimeError in get_top_logprobs (logprob.py:40)"
    )


def test_a_crash_with_slots_missing_is_a_leak_and_keeps_both_findings() -> None:
    rest = checkpoint(140.0, mamba={"residual": 60.0})
    crash = Crash(reason="exit", detail="no slot", t_s=150.0)

    verdict = judge(with_checkpoints(with_events(healthy_record(RUN), crash), [rest]))

    assert verdict.kind is VerdictKind.LEAK
    assert {f.kind for f in verdict.findings} >= {"residual", "crash"}


def watched(record: RunRecord, *, name: str = "vllm") -> RunRecord:
    manifest: Manifest = msgspec.structs.replace(
        record.manifest, model=Model(name=name), target=TargetFacts(kind=OBSERVED)
    )
    return replace(record, manifest=manifest)


def test_a_watched_program_that_crashes_is_called_by_its_name() -> None:
    died = Crash("exit", "(exit code 2)", (), t_s=90.0)
    verdict = judge(with_events(watched(healthy_record(RUN)), died))

    (crash,) = (finding for finding in verdict.findings if finding.kind == "crash")
    assert crash.title == "vllm exited after 1m30s (exit code 2)"


def test_a_watched_program_that_ends_at_once_is_the_reason_given() -> None:
    ended = StoppedEarly(TARGET_ENDED, "the target ended by itself (exit code 0)", t_s=0.1)
    record = replace(watched(healthy_record(RUN)), series={}, events=[ended])
    verdict = judge(record)

    step = next_step(verdict, Manifest(command=("hybridbench", "watch", "--", "true")))

    assert "judged: the target ended by itself (exit code 0)" in verdict.headline
    assert str(step.text) == "Give a command that runs until it is stopped, such as a server."
