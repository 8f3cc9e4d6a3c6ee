"""Whole soaks: what a failed start leaves behind; once sampled, a run always has a verdict."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from hybridbench.analysis import judge
from hybridbench.cli.options import ReportFormat
from hybridbench.cli.render import OutputOptions, render
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.errors import (
    ConfigError,
    ExitCode,
    HybridbenchError,
    RunDirectoryError,
    WorkerFailedError,
)
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import Options
from hybridbench.records.stored_verdict import read_verdict
from hybridbench.records.verdict import Verdict
from hybridbench.report import formats, judged, write
from hybridbench.rundir.layout import ANALYSIS_ERRORS, BENCH_ERRORS, REPORT_MARKDOWN, VERDICT
from hybridbench.runs import bundled, crash, soak
from hybridbench.runs.interrupts import SecondSignalError
from hybridbench.runs.log_watch import LogWatch
from hybridbench.runs.loop import WorkerLostError
from hybridbench.sampling.sampler import Sampler
from hybridbench.targets.target import ExitStatus
from tests.unit.runs.fakes import FakeTarget
from tests.unit.runs.soaks import make_plan
from tests.unit.runs.test_manifest import READY

LENGTH_S = 40.0


@pytest.mark.parametrize(
    "error", [RunDirectoryError("cannot write: no space"), ConfigError("there is no preset")]
)
def test_a_soak_without_a_sample_leaves_no_run_directory(
    error: HybridbenchError, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = FakeClock()

    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(bundled, "BundledTarget", lambda _: FakeTarget(clock))
    monkeypatch.setattr(bundled, "boot_worker", refused)

    with pytest.raises(type(error)):
        soak.run_soak(replace(make_plan(), store=tmp_path), clock)

    assert list(tmp_path.iterdir()) == []


class Unkillable(FakeTarget):
    """Ignores Shutdown and SIGKILL."""

    def stop(self, patience_s: float) -> ExitStatus | None:
        del patience_s
        return None

    def kill(self) -> bool:
        super().kill()
        return False


def broken(*_: object, **__: object) -> NoReturn:
    raise ZeroDivisionError("on purpose")


Serve = Callable[..., tuple[Path, int]]


def fake_soak(store: Path, patch: pytest.MonkeyPatch, target: FakeTarget | None = None) -> Path:
    """Run a soak of a fake worker; return its run directory."""
    clock = FakeClock()
    if target is None:
        target = FakeTarget(clock)
    target.clock = clock
    target.steady_at_s = 10.0
    ready = msgspec.structs.replace(READY, pid=os.getpid())
    patch.setattr(bundled, "BundledTarget", lambda _: target)
    patch.setattr(bundled, "boot_worker", lambda *_: ready)
    quiet = Options(stop="never", extend_s=0.0, diagnose="never")
    # Few requests, because none of these tests looks at them.
    seldom = {"arrival": "{process: poisson, rate: 4/s, max_in_flight: 12}"}
    plan = make_plan(LENGTH_S, {"assert_coverage": "{}", **seldom}, quiet)
    return soak.run_soak(replace(plan, store=store), clock).run_dir


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serve:
    """Return a function that soaks and judges a fake worker: its run directory and exit code."""

    def run(target: FakeTarget | None = None) -> tuple[Path, int]:
        run_dir = fake_soak(tmp_path / "store", monkeypatch, target)
        # Charts take longer than everything else, and these tests do not need them.
        monkeypatch.setattr(write, "render_html", lambda _: "")
        return run_dir, render(run_dir)

    return run


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that several tests judge."""
    with pytest.MonkeyPatch.context() as patch:
        return fake_soak(tmp_path_factory.mktemp("store"), patch)


def verdict_of(run_dir: Path) -> Verdict:
    return read_verdict(run_dir / VERDICT)


def test_a_fake_soak_ends_as_a_real_one_does(serve: Serve) -> None:
    run_dir, code = serve()

    verdict = verdict_of(run_dir)
    assert not {f.kind for f in verdict.findings} & {"bench-failed", "analysis-failed", "crash"}
    assert code == verdict.exit_code
    assert not (run_dir / BENCH_ERRORS).exists()


def test_a_worker_that_outlives_a_kill_is_a_note(serve: Serve) -> None:
    run_dir, code = serve(Unkillable(FakeClock()))

    verdict = verdict_of(run_dir)
    assert code == verdict.exit_code
    assert "was sent SIGKILL and has not ended" in (run_dir / REPORT_MARKDOWN).read_text()


