"""What the engine itself reported: violations of its own checks, its log, its death.

The phrases looked for in a log are those of real engines: SGLang's pool checks and watchdogs, the
collective watchdog of torch, vLLM's and TensorRT-LLM's hang reports, llama.cpp's and CUDA's
refusals, the kernel's and the C library's last words.  An engine may be wrong about itself: what
its log says of a leak is a contradiction (INVARIANT) until an exact finding agrees with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.pools import pool_words
from hybridbench.analysis.findings.requests import WAITING_VIOLATION, violation_kind
from hybridbench.analysis.record import RunRecord
from hybridbench.records.codes import FindingCode
from hybridbench.records.events import Crash, EngineLog, EngineViolation
from hybridbench.records.verdict import Finding, VerdictKind, untyped

# Kinds that say "something is held that should not be"; every other kind is a contradiction.
_HELD = {
    "residual": FindingCode.RESIDUAL,
    "locked-at-idle": FindingCode.LOCKS_AT_IDLE,
    "in-flight-at-idle": FindingCode.HELD_AT_IDLE,
}

_STDERR_LINES = 5

_LINE_CHARS = 2000  # of a line that are looked at
_QUOTED_CHARS = 160  # behind a match that may deny it
_QUOTES = 3


def violation_findings(facts: Facts, known: Sequence[Finding]) -> list[Finding]:
    """One finding for each kind and pool of violation that is not told by a ``known`` one."""
    grouped: dict[tuple[str, str], list[EngineViolation]] = {}
    for violation in facts.record.all_events(EngineViolation):
        key = violation_kind(violation), violation.pool
        grouped.setdefault(key, []).append(violation)
    findings: list[Finding] = []
    for (kind, pool), events in sorted(grouped.items()):
        if not (kind == WAITING_VIOLATION and pool) and not _told(kind, pool, events[-1], known):
            findings.append(_violation(facts, kind, pool, events))
    return findings


def crash_findings(record: RunRecord) -> list[Finding]:
    """At most one finding: how the worker ended, if it did not end well."""
    crash = record.last_event(Crash)
    if crash is None:
        return []
    return [
        untyped(
            kind=FindingCode.CRASH,
            verdict=VerdictKind.CRASHED,
            subject="worker",
            since_s=crash.t_s,
            data={
                "reason": crash.reason,
                "detail": crash.detail,
                "stderr": list(crash.stderr_tail[-_STDERR_LINES:]),
            },
        )
    ]


def _told(kind: str, pool: str, last: EngineViolation, known: Sequence[Finding]) -> bool:
    same = FindingCode.NEGATIVE_RESIDUAL if _counted_twice(kind, last) else _HELD.get(kind)
    return any(f.kind == same and (not pool or f.data.get("pool", pool) == pool) for f in known)


def _violation(facts: Facts, kind: str, pool: str, events: list[EngineViolation]) -> Finding:
    held = kind == WAITING_VIOLATION or (kind in _HELD and not _counted_twice(kind, events[-1]))
    contradicted = kind == FindingCode.RESIDUAL and _contradicted(facts, pool, events[-1].t_s)
    return untyped(
        kind=FindingCode.FALSE_ALARM if contradicted else f"engine-{kind}",
        verdict=VerdictKind.LEAK if held and not contradicted else VerdictKind.INVARIANT,
        subject=pool_words(pool) if pool else "engine",
        since_s=events[0].t_s,
        data={
            "kind": kind,
            "pool": pool,
            "count": len(events),
            "message": events[0].message,
            "last_slots": len(events[-1].slots),
            "last_s": events[-1].t_s,
        },
    )


def _counted_twice(kind: str, violation: EngineViolation) -> bool:
    """Whether a residual is negative: slots with two holders, not with none."""
    return kind == FindingCode.RESIDUAL and violation.count < 0


def _contradicted(facts: Facts, pool: str, after_s: float) -> bool:
    """Whether the next rest found nothing missing: then the engine's check was wrong, or the state
    healed.  A check that was made at a rest is held against the counts of that very moment.
    """
    later = [at for at in facts.idle if at.t_s >= after_s and at.pools.get(pool)]
    return bool(later) and later[0].pool(pool, "residual") == 0


class Trouble(StrEnum):
    """What a line speaks of."""

    LEAK = "leak"
    DOUBLE_FREE = "double free"
    WATCHDOG = "watchdog"
    OUT_OF_MEMORY = "out of memory"


_PATTERNS: tuple[tuple[Trouble, re.Pattern[str]], ...] = (
    (
        Trouble.DOUBLE_FREE,
        re.compile(
            r"\bdouble[ -]free\b|\bfreed? twice\b|\bfree\(\): invalid|munmap_chunk\(\): invalid|"
            r"\bmalloc\(\): (corrupted|unsorted|invalid)|corrupted (double-linked list|size vs)",
            re.I,
        ),
    ),
    (
        Trouble.LEAK,
        re.compile(
            r"\b(memory|pool|kv|cache|slot|page|block)s?[ _](memory )?leaks?( was| were)? "
            r"(detected|found)|\bdetected (a )?(memory|pool|slot|page|block) leaks?\b|"
            r"\bdetected memory leaks\b|\bpossible (memory )?leak detected\b|"
            r"\b\d+ (pages|slots|blocks|tokens) (were |was |have been )?leaked\b|"
            r"\bleaked_\w*(pages|slots|blocks|rows)\s*[=:]\s*[{\[(]\s*\d",
            re.I,
        ),
    ),
    (
        Trouble.WATCHDOG,
        re.compile(
            r"\bwatchdog (timeout\b|timed out|triggered|expired|fired|caught|detected)|"
            r"\bhang detected\b|\bdetected (a )?(hang|stall|deadlock)\b|"
            r"no available shared memory broadcast block",
            re.I,
        ),
    ),
    (
        Trouble.OUT_OF_MEMORY,
        re.compile(
            r"\bout of memory\b|\bOutOfMemoryError\b|\bMemoryError\b|std::bad_alloc|"
            r"\bkilled process \d+|\boom-kill(er)?\b|\bcannot allocate memory\b|"
            r"\bfailed to allocate (\w+ )?(buffer|memory|tensor)",
            re.I,
        ),
    ),
)
_HARMLESS = re.compile(
    # Denied, or only feared.
    r"\b(no|not|without|zero|0|never|any) (\w+ ){0,3}(leaks?|leaked|out of memory|hangs?|double)\b|"
    r"\b(may|might|could|can|would|will|to|avoid|prevents?|against|risk of|if|in case of|"
    r"when|unless|until|reduces?) (\w+ ){0,4}(leaks?|out of memory|OutOfMemoryError|double|oom)\b|"
    # A setting, a test, a message about the check itself.
    r"\b(leak|watchdog|hang)s?[ _-]?(check|checker|detector|detection|timeout)s?:? "
    r"(is |was |set |=|enabled|disabled|passed|ok\b|started|off\b|on\b)|"
    r"\bleaks?( were)? (detected|found)\s*[:=]\s*(0|none|false|no)\b|"
    r"\b(enabl|disabl|start|runn|check)ing (\w+ ){0,3}(leak|watchdog|hang)|"
    # Line of source in a traceback, warning of an interpreter at its end, our own words.
    r"^\s*File \"|^\s*(raise|assert|def|class|#|msg ?=|return|if|except)\b|ResourceWarning|"
    r"\bleaked (semaphore|shared_memory|folder)|^\s*hybridbench\b|\bhybridbench:",
    re.I,
)


def trouble_in(line: str) -> Trouble | None:
    """What ``line`` says went wrong; None for a harmless one."""
    head = line[:_LINE_CHARS]
    for words, pattern in _PATTERNS:
        match = pattern.search(head)
        if match is not None:
            return None if _HARMLESS.search(head[: match.end() + _QUOTED_CHARS]) else words
    return None


def template_of(line: str) -> str:
    """``line`` less all that differs from one saying to the next: times, counts, addresses."""
    bare = re.sub(r"0x[0-9a-f]+|\d+", "#", line[:_LINE_CHARS].strip(), flags=re.I)
    return re.sub(r"\s+", " ", bare)


@dataclass(frozen=True)
class _Message:
    """One line, in all its repetitions."""

    words: Trouble
    line: str
    count: int
    first_s: float
    last_s: float


def log_findings(record: RunRecord, known: Sequence[Finding]) -> list[Finding]:
    """One finding for each thing that the log speaks of, with its text.

    ``known`` are the exact findings: a leak that they show too is one.
    """
    grouped: dict[Trouble, list[_Message]] = {}
    for saying in _messages(record):
        grouped.setdefault(saying.words, []).append(saying)
    crashed = any(finding.verdict is VerdictKind.CRASHED for finding in known)
    leaks = any(finding.verdict is VerdictKind.LEAK for finding in known)
    return [
        _log_finding(words, sayings, _log_verdict(words, crashed=crashed, leaks=leaks))
        for words, sayings in sorted(grouped.items())
    ]


def _log_verdict(words: Trouble, *, crashed: bool, leaks: bool) -> VerdictKind:
    if words is Trouble.LEAK:
        return VerdictKind.LEAK if leaks else VerdictKind.INVARIANT
    if words is Trouble.DOUBLE_FREE:
        return VerdictKind.INVARIANT
    # It hung or ran dry and lived: its own check raised an alarm that nothing else bears out.
    return VerdictKind.CRASHED if crashed else VerdictKind.INVARIANT


def _messages(record: RunRecord) -> Iterable[_Message]:
    found: dict[str, _Message] = {}
    for said in record.all_events(EngineLog):
        words = trouble_in(said.text)
        if words is None:
            continue
        key = template_of(said.text)
        so_far = found.get(key) or _Message(words, said.text.strip(), 0, said.t_s, said.t_s)
        # A resumed run counts anew.
        found[key] = replace(so_far, count=max(said.count, so_far.count), last_s=said.t_s)
    return found.values()


def _log_finding(words: Trouble, sayings: Sequence[_Message], verdict: VerdictKind) -> Finding:
    first = min(sayings, key=lambda saying: saying.first_s)
    count = sum(saying.count for saying in sayings)
    last_s = max(saying.last_s for saying in sayings)
    others = (saying.line for saying in sayings[1 : 1 + _QUOTES])
    return untyped(
        kind=FindingCode.ENGINE_SAID,
        verdict=verdict,
        subject="engine",
        since_s=first.first_s,
        data={
            "words": words.value,
            "count": count,
            "lines": [line[:_LINE_CHARS] for line in (first.line, *others)],
            "last_s": last_s,
        },
    )
