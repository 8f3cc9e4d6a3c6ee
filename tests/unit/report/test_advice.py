"""What to do next follows from the finding, and from its event if that is known."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from hybridbench.analysis.findings.incomplete import MachineGaveOut
from hybridbench.analysis.findings.requests import NotIdle
from hybridbench.records.finding import Basis, Finding, VerdictKind
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import Manifest
from hybridbench.records.threshold_result import ThresholdOutcome, ThresholdResult
from hybridbench.records.verdict import MetricResult, Verdict
from hybridbench.report.advice import next_step
from tests.unit.made_findings import a_finding, typed_finding

COMMAND = ("hybridbench", "soak", "--duration", "3m")


VALUES: dict[str, dict[str, JsonValue]] = {
    "residual": {"pool": "mamba"},
    "container-grows": {"container": "journal", "at_checkpoints": []},
    "locks-at-idle": {"pool": "mamba", "component": "mamba", "at_checkpoints": []},
}


def advice(kind: str, driver: str | None) -> str:
    finding = typed_finding(kind, VALUES[kind], driver=driver)
    verdict = Verdict(VerdictKind.LEAK, "LEAK", (finding,), (), None, "")
    fact = next_step(verdict, Manifest(command=COMMAND))
    assert fact.code == "hybridbench soak --duration 3m"
    return str(fact.text)


@pytest.mark.parametrize("kind", ["residual", "container-grows"])
def test_a_known_event_is_where_to_begin(kind: str) -> None:
    assert advice(kind, "session_closes").startswith("Start with the session close handler:")


@pytest.mark.parametrize(
    ("kind", "thing"), [("residual", "state slots"), ("container-grows", "journal")]
)
def test_without_one_every_way_is_to_be_looked_at(kind: str, thing: str) -> None:
    text = advice(kind, None)

    assert not text.startswith("Start")
    assert thing in text
    assert "mamba:" not in text


def test_a_crash_without_a_last_line_sends_nobody_to_read_one() -> None:
    def text(*stderr: str) -> str:
        finding = typed_finding("crash", {"reason": "exit", "stderr": list(stderr)})
        verdict = Verdict(VerdictKind.CRASHED, "CRASHED", (finding,), (), None, "")
        return str(next_step(verdict, Manifest(command=COMMAND)).text)

    assert "dmesg" in text()
    assert text("Segmentation fault").startswith("Read the last lines of the worker")


@pytest.mark.parametrize("suspects", [0, 2])
def test_requests_in_flight_at_a_crash_are_sent_again_by_a_run_with_restarts(suspects: int) -> None:
    detail = "(exit code 1), with 2 requests in flight: 2 with a prompt of 16 to 31 tokens"
    data: dict[str, JsonValue] = {"reason": "exit", "stderr": [], "detail": detail}
    finding = typed_finding("crash", {**data, "suspects": suspects})

    assert ("--restarts 3" in finding.basis.advice(finding)) is (suspects == 0)


def test_a_silent_crash_in_a_segment_of_a_resumed_run_is_silent_too() -> None:
    data: dict[str, JsonValue] = {"reason": "signal", "stderr": [], "segments": [1]}
    verdict = Verdict(VerdictKind.CRASHED, "", (typed_finding("crash", data),), (), None, "")

    assert verdict.findings[0].evidence == ("in segment 1",)
    assert "dmesg" in str(next_step(verdict, Manifest(command=COMMAND)).text)


def test_an_event_helps_nobody_where_the_place_is_known_better() -> None:
    assert advice("locks-at-idle", "node_splits") == advice("locks-at-idle", None)


THRESHOLD = "rss.slope<1MiB/h"
WINDOW = (81.0, 277.0)


def open_metric(needed_s: float | None, start_s: float = WINDOW[0]) -> MetricResult:
    return MetricResult(
        "rss", "INCONCLUSIVE", (start_s, WINDOW[1]), None, None, 1.0, None, "", needed_s=needed_s
    )


def open_threshold(needed_s: float | None) -> ThresholdResult:
    return ThresholdResult(
        THRESHOLD, "rss", "slope", ThresholdOutcome.UNDECIDED, 1.0, "MiB", needed_s=needed_s
    )


def longer(
    *open_: MetricResult | ThresholdResult,
    command: tuple[str, ...] = COMMAND,
    planned_s: float = 300.0,
    window_s: tuple[float, float] | None = WINDOW,
) -> str:
    verdict = Verdict(
        VerdictKind.INCONCLUSIVE,
        "INCONCLUSIVE",
        (),
        tuple(one for one in open_ if isinstance(one, MetricResult)),
        window_s,
        "",
        thresholds=tuple(one for one in open_ if isinstance(one, ThresholdResult)),
    )
    manifest = Manifest(
        command=command, planned_duration_s=planned_s, thresholds=(THRESHOLD,) * bool(open_)
    )
    return next_step(verdict, manifest).code


@pytest.mark.parametrize(
    ("open_", "length"),
    [
        # 81 s of warm-up, the deciding window, and 23 s after it.
        ((open_threshold(531.0),), "11m"),
        ((open_threshold(531.0), open_metric(900.0)), "17m"),
        ((open_metric(531.0, start_s=200.0),), "13m"),
        ((open_metric(196.0),), "10m"),
        ((open_metric(None),), "10m"),
    ],
)
def test_the_next_run_is_as_long_as_what_is_open_needs_or_twice_as_long(
    open_: tuple[MetricResult | ThresholdResult, ...], length: str
) -> None:
    assert longer(*open_).endswith(f" --duration {length}")


@pytest.mark.parametrize(
    ("doubt", "memory_s", "text", "length"),
    [
        (
            *("parts", 200.0),
            *("Run for 11m, warm-up included: that should decide what is still open.", "11m"),
        ),
        (
            *("parts", 2700.0),
            "Run for 11m, warm-up included: that should decide the first finding. All that is "
            "open may take 47m or more.",
            "11m",
        ),
        ("pace", 200.0, "Run longer.", "10m"),
    ],
)
def test_a_length_is_promised_for_each_finding_or_for_the_first(
    doubt: str, memory_s: float, text: str, length: str
) -> None:
    """A container needs 7 minutes between idle points, or nobody knows; memory less, or more."""
    held: dict[str, JsonValue] = {"role": "a", "name": "b", "last": 9, "early": 1, "late": 1}
    kept, memory = (
        replace(typed_finding(kind, data), verdict=VerdictKind.INCONCLUSIVE)
        for kind, data in (
            ("entries-kept", {**held, "doubt": doubt}),
            ("undecided", {"needed_s": memory_s}),
        )
    )
    verdict = Verdict(VerdictKind.INCONCLUSIVE, "", (kept, memory), (), WINDOW, "")

    fact = next_step(verdict, Manifest(command=COMMAND, planned_duration_s=300.0))

    assert fact.text == text
    assert fact.code.endswith(f" --duration {length}")


def test_what_may_be_garbage_needs_a_collection_and_no_longer_run() -> None:
    held: dict[str, JsonValue] = {"role": "a", "name": "m.Req", "last": 9, "early": 1, "late": 1}
    garbage = typed_finding("objects-kept", {**held, "doubt": "garbage", "rounds": 7})
    kept = replace(garbage, verdict=VerdictKind.INCONCLUSIVE)
    verdict = Verdict(VerdictKind.INCONCLUSIVE, "", (kept,), (), WINDOW, "")

    fact = next_step(verdict, Manifest(command=COMMAND, planned_duration_s=300.0))

    assert str(fact.text).startswith("Call gc.collect() in the process: if m.Req objects stay,")
    assert "--duration 10m" not in fact.code


def test_growth_of_open_files_is_found_as_files_that_stay_open() -> None:
    growth = replace(typed_finding("growth", {}), subject="open_fds", driver="requests_aborted")

    advice = growth.basis.advice(growth)

    assert advice.startswith("Find what is opened for each aborted request (ls -l /proc/PID/fd)")


@pytest.mark.parametrize(("needed_s", "length"), [(None, "2h"), (600.0, "2h"), (9000.0, "2h32m")])
def test_a_run_that_was_cut_off_is_to_reach_its_end(needed_s: float | None, length: str) -> None:
    assert longer(open_metric(needed_s), planned_s=7200.0).endswith(f" --duration {length}")


def test_a_run_that_was_extended_is_to_be_longer_than_it_became() -> None:
    code = longer(open_metric(None), window_s=(81.0, 900.0))

    assert code.endswith(" --duration 30m")


def test_the_next_run_keeps_every_setting_and_the_thresholds_of_run_and_report() -> None:
    settings = ("--set", "gc.mode=default", "--extend", "0", "--threshold", "rss.max<9GiB")
    command = ("hybridbench", "soak", "--duration=5m", *settings)

    code = longer(open_threshold(531.0), command=command)

    assert code == (
        "hybridbench soak --set gc.mode=default --extend 0 --threshold 'rss.max<9GiB' "
        "--threshold 'rss.slope<1MiB/h' --duration 11m"
    )
    assert longer(open_threshold(531.0), command=tuple(shlex.split(code))) == code


def test_the_run_of_one_version_of_a_comparison_has_no_longer_command_of_its_own() -> None:
    verdict = Verdict(VerdictKind.INCONCLUSIVE, "INCONCLUSIVE", (), (), WINDOW, "")
    manifest = Manifest(
        command=("hybridbench", "compare", ".", "git:HEAD~1"),
        planned_duration_s=300.0,
        version={"name": "."},
    )

    fact = next_step(verdict, manifest)

    assert (fact.text, fact.code) == ("Run longer.", "")


def test_a_threshold_of_the_report_that_is_missed_is_in_the_command_that_repeats_the_run() -> None:
    finding = a_finding("threshold", VerdictKind.DEGRADED, "rss", "missed")
    verdict = Verdict(VerdictKind.DEGRADED, "DEGRADED", (finding,), (), None, "")

    fact = next_step(verdict, Manifest(command=COMMAND, thresholds=(THRESHOLD,)))

    assert fact.code == "hybridbench soak --duration 3m --threshold 'rss.slope<1MiB/h'"


@pytest.mark.parametrize("kind", ["instances-retained", "instances-wait-for-collector"])
def test_each_part_of_the_instances_has_its_own_remedy(kind: str) -> None:
    """A third survives a collection, so "freed by reference count at once" would be false."""
    data: dict[str, JsonValue] = {
        "retained_share": 0.33,
        "retained_most": 1200.0,
        "collectible_most": 1990.0,
    }
    finding = typed_finding(kind, data, subject="TreeNode")
    verdict = Verdict(VerdictKind.LEAK, "LEAK", (finding,), (), None, "")

    text = str(next_step(verdict, Manifest(command=COMMAND)).text)

    assert "the 67% in cycles" in text
    assert "the 33% that survive gc.collect()" in text
    assert "reference count at once" not in text


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("analysis-failed", "hybridbench report results/20261126-a-run"),
        ("bench-failed", "hybridbench soak --duration 3m"),
        ("unreadable", ""),
    ],
)
def test_a_command_goes_with_the_advice_that_it_is_for(kind: str, code: str) -> None:
    finding = typed_finding(kind, {"samples": {}} if kind == "unreadable" else {})
    verdict = Verdict(VerdictKind.INCONCLUSIVE, "", (finding,), (), None, "")

    step = next_step(verdict, Manifest(run_id="20261126-a-run", command=COMMAND))

    assert step.code == code
    assert "--" not in str(step.text)


@pytest.mark.parametrize(
    ("basis", "said"),
    [
        (NotIdle(requests=2.0, waited_s=30.0), "Find what the engine was still waiting for"),
        (MachineGaveOut(message="only 300 MiB of memory left"), "Make room on the machine"),
    ],
)
def test_what_no_length_decides_is_not_to_be_run_for_longer(basis: Basis, said: str) -> None:
    finding = Finding(basis, VerdictKind.INCONCLUSIVE, "run")
    verdict = Verdict(VerdictKind.INCONCLUSIVE, "", (finding,), (), (60.0, 180.0), "")

    step = next_step(verdict, Manifest(command=COMMAND, planned_duration_s=180.0))

    assert str(step.text).startswith(said)
    assert step.code == "hybridbench soak --duration 3m"


@pytest.mark.parametrize(
    ("store", "path"),
    [
        ((), "results/20261126-a-run"),
        (("--store", "mine"), "mine/20261126-a-run"),
        (("--store=mine",), "mine/20261126-a-run"),
    ],
)
def test_an_interrupted_run_that_is_undecided_is_resumed(store: tuple[str, ...], path: str) -> None:
    verdict = Verdict(VerdictKind.INCONCLUSIVE, "INCONCLUSIVE", (), (), None, "")
    manifest = Manifest(command=(*COMMAND, *store), run_id="20261126-a-run", engine_hash="1")

    fact = next_step(verdict, manifest, interrupted=True)
    assert fact.code == f"hybridbench soak --resume {path}"
    assert str(fact.text).startswith("Resume the run:")
    assert "--resume" not in next_step(verdict, manifest).code


def test_a_run_cut_before_its_engine_was_built_is_repeated() -> None:
    verdict = Verdict(VerdictKind.INCONCLUSIVE, "INCONCLUSIVE", (), (), None, "")
    manifest = Manifest(command=COMMAND, run_id="20261126-a-run")

    assert "--resume" not in next_step(verdict, manifest, interrupted=True).code