def test_a_hung_worker_that_outlives_a_kill_is_crashed_with_a_note(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Unkillable(FakeClock())
    finish, samples = Sampler.finish, 0

    def fall_silent(self: Sampler, values: dict[str, float]) -> dict[str, float]:
        nonlocal samples
        samples += 1
        target.silent = samples > 5
        return finish(self, values)

    monkeypatch.setattr(Sampler, "finish", fall_silent)

    run_dir, code = serve(target)

    verdict = verdict_of(run_dir)
    assert (code, verdict.kind) == (ExitCode.CRASHED, VerdictKind.CRASHED)
    assert "was sent SIGKILL and has not ended" in (run_dir / REPORT_MARKDOWN).read_text()


def _after_a_sample(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the loop raise ``error`` with its sixth sample."""
    finish, samples = Sampler.finish, 0

    def fail(self: Sampler, values: dict[str, float]) -> dict[str, float]:
        nonlocal samples
        samples += 1
        if samples > 5:
            raise error
        return finish(self, values)

    monkeypatch.setattr(Sampler, "finish", fail)


@pytest.mark.parametrize("error", [MemoryError(), OSError(24, "Too many open files")])
def test_a_bench_that_fails_under_traffic_has_a_verdict_and_its_traceback(
    error: Exception, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    _after_a_sample(error, monkeypatch)
    target = FakeTarget(FakeClock())

    run_dir, code = serve(target)

    verdict = verdict_of(run_dir)
    assert code == verdict.exit_code
    assert [f.subject for f in verdict.findings if f.kind == "bench-failed"] == ["the soak"]
    assert type(error).__name__ in (run_dir / BENCH_ERRORS).read_text()
    assert target.killed


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (WorkerFailedError("the worker sent nonsense."), VerdictKind.CRASHED),
        (RunDirectoryError("cannot write: no space"), VerdictKind.INVALID),
    ],
)
def test_what_ends_a_soak_under_traffic_is_its_outcome(
    error: Exception, kind: VerdictKind, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    _after_a_sample(error, monkeypatch)

    run_dir, _ = serve()

    assert verdict_of(run_dir).kind is kind
    assert not (run_dir / BENCH_ERRORS).exists()


def test_without_a_sample_a_bug_stays_a_traceback(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundled, "build_workload", broken)

    with pytest.raises(ZeroDivisionError):
        serve()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (FakeTarget, "stop"),
        (LogWatch, "finish"),
        (soak._Soak, "_end"),
        (crash, "oom_kills"),
    ],
)
def test_an_end_that_fails_costs_no_verdict(
    owner: object, name: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    if name == "oom_kills":
        _after_a_sample(WorkerLostError("exit", "it is gone"), monkeypatch)
    target = FakeTarget(FakeClock())
    target.status = ExitStatus(None, signal.SIGKILL)

    run_dir, code = serve(target)

    verdict = verdict_of(run_dir)
    assert "bench-failed" in {f.kind for f in verdict.findings}
    assert code == verdict.exit_code != ExitCode.CLEAN
    assert "ZeroDivisionError" in (run_dir / BENCH_ERRORS).read_text()


def test_a_second_signal_at_the_very_end_still_ends_with_a_report(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise SecondSignalError

    monkeypatch.setattr(FakeTarget, "stop", interrupted)

    run_dir, code = serve()

    assert code == ExitCode.INTERRUPTED
    assert (run_dir / VERDICT).is_file()


def test_a_third_signal_while_the_second_is_written_down_changes_nothing(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise SecondSignalError

    monkeypatch.setattr(FakeTarget, "stop", interrupted)
    monkeypatch.setattr(soak, "Interrupted", interrupted)

    run_dir, _ = serve()

    assert (run_dir / VERDICT).is_file()


@pytest.mark.parametrize(
    ("owner", "name", "part"),
    [
        (judged, "judge", "the analysis of the run"),
        (judge, "in_words", "the sentences of the verdict"),
        (judged, "build_document", "the layout of the report"),
        (write, "render_html", "report.html"),
        (write, "render_markdown", "report.md"),
        (write, "render_junit", "junit.xml"),
    ],
)
def test_a_report_that_fails_leaves_a_verdict_that_is_not_clean(
    owner: object, name: str, part: str, ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "render_html":
        monkeypatch.setattr(write, "render_html", lambda _: "a page")
    monkeypatch.setattr(owner, name, broken)

    code = render(ended)

    verdict = verdict_of(ended)
    assert part in {f.subject for f in verdict.findings if f.kind.endswith("-failed")}
    assert code == verdict.exit_code != ExitCode.CLEAN
    assert "ZeroDivisionError" in (ended / ANALYSIS_ERRORS).read_text()
    assert (ended / "report.html").is_file() is not (name == "render_html")


@pytest.mark.parametrize("name", [ReportFormat.CONSOLE, ReportFormat.JSON, ReportFormat.JUNIT])
def test_a_format_that_fails_leaves_the_exit_code_of_the_verdict(
    name: ReportFormat,
    ended: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(write, "render_html", lambda _: "")
    monkeypatch.setattr(formats, "FORMATS", {name.value: broken})
    monkeypatch.setattr("hybridbench.report.judged.FORMATS", {name.value: broken})
    monkeypatch.setattr("hybridbench.cli.render.print_console", broken)

    code = render(ended, OutputOptions(name))

    verdict = verdict_of(ended)
    assert f"the format {name.value}" in {f.subject for f in verdict.findings}
    assert code == verdict.exit_code != ExitCode.CLEAN
    assert f"the report cannot be shown as {name.value}; {verdict.kind}" in capsys.readouterr().err
