"""Trouble that an engine logs about itself: a leak, a double free, a hang, memory exhaustion.

The patterns match messages of real engines: SGLang's pool checks and watchdogs, torch's collective
watchdog, the hang reports of vLLM and TensorRT-LLM, allocation failures in llama.cpp and CUDA, and
fatal messages of the kernel and the C library.  An engine's log may be wrong: a leak that it
reports is a contradiction (INVARIANT) until an exact finding agrees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import msgspec

from hybridbench.analysis.findings.words import times
from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.units import format_duration
from hybridbench.records.events import EngineLog
from hybridbench.records.finding import Basis, Finding, VerdictKind, Words

_LINE_CHARS = 2000  # characters of a line that are examined
_QUOTED_CHARS = 160  # searched after a match for a denial; also the maximum length of a quote
_QUOTES = 3
# Only these words of a recognised line may be stored, with its matched phrase and the numbers that
# follow them.  The rest of the line may be a prompt or a key.
_KNOWN_WORDS: Final = re.compile(
    r"a|allocate|allocated|allocation|allocator|and|anon-rss|at|available|available_size|"
    r"batch|block|blocks|buffer|bytes|cache|capacity|caught|collective|corrupted|cuda|decode|"
    r"detected|device|double|duplicate|error|evictable|evictable_size|expected|fatal|file-rss|"
    r"fired|for|found|free|freed|full|gib|gpu|hang|has|held|hip|host|in|int8|invalid|is|kb|"
    r"kernel|kib|killed|kv|leak|leaked|leaks|lost|mamba|max_total_num_tokens|mem|memory|mib|"
    r"no|of|on|operation|out|page|pages|pointer|pool|pools|prefill|process|protected|"
    r"protected_size|rank|req|req_to_token_pool|requests|reserved|residual|running|scheduler|"
    r"seconds|self|session_held|session_held_tokens|size|slot|slots|swa|the|timed|timeout|to|"
    r"token|token_to_kv_pool_allocator|tokens|total|total-vm|total_size|tried|twice|uncached|"
    r"use-after-free|used|valueerror|waiting|warning|was|watchdog|watchdog_timeout|were",
    re.I,
)
# Words after which a number is not stored.
_BETWEEN: Final = re.compile("a|and|at|for|has|in|is|no|of|on|the|to|was|were", re.I)
_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"
_TOKENS: Final = re.compile(
    r"\s*(?:([\[(]*[A-Za-z_][\w-]*)|(\d[\d,.]*(?:\s?(?:[kKMGT]i?B|bytes|seconds|s|duplicate|pages|slots|blocks|tokens)\b)?(?![\w-]))|\S)"
)
_SIGNS: Final = frozenset("=:,.!()[]{}/%+-#")
_DIGITS_MAX: Final = 15
_POOLS: Final = re.compile(
    r"\[([\w-]+)\] total=(\d{1,15}), available=(\d{1,15}), ((?:[a-z_]+=-?\d{1,15}(?:, )?)*)"
)
# SGLang's names of pools, with the names used here; other pools have no name.
_POOL_NAMES: Final[Mapping[str, str]] = {
    "full": "kv",
    "swa": "swa",
    "mamba": "mamba",
    "mamba-active": "mamba",
    "mamba-int8": "mamba-int8",
}
# The repr of bytes, possibly truncated.
_BYTES: Final = re.compile(r"""\bb(?:'(?:\\.|[^'\\])*'?|"(?:\\.|[^"\\])*"?)""")


class Trouble(StrEnum):
    """The kind of trouble that a line reports."""

    LEAK = "leak"
    DOUBLE_FREE = "double free"
    WATCHDOG = "watchdog"
    OUT_OF_MEMORY = "out of memory"


_PROBLEMS: Final[Mapping[Trouble, str]] = {
    Trouble.LEAK: "a leak",
    Trouble.DOUBLE_FREE: "a double free",
    Trouble.WATCHDOG: "a hang",
    Trouble.OUT_OF_MEMORY: "running out of memory",
}

