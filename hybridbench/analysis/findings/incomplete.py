"""Findings about runs that ended early or in which a part failed.

The workload could not continue, the machine ran out of resources, the user interrupted the run, or
hybridbench itself failed, during the run or during its analysis.  The recorded part is judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hybridbench.analysis.facts.facts import Facts, Missed
from hybridbench.analysis.facts.limits import planned_s, served_s
from hybridbench.foundation.units import format_duration
from hybridbench.records.events import BenchFailed, Interrupted, StoppedEarly, WorkloadFailed
from hybridbench.records.finding import Basis, Finding, NextCommand, VerdictKind, Words
from hybridbench.records.manifest import OBSERVED
from hybridbench.records.verdict import Failure

_STANDS = (
    VerdictKind.LEAK,
    VerdictKind.INVARIANT,
    VerdictKind.CORRUPT,
    VerdictKind.CRASHED,
    VerdictKind.DEGRADED,
)
# Reasons for which the machine ended the run, which say nothing about the engine.
_GAVE_OUT = ("memory-low", "disk-low", "exhaustion")
_LOAD, _CLIENT = "load", "load client"


class WorkloadEnded(Basis, frozen=True, kw_only=True):
    """The traffic ended early."""

    kind = "workload-failed"
    meaning = (
        "The workload ended early: the trace could not be read to its end, or the load command "
        "failed again and again."
    )
    leads_to = (
        "INVALID; INCONCLUSIVE beside a LEAK, INVARIANT, CORRUPT, CRASHED or DEGRADED finding"
    )

    message: str
    planned_s: float | None

    def words(self, found: Finding) -> Words:
        planned = ""
        if self.planned_s:
            planned = f" (planned traffic: {format_duration(self.planned_s)})"
        at = format_duration(found.since_s or 0.0)
        # The message names the place and comes first, because a headline may be truncated.
        return Words(f"{self.message}; no request was sent after {at}{planned}")

    def advice(self, found: Finding) -> str:
        if found.subject == _LOAD:
            return "Run the load command by hand while the target serves; see what it says."
        if found.subject == _CLIENT:
            return "Correct what is named above, or find what ended the client, and repeat the run."
        return (
            f"Correct the {found.subject} at the place named above, then repeat or resume the run; "
            "a dry run checks a whole trace first."
        )


class MachineGaveOut(Basis, frozen=True, kw_only=True):
    """The run ended because the machine ran out of memory or disk."""

    kind = "stopped-early"
    meaning = "The run ended before its planned time because memory or disk ran out."
    leads_to = "INCONCLUSIVE"
    decided_by_length = False
    advised = "Make room on the machine, in memory or on the disk, then repeat the run."

    message: str

    def words(self, found: Finding) -> Words:
        return Words(f"stopped before the planned end: {self.message}")


class MemoryNotSeen(Basis, frozen=True, kw_only=True):
    """No process of the server was named, so its memory is not visible."""

    kind = "memory-not-seen"
    meaning = "Only the server's interface was observed, not its memory."
    leads_to = "INCONCLUSIVE"
    decided_by_length = False
    advised = (
        "Run hybridbench on the server's machine, with --pid or with the command that starts the "
        "server."
    )

    def words(self, found: Finding) -> Words:
        return Words("the server's memory is not seen: no process of it was named")


class InterruptedUncovered(Basis, frozen=True, kw_only=True):
    """The run was interrupted at ``at_s``, before it covered what its profile requires."""

    kind = "interrupted"
    meaning = "The run was interrupted before it had covered what the profile requires."
    leads_to = "INCONCLUSIVE"

    missing: tuple[Missed, ...]
    at_s: float
    served_s: float
    planned_s: float

    def words(self, found: Finding) -> Words:
        of = f" of the planned {format_duration(self.planned_s)}" if self.planned_s else ""
        return Words(
            f"interrupted after {format_duration(self.at_s)}, before all required events were seen",
            evidence=(
                f"{format_duration(self.served_s)}{of} of traffic were served",
                f"not seen as often as required: {', '.join(m.text for m in self.missing)}",
            ),
        )


class BenchError(Basis, frozen=True, kw_only=True):
    """A bug in the bench, unrelated to the engine; ``file`` has the traceback."""

    kind = "bench-failed"
    meaning = "hybridbench itself failed during the run because of a bug; what was measured counts."
    leads_to = "INCONCLUSIVE"
    decided_by_length = False
    advised = "Report this with bench-errors.txt of the run, then repeat the run."

    error: str
    file: str

    def words(self, found: Finding) -> Words:
        return Words(
            f"hybridbench failed in {found.subject} ({self.error})",
            cause="a defect of hybridbench, or a machine that denied it a resource",
            evidence=(f"the traceback is in {self.file}; what was measured is judged",),
        )


class AnalysisError(Basis, frozen=True, kw_only=True):
    """A bug of the bench in one part of the analysis."""

    kind = "analysis-failed"
    meaning = (
        "A part of the analysis failed because of a bug in hybridbench; the other parts count."
    )
    leads_to = "INCONCLUSIVE"
    next_command = NextCommand.REPORT
    decided_by_length = False
    advised = (
        "Report this with analysis-errors.txt of the run; a fixed version can judge the stored "
        "samples again."
    )

    error: str

    def words(self, found: Finding) -> Words:
        return Words(
            f"the analysis of {found.subject} failed ({self.error}); its findings are missing",
            cause="a defect of hybridbench, not of the engine",
            evidence=("the other analyses are complete",),
        )


def workload_findings(facts: Facts, others: Sequence[Finding]) -> list[Finding]:
    """Report traffic that ended early because the workload could not continue.

    The run is INVALID, because it exercised less than requested.  But findings in ``others`` were
    measured before that and still count: if there is a leak among them, this is INCONCLUSIVE.
    """
    event = facts.last.last_event(WorkloadFailed)
    if event is None:
        return []
    stands = any(finding.verdict in _STANDS for finding in others)
    kind = VerdictKind.INCONCLUSIVE if stands else VerdictKind.INVALID
    manifest = facts.record.manifest
    subject = "workload" if manifest.trace is None else "trace"
    if manifest.target.kind == OBSERVED:
        # Only the load client has a workload.
        subject = _CLIENT if manifest.workload else _LOAD
    basis = WorkloadEnded(message=event.text.rstrip("."), planned_s=manifest.planned_duration_s)
    return [Finding(basis, kind, subject, since_s=event.t_s)]


def incomplete_findings(facts: Facts) -> Iterable[Finding]:
    """Yield what a run leaves undecided because it ended early or hybridbench failed in it."""
    stopped = facts.last.last_event(StoppedEarly)
    if stopped is not None and stopped.reason in _GAVE_OUT:
        yield _open(MachineGaveOut(message=stopped.text), "run", stopped.t_s)
    for failed in facts.last.all_events(BenchFailed):
        yield bench_failed(failed.part, failed.error, failed.file, failed.t_s)
    if not facts.record.manifest.sees_memory:
        yield _open(MemoryNotSeen(), "memory")
    missing = facts.coverage.missing
    interrupted = facts.last.last_event(Interrupted)
    if missing and interrupted is not None:
        basis = InterruptedUncovered(
            missing=missing,
            at_s=interrupted.t_s,
            served_s=sum(served_s(part.record) for part in facts.segments),
            planned_s=planned_s(facts.record),
        )
        yield _open(basis, "coverage")


def bench_failed(part: str, error: str, file: str, since_s: float | None = None) -> Finding:
    """Report that hybridbench failed in ``part``; ``file`` in the run directory has a traceback."""
    return _open(BenchError(error=error, file=file), part, since_s)


def failure_findings(failures: Iterable[Failure]) -> list[Finding]:
    """Return one finding for each failed part of the analysis, whose own findings are missing."""
    first = {failure.part: failure for failure in reversed(list(failures))}
    return [
        _open(AnalysisError(error=failure.said), failure.part)
        for failure in sorted(first.values(), key=lambda failure: failure.part)
    ]


def _open(basis: Basis, subject: str, since_s: float | None = None) -> Finding:
    return Finding(basis, VerdictKind.INCONCLUSIVE, subject, since_s=since_s)
