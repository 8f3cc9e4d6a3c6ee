"""Measure recall: soak each engine mutant that the engine's laws kill, until the first finding.

Results are stored in one directory as they come, so that an interrupted measurement can be resumed:
``reach.jsonl`` has the candidates executed by healthy soaks of each workload, ``kills.jsonl`` the
mutants that the laws kill (``tests/laws/mutant_kills.py``), ``soaks.jsonl`` each mutant's outcome.
Runs of missed mutants stay in ``runs/``.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import msgspec

from hybridbench.analysis.judge import judge, judge_so_far
from hybridbench.analysis.record import RunRecord
from hybridbench.defects.mutants import REACHED, Candidate, candidates
from hybridbench.foundation.errors import HybridbenchError, UsageError, WorkerFailedError
from hybridbench.records.events import Crash, Phase
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.rundir.atomic import write_atomically
from hybridbench.rundir.reader import read_run
from hybridbench.rundir.truth import read_truth
from hybridbench.targets.background_process import BackgroundProcess
from hybridbench.targets.own_process import import_path
from hybridbench.workload.catalog import load_profile

SOAK_S: Final = 60.0
# The most workloads on which a mutant is soaked, in turn, until one has a finding.
_MOST_WORKLOADS: Final = 3
_REACH_S: Final = 40.0
_BOOT_S: Final = 60.0
# Time for checkpoints and drains.
_PATIENCE_S: Final = 60.0
# Ten seconds for recomputing answers, and the start of the reference.
_ANSWERS_S: Final = 40.0
_LAST_WORDS_S: Final = 20.0
_LOOK_EVERY_S: Final = 2.0
_LAWS: Final = Path("tests/laws")
_LAWS_LIMIT_S: Final = 6 * 3600.0
FINDINGS: Final = frozenset(
    {VerdictKind.LEAK, VerdictKind.INVARIANT, VerdictKind.CORRUPT, VerdictKind.DEGRADED}
)
_REACH, _KILLS, _SOAKS = "reach.jsonl", "kills.jsonl", "soaks.jsonl"

# Outcomes of a mutant.  Unreached: no workload executes it.  Crashed: no finding explains why.
# Dead: its soak ended before the judged window began.
FOUND, MISSED, UNREACHED = "found", "missed", "unreached"
CRASHED, DEAD = "crashed", "dead"

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Line = TypeVar("_Line", bound=msgspec.Struct)

Workload: TypeAlias = tuple[str, ...]
"""A shipped profile, and settings in the form of ``--set``."""

_PAYLOADS: Final[Workload] = ("feature-payload",)
WORKLOADS: Final[tuple[Workload, ...]] = (
    ("smoke",),
    ("chat-churn",),
    ("mamba-churn",),
    ("unified-mix",),
    ("swa-churn",),
    ("swa-churn", "engine.cache=unified"),
    ("host-tier",),
    ("host-tier", "engine.cache=unified"),
    ("host-tier", "engine.hicache.write_policy=write_back"),
    ("host-tier-hybrid",),
    ("host-tier-hybrid", "engine.cache=unified"),
    ("host-tier-hybrid", "engine.hicache.write_policy=write_back"),
    ("host-tier-windows",),
    ("host-tier-storage",),
    ("draft-verify",),
    ("admission-squeeze",),
    ("queue-abort",),
    ("queue-control",),
    ("retract-storm",),
    ("state-tracking",),
    ("shared-prefix",),
    ("bad-input",),
    ("disconnect",),
    _PAYLOADS,
    ("session-churn",),
    ("session-retract",),
    ("session-ahead",),
    ("session-abort",),
    ("load-drain-reload",),
    ("forced",),
    ("overnight",),
)


class Reach(msgspec.Struct, frozen=True):
    """A healthy soak: its verdict, and executions of each candidate since it was steady."""

    workload: Workload
    verdict: str
    counts: dict[str, int]

    @property
    def line(self) -> str:
        """One line of progress output."""
        return (
            f"{self.verdict:12} {' '.join(self.workload)}: executes {len(self.counts)} candidates"
        )


class Kill(msgspec.Struct, frozen=True):
    """The law that kills a mutant; None if no law does."""

    mutant: str
    killed_by: str | None = None


class Soaked(msgspec.Struct, frozen=True):
    """The outcome of one mutant, with the workload, verdict and first finding that decided it."""

    mutant: str
    name: str
    kind: str
    half: str
    outcome: str = ""
    workload: str = ""
    verdict: str = ""
    said: str = ""
    took_s: float = 0.0

    @property
    def line(self) -> str:
        """One line of progress output."""
        return f"{self.outcome:12} {self.name} ({self.workload}, {self.took_s:.0f} s): {self.said}"


@dataclass(frozen=True)
class Measured:
    """All results in a store.

    Args:
        half: the half of the mutants that the counts and ``soaked`` cover; both if empty.
        healthy: the verdict of each workload's healthy soak.
        tried: number of mutants that the laws were run on.
        killed: number of these that a law kills.
    """

    half: str
    healthy: dict[str, str]
    tried: int
    killed: int
    soaked: tuple[Soaked, ...]


@dataclass(frozen=True)
class Chosen:
    """The mutants to measure: all of ``half`` (both if empty), or ``sample`` of them unless 0."""

    half: str = ""
    sample: int = 0
    seed: int = 0


class MutantTest:
    """Owns the processes of one measurement; ``stop`` ends them, for example on Ctrl-C.

    Args:
        store: directory of all results.
        jobs: number of processes at a time.
    """

    def __init__(self, store: Path, jobs: int, on_line: Callable[[str], None]) -> None:
        self._store = store
        self._jobs = jobs
        self._on_line = on_line
        self._stopped = threading.Event()

    def run(self, chosen: Chosen) -> None:
        """Measure the chosen mutants, except those with a result in the store.

        Raises:
            UsageError: the laws are missing here, or one of them fails without a mutant.
            WorkerFailedError: the laws did not end, or a workload crashes without a mutant.
        """
        for name in (_REACH, _KILLS, _SOAKS):
            _without_torn_line(self._store / name)
        self._each([w for w in WORKLOADS if w not in self._reach()], self._soak_healthy, self._kept)
        reach = {w: r for w, r in self._reach().items() if r.verdict not in FINDINGS}
        population = sorted(_of_half(chosen.half), key=lambda c: c.slug)
        if chosen.sample:
            # A larger sample includes every smaller one.
            random.Random(chosen.seed).shuffle(population)
            population = population[: chosen.sample]
        self._run_laws([c.slug for c in population])
        kills, soaked = self._kills(), {soaked.mutant for soaked in self._soaked()}
        missing = [c for c in population if kills.get(c.slug) and c.slug not in soaked]
        self._each(missing, lambda candidate: self._soak_mutant(candidate, reach), self._kept)

    def measured(self, half: str) -> Measured:
        """Return all results so far, including those of earlier measurements."""
        kills = self._kills()
        chosen = {c.slug for c in _of_half(half)}
        return Measured(
            half,
            {" ".join(workload): reach.verdict for workload, reach in self._reach().items()},
            sum(slug in kills for slug in chosen),
            sum(bool(kills.get(slug)) for slug in chosen),
            tuple(soaked for soaked in self._soaked() if soaked.mutant in chosen),
        )

    def stop(self) -> None:
        """End running processes and start no more; results are kept."""
        self._stopped.set()

    def _kills(self) -> dict[str, str | None]:
        """Return the law that kills each mutant tried so far, by its slug."""
        return {k.mutant: k.killed_by for k in _lines(self._store / _KILLS, Kill)}

    def _reach(self) -> dict[Workload, Reach]:
        """Return the completed healthy soaks; an interrupted one has no counts."""
        found = {reach.workload: reach for reach in _lines(self._store / _REACH, Reach)}
        return {w: found[w] for w in WORKLOADS if w in found and found[w].counts}

    def _soaked(self) -> list[Soaked]:
        return _lines(self._store / _SOAKS, Soaked)

    def _kept(self, result: Reach | Soaked) -> None:
        name = _REACH if isinstance(result, Reach) else _SOAKS
        with (self._store / name).open("ab") as out:
            out.write(msgspec.json.encode(result) + b"\n")
        self._on_line(result.line)

    def _run_laws(self, slugs: Sequence[str]) -> None:
        """Run the laws on those of ``slugs`` without a result.

        Raises:
            UsageError: the laws are missing here, or one of them fails without a mutant.
            WorkerFailedError: the laws did not end.
        """
        missing = [slug for slug in (REACHED, *slugs) if slug not in self._kills()]
        if missing:
            if not _LAWS.is_dir():
                raise UsageError(
                    f": needs the engine's laws, {_LAWS}/ of a checkout, in the current directory; "
                    "an installed package has none.",
                    option="--mutants",
                )
            self._on_line(f"running the laws of {_LAWS}/ over {len(missing) - 1} mutants")
            command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "tests.laws.mutant_kills"]
            command += ["-p", "no:cacheprovider", "-m", "not slow and not soak and not gpu"]
            # Tests that check whether laws can fail are not laws.
            command += [str(_LAWS), "-k", "not can_fail and not law_sees and not is_seen"]
            command += ["--mutant-store", str(self._store), "--mutant-jobs", str(self._jobs)]
            path = os.pathsep.join((import_path(), os.getcwd()))
            settings = {"HYPOTHESIS_PROFILE": "mutants", "PYTHONPATH": path}
            command += ["--mutants", ",".join(missing)]
            with BackgroundProcess(command, settings=settings, ends_with_parent=True) as process:
                self._attend(process, _LAWS_LIMIT_S, lambda: False)
        kills = self._kills()
        if any(slug not in kills for slug in missing):
            said = "PYTHONPATH=. python -m pytest -p tests.laws.mutant_kills --mutant-store DIR"
            raise WorkerFailedError(f"the laws did not end; {said} {_LAWS} shows why.")
        law = kills.get(REACHED)
        if law:
            raise UsageError(f": the law {law} fails without any mutant.", option="--mutants")

    def _soak_healthy(self, workload: Workload) -> Reach:
        """Soak without a mutant, and count the candidates that ``workload`` executes.

        Raises:
            WorkerFailedError: the workload crashes, so that nothing can be measured on it.
        """
        store = self._store / "runs" / f"healthy-{'+'.join(workload)}"
        self._soak(REACHED, workload, _REACH_S, store)
        record = _run_in(store)
        if record is None:
            return Reach(workload, "none", {})
        truth = read_truth(next(store.iterdir()))
        before = truth.before_steady.get(REACHED, {})
        counts = {s: n - before.get(s, 0) for s, n in truth.counts.get(REACHED, {}).items()}
        shutil.rmtree(store, ignore_errors=True)
        verdict = judge(record)
        if verdict.kind is VerdictKind.CRASHED:
            raise WorkerFailedError(
                f"{' '.join(workload)} ends early although no statement was removed: "
                f"{verdict.headline}"
            )
        reached = {slug: count for slug, count in counts.items() if count > 0}
        return Reach(workload, verdict.kind.value, reached)

    def _soak_mutant(self, candidate: Candidate, reach: Mapping[Workload, Reach]) -> Soaked:
        """Soak the mutant on workloads that execute it, in turn, as long as it is missed."""
        slug = candidate.slug
        counts = {w: reached.counts[slug] for w, reached in reach.items() if slug in reached.counts}
        result = Soaked(slug, candidate.name, candidate.kind, candidate.half, UNREACHED)
        for workload in _in_turn(counts):
            tried = self._soak_on(workload, result)
            if result.outcome == UNREACHED or tried.outcome != MISSED:
                result = tried
            if result.outcome != MISSED:
                break
        return result

    def _soak_on(self, workload: Workload, mutant: Soaked) -> Soaked:
        store = self._store / "runs" / mutant.mutant
        shutil.rmtree(store, ignore_errors=True)
        began_s = time.monotonic()
        self._soak(mutant.mutant, workload, SOAK_S, store)
        took_s = round(time.monotonic() - began_s, 1)
        outcome, verdict, said = _outcome(store)
        if outcome != MISSED:
            shutil.rmtree(store, ignore_errors=True)
        return msgspec.structs.replace(
            mutant,
            workload=" ".join(workload),
            outcome=outcome,
            verdict=verdict,
            said=said,
            took_s=took_s,
        )

    def _soak(self, slug: str, workload: Workload, seconds: float, store: Path) -> None:
        """Soak until the first exact finding; a trend needs the whole duration."""
        store.mkdir(parents=True, exist_ok=True)
        module = "hybridbench.selftest.mutant_soak"
        command = [sys.executable, "-m", module, slug, f"{seconds:g}", str(store), *workload]
        with BackgroundProcess(command, ends_with_parent=True) as process:
            self._attend(process, _BOOT_S, lambda: "warmup" in _phases(_run_in(store)))
            if "warmup" not in _phases(_run_in(store)):
                return  # the engine hangs while it is built
            self._attend(process, seconds + _PATIENCE_S, lambda: _is_decided(store))
            if process.exit_code is None and "done" in _phases(_run_in(store)):
                # Two wrong answers suffice; the soak would continue, to find their common traits.
                self._attend(process, _ANSWERS_S, lambda: False)
                process.send_signal(signal.SIGINT)
                self._attend(process, _LAST_WORDS_S, lambda: False)

    def _attend(
        self, process: BackgroundProcess, limit_s: float, is_over: Callable[[], bool]
    ) -> None:
        """Wait until ``process`` ends, ``is_over`` returns true, or ``limit_s`` has passed.

        Raises:
            _StoppedError: ``stop`` was called.
        """
        end_s = time.monotonic() + limit_s
        while process.exit_code is None and time.monotonic() < end_s and not is_over():
            if self._stopped.wait(_LOOK_EVERY_S):
                raise _StoppedError

    def _each(
        self,
        items: Iterable[_Item],
        do: Callable[[_Item], _Result],
        done: Callable[[_Result], None],
    ) -> None:
        """Run ``do`` on each item in a pool; call ``done`` on each result in this thread."""
        pool = ThreadPoolExecutor(max_workers=self._jobs)
        try:
            for future in as_completed([pool.submit(do, item) for item in items]):
                done(future.result())
        except BaseException:
            self.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


class _StoppedError(Exception):
    """``stop`` was called."""


def _in_turn(counts: Mapping[Workload, int]) -> list[Workload]:
    """Return the workload that executes a statement most often, then the best of each other model.

    A statement may have no effect on some model: one without states has no state to free.
    """
    # Answers of requests with a payload are not compared.
    ranked = sorted(counts, key=lambda w: (w != _PAYLOADS, counts[w]), reverse=True)
    by_model: dict[str, Workload] = {}
    for workload in ranked:
        by_model.setdefault(load_profile(workload[0]).model, workload)
    return list(by_model.values())[:_MOST_WORKLOADS]


def _run_in(store: Path) -> RunRecord | None:
    """Return the run stored in ``store`` so far, or None."""
    for run_dir in store.iterdir():
        try:
            return read_run(run_dir)
        except HybridbenchError:
            return None
    return None


def _is_counted(finding: Finding) -> bool:
    return finding.exact and finding.verdict in FINDINGS


def _phases(record: RunRecord | None) -> set[str]:
    """Return the phases begun so far; after "done", only answers are still being compared."""
    return set() if record is None else {event.phase for event in record.all_events(Phase)}


def _is_decided(store: Path) -> bool:
    """Whether a running soak has an exact finding, or has finished its traffic."""
    record = _run_in(store)
    if record is None:
        return False
    return "done" in _phases(record) or any(map(_is_counted, judge_so_far(record).findings))


def _outcome(store: Path) -> tuple[str, str, str]:
    """Return the outcome, verdict and finding of a finished soak, for ``Soaked``."""
    record = _run_in(store)
    if record is None:
        return DEAD, "none", "the worker was not ready"
    is_crashed, phases = record.last_event(Crash) is not None, _phases(record)
    whole = is_crashed or "done" in phases
    verdict = (judge if whole else judge_so_far)(record)
    said = verdict.findings[0].title if verdict.findings else verdict.headline
    if "steady" not in phases and (is_crashed or verdict.kind not in FINDINGS):
        outcome = DEAD
    elif verdict.kind in FINDINGS:
        outcome = FOUND
    else:
        outcome = CRASHED if verdict.kind is VerdictKind.CRASHED else MISSED
    return outcome, verdict.kind.value, said


def _lines(path: Path, kind: type[_Line]) -> list[_Line]:
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines()]


def _without_torn_line(path: Path) -> None:
    """Remove an incomplete last line, so that its item is repeated."""
    if path.exists():
        whole, end, _ = path.read_bytes().rpartition(b"\n")
        write_atomically(path, (whole + end).decode())


def _of_half(half: str) -> list[Candidate]:
    return [c for c in candidates() if half in {"", c.half}]
