"""Run the rows, each in its own process, and compare the results with the expectations."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from hybridbench.analysis.comparison.compare import compare as compare_all
from hybridbench.analysis.judge import judge
from hybridbench.compare.store import read_comparison
from hybridbench.defects.defect import FoundBy
from hybridbench.defects.truth import OWNER_LEDGER
from hybridbench.foundation.errors import ExitCode, HybridbenchError
from hybridbench.records.verdict import MetricResult
from hybridbench.rundir.layout import VERDICT
from hybridbench.rundir.reader import read_run
from hybridbench.rundir.truth import StoredTruth, read_truth
from hybridbench.selftest.compare import Outcome, RowTruth, compare, compare_versions
from hybridbench.selftest.detect import time_to_detect_s
from hybridbench.selftest.matrix import Expect, Row
from hybridbench.targets.background_process import BackgroundProcess

# Boot, drains and checkpoints on a busy machine; a soak that takes longer than this hangs.
_PATIENCE_S = 600.0
# A comparison's directory has a folder for each version; the second version has the defect.
_WITH_DEFECT = "b"

OnOutcome = Callable[[Outcome], None]


class SelfTest:
    """Starts the soaks; ``stop`` ends the running ones, for a Ctrl-C.

    Args:
        store: parent of one directory per row, which holds its runs.  A row with a finished run
            there is not run again: its samples are judged again.
        jobs: number of concurrent soaks.
    """

    def __init__(self, store: Path, jobs: int) -> None:
        self._store = store
        self._jobs = jobs
        self._lock = threading.Lock()
        self._running: set[BackgroundProcess] = set()
        self._stopped = False

    def run(self, rows: Sequence[Row], on_outcome: OnOutcome) -> list[Outcome]:
        """Run all rows; ``on_outcome`` gets each as it ends, the result keeps their order."""
        outcomes: dict[int, Outcome] = {}
        with ThreadPoolExecutor(max_workers=self._jobs) as pool:
            # Start controls first, because other rows wait for their results; then the longest
            # rows, so that none of them runs alone for minutes at the end.
            order = sorted(
                range(len(rows)),
                key=lambda i: (rows[i].expect is not Expect.SILENT, -rows[i].duration_s),
            )
            futures: dict[Future[Outcome], int] = {}
            controls: dict[str, Future[Outcome]] = {}
            for i in order:
                defect = rows[i].defect
                control = None if defect is None else controls.get(defect.healthy_twin)
                future = pool.submit(self._one, rows[i], control)
                futures[future] = i
                if defect is not None and rows[i].expect is Expect.SILENT:
                    controls[defect.slug] = future
            try:
                for future in as_completed(futures):
                    outcome = future.result()
                    outcomes[futures[future]] = outcome
                    on_outcome(outcome)
            except BaseException:
                self.stop()
                raise
        return [outcomes[index] for index in range(len(rows))]

    def stop(self) -> None:
        """Kill the running soaks and start no more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.send_signal(signal.SIGKILL)

    def _one(self, row: Row, control: Future[Outcome] | None) -> Outcome:
        """Run or find the row; ``control`` is the row that does the same work without its defect.

        The control was started before, so waiting for it cannot deadlock, even with one job.
        """
        store = self._store / row.slug
        store.mkdir(parents=True, exist_ok=True)
        finished = [path for path in _runs(store) if (path / VERDICT).exists()]
        if finished:
            return _judged(row, finished[-1], control)
        before = set(_runs(store))
        code, complaint = self._soak(row, store)
        runs = [path for path in _runs(store) if path not in before]
        if len(runs) != 1:
            said = f"the soak produced no run (exit code {code}): {complaint}"
            return Outcome(row, "none", wrong=(said,))
        return _judged(row, runs[0], control, code, complaint)

    def _soak(self, row: Row, store: Path) -> tuple[int, str]:
        """Return the exit code and the last lines of stderr."""
        with self._lock:
            if self._stopped:
                return -1, "stopped"
            process = BackgroundProcess(command(row, store), keep_errors=True)
            self._running.add(process)
        try:
            with process:
                ended = process.run(row.duration_s + row.most_extend_s + _PATIENCE_S)
        finally:
            with self._lock:
                self._running.discard(process)
        return ended.exit_code, ended.last_words


