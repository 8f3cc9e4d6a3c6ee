"""What the engine itself said was wrong: its violations, its death."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hybridbench.analysis.exact.checkpoints import HELD, LOCKS, NEGATIVE, RESIDUAL
from hybridbench.analysis.exact.requests import WAITING_VIOLATIONS as WAITING
from hybridbench.analysis.exact.requests import violation_kind
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.pools import pool_at, pool_words
from hybridbench.analysis.reading import number, text
from hybridbench.analysis.record import RunEvent, RunRecord
from hybridbench.records.verdict import Finding, VerdictKind
from hybridbench.units import format_duration

# Kinds that say "something is held that should not be"; every other kind is a contradiction.
_HELD = {
    "residual": RESIDUAL,
    "lock": LOCKS,
    "locked-at-idle": LOCKS,
    "in-flight-at-idle": HELD,
}

_CRASHES = {
    "exit": "the worker exited",
    "signal": "the worker was killed by a signal",
    "hang": "the worker made no step until the watchdog ended it",
    "oom": "the worker was killed for want of memory",
}
_STDERR_LINES = 5


def violation_findings(facts: Facts, known: Sequence[Finding]) -> list[Finding]:
    """One finding for each kind and pool of violation that is not told by a ``known`` one."""
    grouped: dict[tuple[str, str], list[RunEvent]] = {}
    for event in facts.record.all_events("engine_violation"):
        key = violation_kind(event), text(event.data, "pool")
        grouped.setdefault(key, []).append(event)
    findings: list[Finding] = []
    for (kind, pool), events in sorted(grouped.items()):
        if not (kind in WAITING and pool) and not _told(kind, pool, events[-1], known):
            findings.append(_violation(facts, kind, pool, events))
    return findings


def crash_findings(record: RunRecord) -> list[Finding]:
    """At most one finding: how the worker ended, if it did not end well."""
    event = record.last_event("crash") or _gone(record)
    if event is None:
        return []
    reason = text(event.data, "reason", "exit")
    detail = text(event.data, "detail")
    tail = _stderr(event)[-_STDERR_LINES:]
    how = _CRASHES.get(reason, "the worker ended")
    return [
        Finding(
            kind="crash",
            verdict=VerdictKind.CRASHED,
            subject="worker",
            title=f"{how} after {format_duration(event.t_s)}" + (f": {detail}" if detail else ""),
            evidence=tuple(f"stderr: {line}" for line in tail),
            since_s=event.t_s,
            data={"reason": reason},
        )
    ]


def _stderr(event: RunEvent) -> list[str]:
    """The worker's last words, kept as lines or as one text."""
    tail = event.data.get("stderr_tail")
    if isinstance(tail, Sequence) and not isinstance(tail, str):
        return [str(line) for line in tail]
    return text(event.data, "stderr_tail").strip().splitlines()


def _gone(record: RunRecord) -> RunEvent | None:
    """The worker's unexplained absence; after ``done`` it is meant to go."""
    gone = record.last_event("worker_gone")
    done = any(text(e.data, "name") == "done" for e in record.all_events("phase"))
    return None if gone is None or done else gone


def _told(kind: str, pool: str, last: RunEvent, known: Sequence[Finding]) -> bool:
    same = NEGATIVE if _counted_twice(kind, last) else _HELD.get(kind)
    return any(f.kind == same and (not pool or f.data.get("pool", pool) == pool) for f in known)


def _violation(facts: Facts, kind: str, pool: str, events: list[RunEvent]) -> Finding:
    held = kind in WAITING or (kind in _HELD and not _counted_twice(kind, events[-1]))
    contradicted = kind == RESIDUAL and _contradicted(facts, pool, events[-1].t_s)
    return Finding(
        kind="false-alarm" if contradicted else f"engine-{kind}",
        verdict=VerdictKind.LEAK if held and not contradicted else VerdictKind.INVARIANT,
        subject=pool_words(pool) if pool else "engine",
        title=_title(kind, events, contradicted=contradicted),
        evidence=tuple(_quotes(events)),
        since_s=events[0].t_s,
        data={"kind": kind, "pool": pool, "count": len(events)},
    )


def _counted_twice(kind: str, event: RunEvent) -> bool:
    """Whether a residual is negative: slots with two holders, not with none.

    A report without a count is taken by its slots: the engine names those that are missing.
    """
    if kind != RESIDUAL:
        return False
    count = number(event.data, "count")
    return count < 0 if count else "slots" in event.data and not _slots(event)


def _slots(event: RunEvent) -> float:
    """How many slots a report names; it may give their list or their number."""
    slots = event.data.get("slots")
    if isinstance(slots, Sequence) and not isinstance(slots, str):
        return float(len(slots))
    return number(event.data, "slots")


def _contradicted(facts: Facts, pool: str, after_s: float) -> bool:
    """Whether the next rest found nothing missing: then the engine's check was wrong, or the state
    healed.  A check that was made at a rest is held against the counts of that very moment.
    """
    later = [e for e in facts.idle if e.t_s >= after_s and pool_at(e, pool)]
    return bool(later) and number(pool_at(later[0], pool), "residual") == 0


def _title(kind: str, events: list[RunEvent], *, contradicted: bool) -> str:
    if contradicted:
        return (
            "the engine's check reported missing slots, but the next checkpoint accounts for all "
            f"({len(events)} time{'s' * (len(events) > 1)})"
        )
    message = text(events[0].data, "message", kind)
    return f"the engine's own check ({kind}): {message}"


def _quotes(events: list[RunEvent]) -> Iterable[str]:
    first, last = events[0], events[-1]
    yield f"{len(events)} time{'s' * (len(events) > 1)}, first at {format_duration(first.t_s)}"
    slots = _slots(last)
    if slots:
        yield f"{slots:.0f} slots in the last report, at {format_duration(last.t_s)}"
