"""One cell: what is started, skipped and resumed, by a child that starts nothing."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.errors import ErrorCode, RunDirectoryError
from hybridbench.over_time import cell_run
from hybridbench.over_time.attempts import Progress, Stored
from hybridbench.over_time.cell_run import CellRun
from hybridbench.over_time.child import Child
from hybridbench.over_time.stored import read_cell
from hybridbench.records.nightly import Attempt, CellKind, CellState
from hybridbench.targets.background_process import Completed
from tests.unit.over_time.planned_runs import (
    GROWTH,
    PLAN,
    UNDECIDED,
    attempt,
    finished,
    planned_run,
    store,
)

Results = list[Attempt]


class ScriptedChild(Child):
    """Records every command and ends it at once with the next code."""

    def __init__(self, *codes: int, stopped_at: int | None = None) -> None:
        super().__init__(io.StringIO())
        self.commands: list[list[str]] = []
        self._codes = list(codes)
        self._stopped_at = stopped_at

    def run(self, command: list[str], output: Path, patience_s: float) -> Completed:
        del output
        self.patience_s = patience_s
        self.commands.append(command[3:])
        if len(self.commands) == self._stopped_at:
            self.stop(signal.SIGTERM)
        return Completed(self._codes.pop(0), "the last words")


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets what each look finds in the store, and the results of runs."""

    def to(looks: list[Stored | None], results: Results) -> None:
        monkeypatch.setattr(cell_run, "stored_attempt", lambda kind, store: looks.pop(0))
        monkeypatch.setattr(cell_run, "_wait_for", lambda *_: None, raising=False)

        def result(kind: CellKind, record: Attempt, run_dir: Path, cell_dir: Path) -> Attempt:
            del kind, run_dir, cell_dir
            ended = results.pop(0)
            return attempt(
                ended.verdict,
                *ended.findings,
                reason=record.reason,
                seed=record.seed,
                number=record.number,
                duration_s=record.duration_s,
                extend_s=record.extend_s,
            )

        monkeypatch.setattr(cell_run, "with_result", result)

    return to


def runner(folder: Path, child: Child, text: str = PLAN, deadline_s: float = 1e9) -> CellRun:
    planned = planned_run(folder, text)
    planned = replace(planned, engine="this engine")
    cell = planned.cells[0]
    place = folder / "cells" / cell.id
    return CellRun(planned, cell, place, child, FakeClock(), lambda _: None, deadline_s)


def done(folder: Path) -> Stored:
    return Stored(Progress.DONE, folder / "run")


def cut(folder: Path) -> Stored:
    run_dir = folder / "run"
    run_dir.mkdir(exist_ok=True)
    return Stored(Progress.CUT, run_dir)


def test_a_finished_cell_is_skipped(tmp_path: Path) -> None:
    store(finished(planned_run(tmp_path), "one", attempt()), tmp_path / "cells")
    child = ScriptedChild()

    record = runner(tmp_path, child).run()

    assert record.finished
    assert child.commands == []


def test_a_cell_of_another_plan_is_refused_and_left_alone(tmp_path: Path) -> None:
    other = planned_run(tmp_path, PLAN.replace("30m", "45m"))
    place = store(finished(other, "one", attempt()), tmp_path / "cells") / "cell.json"
    before = place.read_bytes()

    with pytest.raises(RunDirectoryError) as refused:
        runner(tmp_path, ScriptedChild()).run()
    assert refused.value.code is ErrorCode.MISMATCH
    assert place.read_bytes() == before


def test_what_another_engine_came_to_is_not_skipped_but_refused(tmp_path: Path) -> None:
    of_another = msgspec.structs.replace(
        finished(planned_run(tmp_path), "one", attempt()), engine="another engine"
    )
    place = store(of_another, tmp_path / "cells") / "cell.json"
    before = place.read_bytes()
    child = ScriptedChild()

    with pytest.raises(RunDirectoryError, match=r"files have changed since.*choose another --out"):
        runner(tmp_path, child).run()
    assert place.read_bytes() == before
    assert child.commands == []


def test_a_cell_that_another_engine_left_without_a_verdict_is_begun_with_this_one(
    tmp_path: Path, stores: Callable[..., None]
) -> None:
    stores([None, done(tmp_path)], [attempt()])
    under_way = attempt("", exit_code=None, run="")
    of_another = msgspec.structs.replace(
        finished(planned_run(tmp_path), "one", under_way, done=False), engine="another engine"
    )
    store(of_another, tmp_path / "cells")

    record = runner(tmp_path, ScriptedChild(0)).run()

    assert (record.finished, record.engine) == (True, "this engine")


def test_a_leak_of_statistics_is_run_again_in_a_folder_of_its_own(
    tmp_path: Path, stores: Callable[..., None]
) -> None:
    looks = [None, done(tmp_path), None, done(tmp_path)]
    stores(looks, [attempt("LEAK", GROWTH), attempt("LEAK", GROWTH)])
    child = ScriptedChild(10, 10)
    cell = runner(tmp_path, child)

    record = cell.run()

    first, second = child.commands
    assert first[first.index("--store") + 1].endswith("attempt-1")
    assert second[second.index("--store") + 1].endswith("attempt-2")
    assert first[first.index("--seed") + 1] != second[second.index("--seed") + 1]
    said = cell.result(record)
    assert said is not None
    assert said.state is CellState.FAIL
    assert read_cell(tmp_path / "cells" / "one" / "cell.json") == record


