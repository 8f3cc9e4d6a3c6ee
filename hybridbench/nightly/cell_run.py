"""One cell of a night, run to its verdict: attempts, interruptions, what the policy runs again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from hybridbench.clock import Clock
from hybridbench.errors import ExitCode, RunDirectoryError
from hybridbench.nightly.budget import OVERHEAD_S
from hybridbench.nightly.cells import CellKind, cell_to_json
from hybridbench.nightly.child import Child, Ended
from hybridbench.nightly.compare_attempt import compare_command, with_comparison
from hybridbench.nightly.policy import Next, Outcome, Rules, next_attempt, outcome
from hybridbench.nightly.records import (
    CELL_SCHEMA,
    AttemptRecord,
    CellRecord,
    PlanRecord,
    another_engine,
    read_cell,
    write_record,
)
from hybridbench.nightly.soak_attempt import (
    Progress,
    judge_command,
    resume_command,
    soak_command,
    stored_run,
    with_result,
)
from hybridbench.rundir.layout import CELL, make_directory
from hybridbench.rundir.lock import locked_run

# Boot, drains, checkpoints, diagnosis and judging on a busy machine, beside the traffic.
_PATIENCE_S: Final = 900.0
# A soak that we were killed beside drains and reports before it lets go of its directory.
_LETTING_GO_S: Final = 90.0
# Two looks that agree on an extended run must be a minute apart: less decides nothing.
_EXTEND_AT_LEAST_S: Final = 60.0
_SIGNALLED = (int(ExitCode.INTERRUPTED), int(ExitCode.TERMINATED))
_CONSOLE: Final = "console.txt"


@dataclass
class CellRun:
    """Runs one cell in its directory, or goes on with it.

    Args:
        rules: the cell with the plan's policy and waivers.
        plan: what every cell says of its plan.
        cell_dir: holds cell.json and a folder for each attempt; made here.
        child: runs the commands; whoever stops it stops the cell.
        told: hears a line now and then.
        engine: hash of the engine's files; what another one came to is not gone on with.
        deadline_s: an undecided cell is not extended beyond this moment of the clock.
    """

    rules: Rules
    plan: PlanRecord
    cell_dir: Path
    child: Child
    clock: Clock
    told: Callable[[str], None]
    engine: str = ""
    deadline_s: float = float("inf")

    def run(self) -> CellRecord:
        """The cell's record; not ``finished`` if a signal ended it.

        Raises:
            RunDirectoryError: the directory holds a cell of another plan or engine, or cannot be
            written.
        """
        make_directory(self.cell_dir)
        with locked_run(self.cell_dir):
            record = self._stored()
            if record.finished:
                self.told(f"{record.id}: finished before, skipped")
                return record
            return self._go_on(record)

    def _stored(self) -> CellRecord:
        path = self.cell_dir / CELL
        if not path.exists():
            cell = cell_to_json(self.rules.cell)
            return CellRecord(schema=CELL_SCHEMA, plan=self.plan, cell=cell)
        record = read_cell(path)
        if (record.plan.hash, record.id) != (self.plan.hash, self.rules.cell.id):
            raise RunDirectoryError(
                f"{path} is cell {record.id} of plan {record.plan.name} {record.plan.hash}, not "
                f"{self.rules.cell.id} of {self.plan.name} {self.plan.hash}: name another --out"
            )
        if any(a.verdict for a in record.attempts) and another_engine(record.engine, self.engine):
            raise RunDirectoryError(
                f"{path} is what engine {record.engine[:12]} came to, and the engine's files have "
                f"changed since (now {self.engine[:12]}): name another --out"
            )
        # Waivers may have changed since; they are no part of what runs.
        return msgspec.structs.replace(record, plan=self.plan)

    def _go_on(self, record: CellRecord) -> CellRecord:
        # A run that ended without a verdict is tried again: somebody has mended what was wrong.
        ended = [attempt for attempt in record.attempts if attempt.verdict]
        under_way = [a for a in record.attempts[len(ended) :] if a.exit_code is None]
        while True:
            if under_way:
                attempt = under_way.pop()
            else:
                wanted = next_attempt(self.rules, ended)
                if wanted is None:
                    return self._write(ended, finished=True)
                attempt = self._planned(wanted, len(ended) + 1)
            self._write([*ended, attempt], finished=False)
            attempt = self._one(attempt)
            ended.append(attempt)
            if attempt.exit_code is None or not attempt.verdict:
                return self._write(ended, finished=False)
            self.told(f"{record.id}: {attempt.headline}")

    def outcome(self, record: CellRecord) -> Outcome | None:
        """What the cell says; None while a run of it is under way or was cut off."""
        if not record.attempts or record.attempts[-1].exit_code is None:
            return None
        return outcome(self.rules, record.attempts)

    def _extend_s(self, wanted: Next) -> float:
        """How long the run may go on undecided: as the plan says, or what time there is.

        Only what is undecided stays so for want of time: a red is always made sure of.
        """
        left_s = self.deadline_s - self.clock.monotonic_s() - wanted.duration_s - OVERHEAD_S
        if left_s >= wanted.extend_s:
            return wanted.extend_s
        return float(int(left_s)) if left_s >= _EXTEND_AT_LEAST_S else 0.0

    def _planned(self, wanted: Next, number: int) -> AttemptRecord:
        return AttemptRecord(
            number=number,
            why=wanted.why.value,
            seed=wanted.seed,
            duration_s=wanted.duration_s,
            started_wall_s=self.clock.wall_s(),
            command=(),
            extend_s=self._extend_s(wanted),
        )

    def _write(self, attempts: list[AttemptRecord], *, finished: bool) -> CellRecord:
        record = CellRecord(
            schema=CELL_SCHEMA,
            plan=self.plan,
            cell=cell_to_json(self.rules.cell),
            attempts=tuple(attempts),
            finished=finished,
            engine=self.engine,
        )
        write_record(self.cell_dir / CELL, record)
        return record

    def _one(self, attempt: AttemptRecord) -> AttemptRecord:
        """Make the attempt, or go on with it; its exit code stays None if a signal ended it."""
        store = self.cell_dir / f"attempt-{attempt.number}"
        make_directory(store)
        try:
            if self.rules.cell.kind is CellKind.COMPARE:
                done = self._compare(attempt, store)
            else:
                done = self._soak(attempt, store)
        except RunDirectoryError as error:
            done = msgspec.structs.replace(
                attempt, exit_code=int(ExitCode.INVALID), complaint=str(error)
            )
        return msgspec.structs.replace(done, ended_wall_s=self.clock.wall_s())

    def _soak(self, attempt: AttemptRecord, store: Path) -> AttemptRecord:
        stored = stored_run(store)
        command = soak_command(self.rules.cell, attempt, store)
        attempt = msgspec.structs.replace(attempt, command=tuple(command))
        ended = Ended(0, "")
        if stored.run_dir is not None and stored.progress is Progress.CUT:
            self._wait_for(stored.run_dir)
            # What was just before its end has come to it meanwhile.
            stored = stored_run(store)
        if stored.run_dir is not None and stored.progress is Progress.CUT:
            self.told(f"{self.rules.cell.id}: goes on with {stored.run_dir.name}")
            ended = self._start(resume_command(self.rules.cell, stored.run_dir), attempt, store)
            if ended.exit_code == int(ExitCode.USAGE):
                # Cut off before its engine was built, or the engine has changed since.
                self.told(f"{self.rules.cell.id}: begins anew, as that run cannot go on")
                ended = self._start(command, attempt, store)
        elif stored.run_dir is not None and stored.progress is Progress.UNJUDGED:
            ended = self._start(judge_command(stored.run_dir), attempt, store)
        elif stored.progress is Progress.NONE:
            self.told(f"{self.rules.cell.id}: {attempt.why}, seed {attempt.seed}")
            ended = self._start(command, attempt, store)
        if self._was_stopped(ended):
            return attempt
        now = stored_run(store)
        if now.run_dir is None or now.progress is not Progress.DONE:
            return _failed(attempt, ended)
        return with_result(attempt, now.run_dir, self.cell_dir)

    def _compare(self, attempt: AttemptRecord, store: Path) -> AttemptRecord:
        command = compare_command(self.rules.cell, attempt.seed, attempt.duration_s, store)
        attempt = msgspec.structs.replace(attempt, command=tuple(command))
        done = with_comparison(attempt, store, self.cell_dir)
        if done is not None:
            return done
        self.told(f"{self.rules.cell.id}: {attempt.why}, seed {attempt.seed}")
        ended = self._start(command, attempt, store)
        if self._was_stopped(ended):
            return attempt
        done = with_comparison(attempt, store, self.cell_dir)
        return _failed(attempt, ended) if done is None else done

    def _start(self, command: list[str], attempt: AttemptRecord, store: Path) -> Ended:
        traffic_s = attempt.duration_s + (attempt.extend_s or 0.0)
        return self.child.run(command, store / _CONSOLE, 2 * traffic_s + _PATIENCE_S)

    def _was_stopped(self, ended: Ended) -> bool:
        return self.child.stopped_by is not None or ended.exit_code in _SIGNALLED

    def _wait_for(self, run_dir: Path) -> None:
        """Until the soak that was at it when we were killed has let go of it."""
        deadline_s = self.clock.monotonic_s() + _LETTING_GO_S
        while True:
            try:
                with locked_run(run_dir):
                    return
            except RunDirectoryError:
                if self.clock.monotonic_s() > deadline_s or self.child.stopped_by is not None:
                    raise
            self.clock.sleep(0.5)


def _failed(attempt: AttemptRecord, ended: Ended) -> AttemptRecord:
    complaint = ended.last_words or f"it ended with exit code {ended.exit_code} and no verdict"
    if ended.timed_out:
        complaint = "it did not come to its end in time and was killed"
    return msgspec.structs.replace(attempt, exit_code=ended.exit_code, complaint=complaint)
