"""Findings from the engine's own reports: violations of its checks, and its death.

An engine may have checks that are unknown here; their findings are named ``engine-`` plus the
engine's name for the check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar, Final

import msgspec

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.pools import pool_words
from hybridbench.analysis.findings.checkpoints import (
    HeldAtIdle,
    NegativeResidual,
    Residual,
)
from hybridbench.analysis.findings.containers import ContainerGrows
from hybridbench.analysis.findings.engine_log import one_line
from hybridbench.analysis.findings.locks import LocksAtIdle
from hybridbench.analysis.findings.requests import WAITING_VIOLATION, violation_kind
from hybridbench.analysis.findings.words import per_event, times
from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.units import format_duration
from hybridbench.records.events import Crash, CulpritsSought, EngineViolation
from hybridbench.records.finding import Basis, Finding, VerdictKind, Words
from hybridbench.records.load import CrashSearch
from hybridbench.records.manifest import OBSERVED

# Prefix of the kind of a finding from an engine's own check.
ENGINE_PREFIX: Final = "engine-"
_RESIDUAL = "residual"
# Kinds of check that find slots or locks wrongly held; all others are contradictions.
_HELD: Final[Mapping[str, type[Residual | LocksAtIdle | HeldAtIdle]]] = {
    _RESIDUAL: Residual,
    "locked-at-idle": LocksAtIdle,
    "in-flight-at-idle": HeldAtIdle,
}
# The same, but with no pool or no count at checkpoints that could confirm them.
_HELD_WITHOUT_POOL: Final = (WAITING_VIOLATION, "ended-held", "unanswered")
# Of checks without a pool that concern more than the engine.
_SUBJECTS: Final = {"unanswered": "requests without an answer"}

_FRONT_END: Final = "front_end"
# Of a traceback of Python, without the lines of the source.
_FRAME: Final = re.compile(r'\s*File "(?:[^"]*/)?([^"/]+)", line (\d+), in (\S+)')
_ERROR: Final = re.compile(r"(?:\w+\.)*(\w+): ")
_STDERR_LINES = 5
_SHOWN_LINES = 3
_ENDS: Final[Mapping[str, str]] = {
    "exit": "exited",
    "signal": "was killed by a signal",
    "hang": "took no step until the watchdog killed it",
    "oom": "was OOM-killed",
    "unreachable": "could not be reached",
    "silent": "was given up",
}
_WORKER: Final = "the worker"


class Crashed(Basis, frozen=True, kw_only=True):
    """How the worker or the watched program ended, and its last lines on standard error.

    Attributes:
        stacks: where the threads and coroutines of the watched program waited.
        target: name of the watched program; empty for a worker of hybridbench.
        raised: the watched program's first error among its last lines, and where.
        suspects: number of requests in flight at the end that were sent to a replacement worker.
        smallest: descriptions of the smallest set of these that crashed it again.
        file: the file in the run directory that contains these requests.
    """

    kind = "crash"
    meaning = "The worker or the watched program exited, was killed, or hung."
    leads_to = "CRASHED"
    question = "the worker ran to the end"

    reason: str
    detail: str
    stderr: tuple[str, ...]
    stacks: tuple[str, ...] = ()
    raised: str = ""
    suspects: int = 0
    smallest: tuple[str, ...] = ()
    file: str = ""
    target: str = ""

    def words(self, found: Finding) -> Words:
        how = _ENDS.get(self.reason, "ended")
        if self.target and self.reason == "hang":
            # Only workers have the watchdog of steps; here the detail says what did not happen.
            how = "was killed"
        detail = one_line(self.detail)
        after = format_duration(found.since_s or 0.0)
        said = f"{self._who} {how} after {after}"
        raised = f": {self.raised}" if self.raised else ""
        if detail.startswith(f"{_WORKER} was killed by SIG"):
            # A signal's detail names the signal and is a complete sentence.
            killed, *load = detail.removeprefix(_WORKER).split(", ", 1)
            said = ", ".join((f"{self._who}{killed} after {after}{raised}", *load))
        elif detail.startswith("("):
            code, *load = detail.split(", ", 1)
            said = ", ".join((f"{said} {code}{raised}", *load))
        elif detail:
            said += f": {detail}"
        # The terminal shows three lines of evidence: a traceback's error is its last line.
        last = (f"stderr: {line}" for line in self.stderr[-_SHOWN_LINES:])
        return Words(said, evidence=(*self._again(), *self.stacks, *last))

    @property
    def _who(self) -> str:
        return self.target or _WORKER

    def _again(self) -> Iterable[str]:
        if not self.suspects:
            return
        of = f"of {times(self.suspects, 'request')} in flight"
        if not self.smallest:
            yield f"{of}, none crashed it again, alone or all at once"
        elif len(self.smallest) == 1:
            yield f"{of}, one crashes it again when sent alone ({self.file}): {self.smallest[0]}"
        else:
            kinds = "; ".join(dict.fromkeys(self.smallest))
            fewest = f"{len(self.smallest)} crash it again when sent at once"
            yield f"{of}, {fewest} ({self.file}): {kinds}"

    def advice(self, found: Finding) -> str:
        if self.smallest:
            return (
                f"Send the requests in {self.file}, with any text, and read what the server prints."
            )
        if self.reason in ("exit", "signal") and " in flight" in self.detail and not self.suspects:
            return (
                "Repeat the run with --restarts 3, which needs a server that hybridbench starts: a "
                "new one gets the requests that were in flight, and the report names those that "
                "crash it."
            )
        if self.reason == "unreachable":
            return "Check that the server runs and can be reached at the address of --url."
        if self.stacks:
            return "Read in the evidence what its threads and coroutines wait for."
        if self.reason in ("hang", "silent") and self.target:
            return f"Read where the threads of {self.target} wait (py-spy dump, gdb) next time."
        where = f"Read the last lines of {self._who} in the evidence"
        if not self.stderr and self.target and self.reason == "exit":
            return f"Run {self.target} alone to find out why it ends: it printed no error."
        if not self.stderr:
            where = f"Check the kernel log (dmesg) for what killed {self._who}: it printed nothing"
        return f"{where}; the samples up to that moment are complete."


class _Reports(Basis, frozen=True, kw_only=True):
    """The reports of one check of the engine, about one pool or no pool.

    Attributes:
        law: the engine's name for the violated check, in normalised spelling.
        message: message of the first of ``count`` reports; of the last if each counts from the
            beginning.
        last_slots: number of slots in the last report, made at ``last_s``.
    """

    leads_to = "INVARIANT"

    law: str = msgspec.field(name="kind")
    pool: str
    count: int
    message: str
    last_slots: int
    last_s: float

    def _evidence(self, found: Finding) -> Iterable[str]:
        yield f"{times(self.count, 'time')}, first at {format_duration(found.since_s or 0.0)}"
        if self.last_slots:
            at = format_duration(self.last_s)
            yield f"{self.last_slots:,.0f} slots in the last report, at {at}"


class FalseAlarm(_Reports, frozen=True, kw_only=True):
    """A check of the engine that the next idle checkpoint contradicts."""

    kind = "false-alarm"
    meaning = "A check of the engine reported missing slots that were not missing."

    def words(self, found: Finding) -> Words:
        return Words(
            "the engine's check reported missing slots, but the next checkpoint accounts for all "
            f"({times(self.count, 'time')})",
            evidence=tuple(self._evidence(found)),
        )


class EngineCheck(_Reports, frozen=True, kw_only=True):
    """A failed check of the engine, known or unknown, that nothing else confirms or refutes."""

    # False if the clients check the same, so that the title cannot name the engine's check.
    only_engine: ClassVar[bool] = True

    @property
    def code(self) -> str:
        return f"{ENGINE_PREFIX}{self.law}"

    def words(self, found: Finding) -> Words:
        said = f"the engine's own check ({self.law}): " if self.only_engine else ""
        return Words(
            f"{said}{self.message}{per_event(found)}",
            evidence=tuple(self._evidence(found)),
        )


class EngineResidual(EngineCheck, frozen=True, kw_only=True):
    """The law ``residual``."""

    kind = "engine-residual"
    meaning = "A check of the engine found unaccounted slots."
    leads_to = "LEAK; INVARIANT for a negative number of slots"


class EngineWaitingHeld(EngineCheck, frozen=True, kw_only=True):
    """The law ``waiting-held``."""

    kind = "engine-waiting-held"
    meaning = "A check of the engine found slots or tree nodes held by waiting requests."
    leads_to = "LEAK"


class EngineInFlightAtIdle(EngineCheck, frozen=True, kw_only=True):
    """The law ``in-flight-at-idle``."""

    kind = "engine-in-flight-at-idle"
    meaning = "A check of the idle engine found slots held by requests."
    leads_to = "LEAK"


class EngineLockedAtIdle(EngineCheck, frozen=True, kw_only=True):
    """The law ``locked-at-idle``."""

    kind = "engine-locked-at-idle"
    meaning = "A check of the idle engine found locked tree nodes."
    leads_to = "LEAK"


class EngineAlias(EngineCheck, frozen=True, kw_only=True):
    """The law ``alias``."""

    kind = "engine-alias"
    meaning = "A check of the engine found a slot with two holders."


class EngineLedger(EngineCheck, frozen=True, kw_only=True):
    """The law ``ledger``."""

    kind = "engine-ledger"
    meaning = "The records of a holder and of the allocator disagree about who holds a slot."


class EngineTree(EngineCheck, frozen=True, kw_only=True):
    """The law ``tree``."""

    kind = "engine-tree"
    meaning = "A check of the engine found the prefix tree inconsistent."


class EngineOwnership(EngineCheck, frozen=True, kw_only=True):
    """The law ``ownership``."""

    kind = "engine-ownership"
    meaning = "An allocator refused a free or a transfer by someone who does not hold the slot."


class EngineLimit(EngineCheck, frozen=True, kw_only=True):
    """The law ``limit``."""

    kind = "engine-limit"
    meaning = (
        "A step of the engine is larger, or a request waits longer, than its configuration allows."
    )


class EnginePassedOver(EngineCheck, frozen=True, kw_only=True):
    """The law ``passed-over``."""

    kind = "engine-passed-over"
    meaning = "A request waits although the engine has room for it, and awaits no transfer."


class EngineTransfer(EngineCheck, frozen=True, kw_only=True):
    """The law ``transfer``."""

    kind = "engine-transfer"
    meaning = "A copy to or from the host failed; the engine continues without it."


class EngineEndedHeld(EngineCheck, frozen=True, kw_only=True):
    """The law ``ended-held``."""

    kind = "engine-ended-held"
    meaning = "A request that ended still holds slots, tree nodes or its session."
    leads_to = "LEAK"


class EngineUnanswered(EngineCheck, frozen=True, kw_only=True):
    """The law ``unanswered``."""

    kind = "engine-unanswered"
    only_engine = False
    meaning = (
        "Requests have no answer although the engine is idle, or its front end keeps entries of "
        "requests that the engine no longer has."
    )
    leads_to = "LEAK"
    advised = (
        "Find the path on which a request ends without an event for its client: a refusal, an "
        "abort, a time-out or the close of a session."
    )


class EngineAnswer(EngineCheck, frozen=True, kw_only=True):
    """The law ``answer``."""

    kind = "engine-answer"
    only_engine = False
    meaning = (
        "A client got other tokens than its request produced, other tokens' logprobs, an answer "
        "that ends too early or too late, one to a prompt of another length, or one that reuses "
        "what another tenant computed."
    )
    advised = (
        "Find where the request's prompt, its limit on tokens, its stop tokens or its tenant are "
        "stored, copied or replaced, and where its answer is cut off or handed to its client."
    )


class EngineUnknown(EngineCheck, frozen=True, kw_only=True):
    """The law ``unknown``."""

    kind = "engine-unknown"
    meaning = "The engine reported a failed check without naming it."


_CHECKS: Final = {check.kind: check for check in EngineCheck.__subclasses__()}


def violation_findings(facts: Facts, known: Sequence[Finding]) -> list[Finding]:
    """Return one finding per kind and pool of violation that no ``known`` finding covers."""
    grouped: dict[tuple[str, str], list[EngineViolation]] = {}
    for violation in facts.record.all_events(EngineViolation):
        key = violation_kind(violation), violation.pool
        grouped.setdefault(key, []).append(violation)
    findings: list[Finding] = []
    for (kind, pool), events in sorted(grouped.items()):
        if not (kind == WAITING_VIOLATION and pool) and not _is_covered(
            kind, pool, events[-1], known
        ):
            findings.append(_with_event(_violation(facts, kind, pool, events), known))
    return findings


def crash_findings(record: RunRecord) -> list[Finding]:
    """Return a finding on how the worker ended, if it ended abnormally."""
    crash = record.last_event(Crash)
    if crash is None:
        return []
    sought = record.last_event(CulpritsSought)
    found = CrashSearch() if sought is None else sought.so_far
    basis = Crashed(
        reason=crash.reason,
        detail=crash.detail,
        stderr=tuple(crash.stderr_tail[-_STDERR_LINES:]),
        stacks=crash.stacks,
        raised=_raised(crash.stderr_tail) if crash.reason in ("exit", "signal") else "",
        suspects=found.suspects,
        smallest=tuple(request.kind for request in found.smallest),
        file="" if sought is None else sought.file,
        target=record.manifest.model.name if record.manifest.target.kind == OBSERVED else "",
    )
    return [Finding(basis, VerdictKind.CRASHED, "worker", since_s=crash.t_s)]


def _raised(stderr: Sequence[str]) -> str:
    """Return the first error that ends a traceback in ``stderr``, and where it was raised.

    Later ones follow from it, such as those of processes that wait for the one that failed.  The
    place is the innermost one outside of torch, which raises what its caller got wrong.
    """
    place, is_own = "", False
    for line, after in pairwise(stderr):
        frame, error = _FRAME.match(line), _ERROR.match(after)
        if frame is None:
            place, is_own = "", False
            continue
        if "/torch/" not in line or not is_own:
            place, is_own = f"{frame[3]} ({frame[1]}:{frame[2]})", "/torch/" not in line
        if error is not None:
            return f"{error[1]} in {place}"
    return ""


def _is_covered(kind: str, pool: str, last: EngineViolation, known: Sequence[Finding]) -> bool:
    same = NegativeResidual if _counted_twice(kind, last) else _HELD.get(kind)
    found = (f.basis for f in known if same is not None and isinstance(f.basis, same))
    return any(pool in ("", basis.pool) for basis in found)


def _violation(facts: Facts, kind: str, pool: str, events: list[EngineViolation]) -> Finding:
    held = kind in _HELD_WITHOUT_POOL or (kind in _HELD and not _counted_twice(kind, events[-1]))
    contradicted = kind == _RESIDUAL and _contradicted(facts, pool, events[-1].t_s)
    of = FalseAlarm if contradicted else _CHECKS.get(f"engine-{kind}", EngineCheck)
    return Finding(
        of(
            law=kind,
            pool=pool,
            count=len(events),
            # Every report counts all requests without an answer; the last one counts most.
            message=events[-1 if of is EngineUnanswered else 0].message,
            last_slots=len(events[-1].slots),
            last_s=events[-1].t_s,
        ),
        VerdictKind.LEAK if held and not contradicted else VerdictKind.INVARIANT,
        pool_words(pool) if pool else _SUBJECTS.get(kind, "engine"),
        since_s=events[0].t_s,
    )


def _with_event(found: Finding, known: Sequence[Finding]) -> Finding:
    """Copy the driver of the front end's entries, which the check only counts, from ``known``."""
    if not isinstance(found.basis, EngineUnanswered):
        return found
    for one in known:
        if isinstance(one.basis, ContainerGrows) and one.basis.container == _FRONT_END:
            return replace(found, driver=one.driver, rates=one.rates, driven=one.driven)
    return found


def _counted_twice(kind: str, violation: EngineViolation) -> bool:
    """Whether the residual is negative: slots have two holders instead of none."""
    return kind == _RESIDUAL and violation.count < 0


def _contradicted(facts: Facts, pool: str, after_s: float) -> bool:
    """Whether the next idle checkpoint found nothing missing.

    The engine's check was then wrong, or the state recovered.  A check made at a checkpoint is
    compared with the counts of that checkpoint.
    """
    later = [at for at in facts.idle if at.t_s >= after_s and at.pools.get(pool)]
    return bool(later) and later[0].pool(pool, "residual") == 0