def test_a_run_that_was_cut_off_goes_on_as_a_segment(
    tmp_path: Path, stores: Callable[..., None]
) -> None:
    stores([cut(tmp_path), cut(tmp_path), done(tmp_path)], [attempt()])
    child = ScriptedChild(0)

    record = runner(tmp_path, child).run()

    assert child.commands[0][:3] == ["soak", "--resume", str(tmp_path / "run")]
    assert record.finished


def test_a_run_that_came_to_its_end_while_it_was_waited_for_is_not_made_again(
    tmp_path: Path, stores: Callable[..., None]
) -> None:
    stores([cut(tmp_path), done(tmp_path), done(tmp_path)], [attempt()])
    child = ScriptedChild()

    record = runner(tmp_path, child).run()

    assert child.commands == []
    assert record.finished


def test_a_run_that_cannot_go_on_is_begun_anew(tmp_path: Path, stores: Callable[..., None]) -> None:
    stores([cut(tmp_path), cut(tmp_path), done(tmp_path)], [attempt()])
    child = ScriptedChild(2, 0)

    record = runner(tmp_path, child).run()

    assert [command[1] for command in child.commands] == ["--resume", "--duration"]
    assert record.finished


def test_a_run_that_ended_before_its_verdict_is_only_judged(
    tmp_path: Path, stores: Callable[..., None]
) -> None:
    stores([Stored(Progress.UNJUDGED, tmp_path / "run"), done(tmp_path)], [attempt()])
    child = ScriptedChild(0)

    runner(tmp_path, child).run()

    assert child.commands == [["report", str(tmp_path / "run")]]


def test_a_signal_leaves_the_cell_to_be_gone_on_with(
    tmp_path: Path, stores: Callable[..., None]
) -> None:
    stores([None, cut(tmp_path), cut(tmp_path), done(tmp_path)], [attempt()])
    cell = runner(tmp_path, ScriptedChild(143, stopped_at=1))

    record = cell.run()

    assert not record.finished
    assert cell.result(record) is None
    again = ScriptedChild(0)
    assert runner(tmp_path, again).run().finished
    assert again.commands[0][1] == "--resume"


def test_a_soak_that_makes_no_run_leaves_its_words_and_is_tried_again_later(
    tmp_path: Path, stores: Callable[..., None]
) -> None:
    stores([None, None, None, done(tmp_path)], [attempt()])
    cell = runner(tmp_path, ScriptedChild(2))

    record = cell.run()

    assert not record.finished
    said = cell.result(record)
    assert said is not None
    assert (said.state, said.headline) == (CellState.MISSING, "the last words")
    assert runner(tmp_path, ScriptedChild(0)).run().finished


@pytest.mark.parametrize(
    ("deadline_s", "extend"), [(1e9, "1800s"), (2120.0, "300s"), (1879.0, "0"), (100.0, "0")]
)
def test_an_undecided_soak_may_go_on_as_long_as_there_is_time(
    tmp_path: Path, stores: Callable[..., None], deadline_s: float, extend: str
) -> None:
    stores([None, done(tmp_path)], [attempt("INCONCLUSIVE", UNDECIDED)])
    child = ScriptedChild(13)

    record = runner(tmp_path, child, deadline_s=deadline_s).run()

    (command,) = child.commands
    assert command[command.index("--extend") + 1] == extend
    assert record.finished
    # The limit also covers boot, drains and judging.
    traffic_s = 1800.0 + (record.attempts[0].extend_s or 0.0)
    assert child.patience_s >= 2 * traffic_s


def test_a_child_passes_words_on_and_keeps_the_last(tmp_path: Path) -> None:
    words = io.StringIO()
    script = "import sys; print('out'); [print(n, file=sys.stderr) for n in range(5)]; sys.exit(7)"

    ended = Child(words).run([sys.executable, "-c", script], tmp_path / "console", 60.0)

    assert ended == Completed(7, "2 | 3 | 4")
    assert words.getvalue() == "0\n1\n2\n3\n4\n"
    assert (tmp_path / "console").read_text() == "out\n"


def test_a_child_comes_to_its_end_though_nobody_reads_its_words(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    script = "import sys; [print(n, file=sys.stderr) for n in range(5)]; sys.exit(7)"

    with os.fdopen(write, "w", encoding="utf-8") as words:
        ended = Child(words).run([sys.executable, "-c", script], tmp_path / "console", 60.0)

    assert ended == Completed(7, "2 | 3 | 4")


def test_a_child_that_hangs_is_asked_to_end(tmp_path: Path) -> None:
    script = "import signal; signal.pause()"

    ended = Child(io.StringIO()).run([sys.executable, "-c", script], tmp_path / "console", 1.0)

    assert ended.timed_out
    assert ended.exit_code == -signal.SIGTERM