_PATTERNS: tuple[tuple[Trouble, re.Pattern[str]], ...] = (
    (
        Trouble.DOUBLE_FREE,
        re.compile(
            r"\bdouble[ -]free\b|\buse[ -]after[ -]free\b|\bfreed? twice\b|"
            r"\bfree\(\): invalid|munmap_chunk\(\): invalid|"
            r"\bmalloc\(\): (corrupted|unsorted|invalid)|corrupted (double-linked list|size vs)",
            re.I,
        ),
    ),
    (
        Trouble.LEAK,
        re.compile(
            r"\b(memory|mem|pool|kv|cache|slot|page|block)s?[ _](memory )?leaks?( was| were)? "
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
    # Negated or hypothetical.
    r"\b(no|not|without|zero|0|never|any) (\w+ ){0,3}(leaks?|leaked|out of memory|hangs?|double)\b|"
    r"\b(may|might|could|can|would|will|to|avoid|prevents?|against|risk of|if|in case of|"
    r"when|unless|until|reduces?) (\w+ ){0,4}(leaks?|out of memory|OutOfMemoryError|double|oom)\b|"
    # A setting, a test, a message about the check itself.
    r"\b(leak|watchdog|hang)s?[ _-]?(check|checker|detector|detection|timeout)s?:? "
    r"(is |was |set |=|enabled|disabled|passed|ok\b|started|off\b|on\b)|"
    r"\bleaks?( were)? (detected|found)\s*[:=]\s*(0|none|false|no)\b|"
    r"\b(enabl|disabl|start|runn|check)ing (\w+ ){0,3}(leak|watchdog|hang)|"
    # Source line in a traceback, interpreter warning at exit, our own messages.
    r"^\s*File \"|^\s*(raise|assert|def|class|#|msg ?=|return|if|except)\b|ResourceWarning|"
    r"\bleaked (semaphore|shared_memory|folder)|^\s*hybridbench\b|\bhybridbench:",
    re.I,
)


class EngineSaid(Basis, frozen=True, kw_only=True):
    """Log lines about one ``trouble``: ``count`` in all, the last at ``last_s``.

    ``lines`` has the first of them, without repetitions.
    """

    kind = "engine-said"
    meaning = "The engine's log reports a leak, a double free, a hang or memory exhaustion."
    leads_to = "INVARIANT; LEAK or CRASHED if another finding agrees"

    trouble: Trouble = msgspec.field(name="words")
    count: int
    lines: tuple[str, ...]
    last_s: float

    def words(self, found: Finding) -> Words:
        first, *others = (f'"{one_line(line)}"' for line in self.lines)
        seen = times(self.count, "line")
        return Words(
            f"the engine's log reports {_PROBLEMS[self.trouble]}: {first}",
            evidence=(
                f"{seen}, first at {format_duration(found.since_s or 0.0)}, last at "
                f"{format_duration(self.last_s)}",
                *(f"log: {line}" for line in others),
            ),
        )


def trouble_in(line: str) -> Trouble | None:
    """Return the trouble that ``line`` reports; None if it is harmless."""
    head = line[:_LINE_CHARS]
    for words, pattern in _PATTERNS:
        match = pattern.search(head)
        if match is not None:
            return None if _HARMLESS.search(head[: match.end() + _QUOTED_CHARS]) else words
    return None


def storable(line: str) -> str:
    """Return the storable parts of a recognised ``line``: its phrase, known words, their numbers.

    Everything else is dropped, because it may be a prompt or a key.
    """
    head = line[:_LINE_CHARS]
    found = next((m for _, pattern in _PATTERNS if (m := pattern.search(head))), None)
    start, end = (0, 0) if found is None else found.span()
    while end < len(head) and head[end - 1 : end + 1].isdigit():
        end += 1  # never cut a number
    phrase = f"{' ' * head[:start].endswith(' ')}{head[start:end]}"
    parts = [*_known(head[:start]), phrase, *_known(head[end:], after_word=True)]
    return re.sub(rf"(\s*{_ELLIPSIS})+", f" {_ELLIPSIS}", "".join(parts)).strip(f" {_ELLIPSIS}")


def _known(text: str, *, after_word: bool = False) -> Iterable[str]:
    sign_may_follow, number_may_follow = after_word, False
    for token in _TOKENS.finditer(text):
        word, number = token[1], token[2]
        if word is not None:
            bare = word.lstrip("[(")
            keep = sign_may_follow = _KNOWN_WORDS.fullmatch(bare) is not None
            number_may_follow = keep and _BETWEEN.fullmatch(bare) is None
        elif number is not None:
            has_unit = number[-1].isalpha()
            keep = len(number) <= _DIGITS_MAX and (number_may_follow or has_unit)
            number_may_follow = False
        else:
            keep = sign_may_follow and token[0].strip() in _SIGNS
        yield token[0] if keep else _ELLIPSIS


def goes_on_with_pools(line: str) -> bool:
    """Whether ``line`` may continue a report on several pools."""
    return _POOLS.match(line) is not None


def pools_in(line: str) -> Mapping[str, int]:
    """Return the number of missing slots of each pool in a line of an engine's check.

    The number is negative if slots are counted twice.  An unknown pool has an empty name.
    """
    missing = {}
    for name, total, available, others in _POOLS.findall(line[:_LINE_CHARS]):
        held = sum(int(value) for value in re.findall(r"=(-?\d+)", others))
        missing[_POOL_NAMES.get(name, "")] = int(total) - int(available) - held
    return missing


def template_of(line: str) -> str:
    """Return ``line`` without the parts that vary between repetitions: times, counts, addresses."""
    bare = re.sub(r"0x[0-9a-f]+|\d+", "#", line[:_LINE_CHARS].strip(), flags=re.I)
    return re.sub(r"\s+", " ", bare)


@dataclass(frozen=True)
class _Message:
    """A line with all its repetitions."""

    words: Trouble
    line: str
    count: int
    first_s: float
    last_s: float


def log_findings(record: RunRecord, known: Sequence[Finding]) -> list[Finding]:
    """Return one finding for each kind of trouble in the log, with its text.

    ``known`` has the exact findings: a logged leak is a LEAK if they confirm it.
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
    # If the engine survived a hang or exhaustion, nothing else confirms its own alarm.
    return VerdictKind.CRASHED if crashed else VerdictKind.INVARIANT


def _messages(record: RunRecord) -> Iterable[_Message]:
    found: dict[str, _Message] = {}
    for said in record.all_events(EngineLog):
        words = trouble_in(said.text)
        if words is None:
            continue
        key = template_of(said.text)
        so_far = found.get(key) or _Message(words, said.text.strip(), 0, said.t_s, said.t_s)
        # A resumed run restarts the count.
        found[key] = replace(so_far, count=max(said.count, so_far.count), last_s=said.t_s)
    return found.values()


def _log_finding(words: Trouble, sayings: Sequence[_Message], verdict: VerdictKind) -> Finding:
    first = min(sayings, key=lambda saying: saying.first_s)
    others = (saying.line for saying in sayings[1 : 1 + _QUOTES])
    return Finding(
        EngineSaid(
            trouble=words,
            count=sum(saying.count for saying in sayings),
            lines=tuple(line[:_LINE_CHARS] for line in (first.line, *others)),
            last_s=max(saying.last_s for saying in sayings),
        ),
        verdict,
        "engine",
        since_s=first.first_s,
    )


def one_line(line: str) -> str:
    """Shorten ``line`` to one line of limited length, without machine-readable bytes.

    A KeyError prints its key, which for a prefix tree is the bytes of all its tokens.
    """
    bare = _BYTES.sub(
        lambda found: "b'...'" if "\\x" in found[0] else found[0], re.sub(r"\s+", " ", line)
    )
    return f"{bare[:_QUOTED_CHARS]}{'...' * (len(bare) > _QUOTED_CHARS)}"
