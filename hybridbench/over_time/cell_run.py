"""Run one cell to its verdict: attempts, interruptions, and reruns by the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from hybridbench.foundation.clock import Clock
from hybridbench.foundation.errors import ErrorCode, ExitCode, RunDirectoryError
from hybridbench.over_time.attempts import (
    Progress,
    Stored,
    judge_command,
    resume_command,
    start_command,
    stored_attempt,
    with_result,
)
from hybridbench.over_time.cells import PlannedCell
from hybridbench.over_time.child import Child
from hybridbench.over_time.planned import OVERHEAD_S, PlannedRun
from hybridbench.over_time.policy import NextAttempt, Rules, next_attempt, result
from hybridbench.over_time.stored import another_engine, read_cell, write_record
from hybridbench.records.nightly import Attempt, CellRecord, CellResult
from hybridbench.rundir.layout import CELL, make_directory
from hybridbench.rundir.lock import locked_run
from hybridbench.sampling.redaction import redacted
from hybridbench.targets.background_process import Completed

# Boot, drains, checkpoints, diagnosis and judging on a busy machine, in addition to the traffic.
_PATIENCE_S: Final = 900.0
# A soak whose parent was killed drains and reports before it unlocks its directory.
_LETTING_GO_S: Final = 90.0
# An extended run ends when two interim analyses a minute apart agree; less than that is useless.
_EXTEND_AT_LEAST_S: Final = 60.0
_SIGNALLED = (int(ExitCode.INTERRUPTED), int(ExitCode.TERMINATED))
_CONSOLE: Final = "console.txt"


@dataclass
class CellRun:
    """Runs one cell in its directory, or resumes it.

    Args:
        nightly: the nightly run from the plan.
        planned: the cell.
        cell_dir: holds cell.json and a folder for each attempt; created if missing.
        child: runs the commands; stopping it stops the cell.
        say: receives progress lines.
        deadline_s: an undecided cell is not extended beyond this monotonic time.
    """

    nightly: PlannedRun
    planned: PlannedCell
    cell_dir: Path
    child: Child
    clock: Clock
    say: Callable[[str], None]
    deadline_s: float = float("inf")

    @property
    def rules(self) -> Rules:
        """The plan's rules for this cell."""
        return self.nightly.rules(self.planned)

    def run(self) -> CellRecord:
        """Return the cell's record; not ``finished`` if a signal ended it.

        Raises:
            RunDirectoryError: the directory holds a cell of another plan or engine, or cannot be
            written.
        """
        make_directory(self.cell_dir)
        with locked_run(self.cell_dir):
            record = self._stored()
            if record.finished:
                self.say(f"{record.id}: finished before, skipped")
                return record
            return self._resume(record)

    def result(self, record: CellRecord) -> CellResult | None:
        """Return the cell's result; None while a run of it is in progress or interrupted."""
        if not record.attempts or record.attempts[-1].exit_code is None:
            return None
        return result(self.rules, record.attempts)

    def _stored(self) -> CellRecord:
        path = self.cell_dir / CELL
        plan, engine = self.nightly.record, self.nightly.engine
        if not path.exists():
            return CellRecord(plan=plan, cell=self.planned.cell, engine=engine)
        record = read_cell(path)
        if (record.plan.hash, record.id) != (plan.hash, self.planned.id):
            raise RunDirectoryError(
                f"{path} is cell {record.id} of plan {record.plan.name} {record.plan.hash}, not "
                f"{self.planned.id} of {plan.name} {plan.hash}: choose another --out",
                code=ErrorCode.MISMATCH,
            )
        if any(a.verdict for a in record.attempts) and another_engine(record.engine, engine):
            raise RunDirectoryError(
                f"{path} was produced by engine {record.engine[:12]}, and the engine's files have "
                f"changed since (now {engine[:12]}): choose another --out",
                code=ErrorCode.MISMATCH,
            )
        # Waivers may have changed since; the new ones decide whether another attempt is needed.
        return msgspec.structs.replace(record, plan=plan, cell=self.planned.cell, engine=engine)

    def _resume(self, record: CellRecord) -> CellRecord:
        # A run that ended without a verdict is tried again: its cause may have been fixed.
        ended = [attempt for attempt in record.attempts if attempt.verdict]
        under_way = [a for a in record.attempts[len(ended) :] if a.exit_code is None]
        while True:
            if under_way:
                attempt = under_way.pop()
            else:
                wanted = next_attempt(self.rules, ended)
                if wanted is None:
                    return self._write(record, ended, finished=True)
                attempt = self._new_attempt(wanted, len(ended) + 1)
            self._write(record, [*ended, attempt], finished=False)
            attempt = self._made(attempt)
            ended.append(attempt)
            if attempt.exit_code is None or not attempt.verdict:
                return self._write(record, ended, finished=False)
            self.say(f"{record.id}: {attempt.headline}")

    def _write(self, record: CellRecord, attempts: list[Attempt], *, finished: bool) -> CellRecord:
        record = msgspec.structs.replace(record, attempts=tuple(attempts), finished=finished)
        write_record(self.cell_dir / CELL, record)
        return record

    def _new_attempt(self, wanted: NextAttempt, number: int) -> Attempt:
        return Attempt(
            number=number,
            reason=wanted.reason,
            seed=wanted.seed,
            duration_s=wanted.duration_s,
            started_wall_s=self.clock.wall_s(),
            command=(),
            extend_s=self._extend_s(wanted),
        )

    def _extend_s(self, wanted: NextAttempt) -> float:
        """Return how long an undecided run may be extended: as the plan allows, if time is left.

        Lack of time shortens only these extensions; failures are always confirmed.
        """
        left_s = self.deadline_s - self.clock.monotonic_s() - wanted.duration_s - OVERHEAD_S
        if left_s >= wanted.extend_s:
            return wanted.extend_s
        return float(int(left_s)) if left_s >= _EXTEND_AT_LEAST_S else 0.0

    def _made(self, attempt: Attempt) -> Attempt:
        """Run or resume the attempt; its exit code stays None if a signal ended it."""
        store = self.cell_dir / f"attempt-{attempt.number}"
        make_directory(store)
        command = start_command(self.planned, attempt, store)
        attempt = msgspec.structs.replace(attempt, command=redacted(command))
        try:
            ended = self._to_its_end(attempt, command, store)
            by_itself = ended.timed_out or ended.exit_code not in _SIGNALLED
            if self.child.stopped_by is None and by_itself:
                attempt = self._completed(attempt, store, ended)
        except RunDirectoryError as error:
            attempt = msgspec.structs.replace(
                attempt, exit_code=int(ExitCode.INVALID), complaint=str(error)
            )
        return msgspec.structs.replace(attempt, ended_wall_s=self.clock.wall_s())

    def _to_its_end(self, attempt: Attempt, command: list[str], store: Path) -> Completed:
        """Run what is left to do: the whole attempt, the rest of a soak, its judging or nothing."""
        cell = self.planned.cell
        stored = self._settled(store)
        if stored is None:
            self.say(f"{cell.id}: {attempt.reason}, seed {attempt.seed}")
            return self._start(command, attempt, store)
        if stored.progress is Progress.UNJUDGED:
            return self._start(judge_command(stored.run_dir), attempt, store)
        if stored.progress is Progress.DONE:
            return Completed(0, "")
        self.say(f"{cell.id}: resumes {stored.run_dir.name}")
        ended = self._start(resume_command(cell, stored.run_dir), attempt, store)
        if ended.exit_code != int(ExitCode.USAGE):
            return ended
        # Interrupted before its engine was built, or the engine has changed since.
        self.say(f"{cell.id}: begins anew, as that run cannot be resumed")
        return self._start(command, attempt, store)

    def _settled(self, store: Path) -> Stored | None:
        """Return what is in ``store`` once a soak that still writes there has unlocked it."""
        stored = stored_attempt(self.planned.cell.kind, store)
        if stored is None or stored.progress is not Progress.CUT:
            return stored
        self._wait_for(stored.run_dir)
        return stored_attempt(self.planned.cell.kind, store)

    def _completed(self, attempt: Attempt, store: Path, ended: Completed) -> Attempt:
        kind = self.planned.cell.kind
        stored = stored_attempt(kind, store)
        if stored is not None and stored.progress is Progress.DONE:
            return with_result(kind, attempt, stored.run_dir, self.cell_dir)
        complaint = ended.last_words or f"it ended with exit code {ended.exit_code} and no verdict"
        if ended.timed_out:
            complaint = "it did not end in time and was stopped"
        return msgspec.structs.replace(attempt, exit_code=ended.exit_code, complaint=complaint)

    def _start(self, command: list[str], attempt: Attempt, store: Path) -> Completed:
        traffic_s = attempt.duration_s + attempt.extend_s
        return self.child.run(command, store / _CONSOLE, 2 * traffic_s + _PATIENCE_S)

    def _wait_for(self, run_dir: Path) -> None:
        """Wait until the soak that was running when we were killed has unlocked the directory."""
        deadline_s = self.clock.monotonic_s() + _LETTING_GO_S
        while True:
            try:
                with locked_run(run_dir):
                    return
            except RunDirectoryError:
                if self.clock.monotonic_s() > deadline_s or self.child.stopped_by is not None:
                    raise
            self.clock.sleep(0.5)
