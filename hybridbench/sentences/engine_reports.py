"""What the engine itself reported, in words: its own checks, its log, its end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from hybridbench.analysis.findings.engine_reports import Trouble
from hybridbench.analysis.findings.words import times
from hybridbench.analysis.reading import number, text, texts
from hybridbench.records.finding import Words
from hybridbench.records.verdict import Finding
from hybridbench.units import format_duration

_QUOTED_CHARS = 160
# The repr of bytes; its end may be cut off.
_BYTES: Final = re.compile(r"""\bb(?:'(?:\\.|[^'\\])*'?|"(?:\\.|[^"\\])*"?)""")
_CRASHES: Final[Mapping[str, str]] = {
    "exit": "the worker exited",
    "signal": "the worker was killed by a signal",
    "hang": "the worker made no step until the watchdog killed it",
    "oom": "the worker was OOM-killed",
}
_PROBLEMS: Final[Mapping[str, str]] = {
    Trouble.LEAK: "a leak",
    Trouble.DOUBLE_FREE: "a double free",
    Trouble.WATCHDOG: "a hang",
    Trouble.OUT_OF_MEMORY: "running out of memory",
}


def crash(found: Finding) -> Words:
    """How the worker ended."""
    how = _CRASHES.get(text(found.data, "reason"), "the worker ended")
    detail = _readable(text(found.data, "detail"))
    after = format_duration(found.since_s or 0.0)
    # A signal's detail names it, and is the whole sentence.
    said = f"{detail} after {after}" if detail.startswith("the worker was killed by SIG") else ""
    return Words(
        said or f"{how} after {after}{f': {detail}' if detail else ''}",
        evidence=tuple(f"stderr: {line}" for line in texts(found.data, "stderr")),
    )


def false_alarm(found: Finding) -> Words:
    """A check of the engine that the next idle checkpoint contradicts."""
    return Words(
        "the engine's check reported missing slots, but the next checkpoint accounts for all "
        f"({times(number(found.data, 'count'), 'time')})",
        evidence=tuple(_reports(found)),
    )


def violation(found: Finding) -> Words:
    """A check of the engine that nothing else decides."""
    kind = text(found.data, "kind")
    return Words(
        f"the engine's own check ({kind}): {text(found.data, 'message', kind)}",
        evidence=tuple(_reports(found)),
    )


def log(found: Finding) -> Words:
    """What a line of the log reports."""
    data = found.data
    first, *others = texts(data, "lines")
    seen = times(number(data, "count"), "line")
    return Words(
        f"the engine's log reports {_PROBLEMS[text(data, 'words')]}: {_quoted(first)}",
        evidence=(
            f"{seen}, first at {format_duration(found.since_s or 0.0)}, last at "
            f"{format_duration(number(data, 'last_s'))}",
            *(f"log: {_quoted(line)}" for line in others),
        ),
    )


def _reports(found: Finding) -> Iterable[str]:
    count = times(number(found.data, "count"), "time")
    yield f"{count}, first at {format_duration(found.since_s or 0.0)}"
    slots = number(found.data, "last_slots")
    if slots:
        at = format_duration(number(found.data, "last_s"))
        yield f"{slots:,.0f} slots in the last report, at {at}"


def _quoted(line: str) -> str:
    return f'"{_readable(line)}"'


def _readable(line: str) -> str:
    """``line`` on one line of a bounded length, without what only a program can read.

    A KeyError prints its key, and that of a prefix tree is the bytes of all its tokens.
    """
    bare = _BYTES.sub(
        lambda found: "b'...'" if "\\x" in found[0] else found[0], re.sub(r"\s+", " ", line)
    )
    return f"{bare[:_QUOTED_CHARS]}{'...' * (len(bare) > _QUOTED_CHARS)}"