def command(row: Row, store: Path) -> list[str]:
    """Return the row's soak or comparison as a command line that a user could type."""
    special = _comparison if row.signature.found_by is FoundBy.COMPARE else _soak
    words = [sys.executable, "-m", "hybridbench", *special(row), "--ui", "none"]
    words += ["--store", str(store), "--profile", row.profile, "--gc", row.gc]
    if row.model:
        words += ["--model", row.model]
    if row.ballast is not None:
        words += ["--ballast", str(row.ballast)]
    return [*words, *_settings(row)]


def _soak(row: Row) -> list[str]:
    words = ["soak", "--duration", f"{row.duration_s:g}s"]
    words += ["--extend", f"{row.most_extend_s:g}s" if row.most_extend_s else "0"]
    # This tests detection over the whole length, not diagnosis.
    words += ["--stop", "never", "--diagnose", "never"]
    return words if row.defect is None else [*words, "--defect", row.defect.slug]


def _comparison(row: Row) -> list[str]:
    assert row.defect is not None, f"{row.name}: there is nothing to compare with"
    # The first look comes after six rounds; more would only narrow the intervals.
    return ["compare", ".", f"defect:{row.defect.slug}", "--rounds", "6", "--block", "5s"]


def _settings(row: Row) -> Iterable[str]:
    for key, value in row.overrides:
        # The row's own heap setting takes precedence.
        if not (key == "ballast.objects" and row.ballast is not None):
            yield from ("--set", f"{key}={value}")
    if not row.check_owners and "engine.check_owners" not in dict(row.overrides):
        yield from ("--set", "engine.check_owners=false")


def _runs(store: Path) -> list[Path]:
    """Return the stored runs of a row, oldest first: a run's name begins with its time."""
    return sorted(path for path in store.iterdir() if path.is_dir())


def _judged(
    row: Row,
    run_dir: Path,
    control: Future[Outcome] | None,
    code: int | None = None,
    complaint: str = "",
) -> Outcome:
    """Judge the row's run with the present analysis; ``code`` is None for a stored one."""
    try:
        if row.signature.found_by is FoundBy.COMPARE:
            outcome, right = _judged_comparison(row, run_dir)
        else:
            outcome, right = _judged_soak(row, run_dir, _growth(control))
    except HybridbenchError as error:
        return Outcome(row, "none", wrong=(str(error),), run_dir=str(run_dir))
    wrong = outcome.wrong
    if code is not None and code != int(right):
        said = f"{row.signature.found_by} ended with {code}, not {int(right)}: {complaint}"
        wrong = (*wrong, f"the {said}")
    return replace(outcome, wrong=wrong, run_dir=str(run_dir))


def _growth(control: Future[Outcome] | None) -> tuple[MetricResult, ...]:
    """Return the growth in the control's run; empty without a control."""
    run_dir = "" if control is None else control.result().run_dir
    return judge(read_run(Path(run_dir))).metrics if run_dir else ()


def _judged_soak(
    row: Row, run_dir: Path, without_defect: tuple[MetricResult, ...]
) -> tuple[Outcome, ExitCode]:
    record = read_run(run_dir)
    verdict = judge(record)
    truth = read_truth(run_dir)
    detect_s = None
    if row.expect is Expect.CAUGHT:
        detect_s = time_to_detect_s(record, verdict.kind)
    known = replace(_of_defect(row, truth), process_growth=without_defect)
    outcome = compare(row, verdict, known, detect_s, truth.counts.get(OWNER_LEDGER))
    return outcome, verdict.exit_code


def _judged_comparison(row: Row, directory: Path) -> tuple[Outcome, ExitCode]:
    stored = read_comparison(directory)
    answer = compare_all(stored.comparison, stored.terms)
    truth = _of_defect(row, read_truth(directory / _WITH_DEFECT))
    return compare_versions(row, answer, truth.counts), answer.exit_code


def _of_defect(row: Row, stored: StoredTruth) -> RowTruth:
    slug = "" if row.defect is None else row.defect.slug
    return RowTruth(
        stored.counts.get(slug, {}),
        stored.at_idle.get(slug, {}),
        stored.before_steady.get(slug, {}),
    )
