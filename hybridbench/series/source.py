"""The file that is read, as every reader has it: what was asked and is noted of it, and its lines.

A line has the time that stood on a line of its own above it.  What a terminal adds (colours,
prompts, banners) is left out here; it holds no reading.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hybridbench.foundation.errors import ConfigError, ErrorCode, UsageError
from hybridbench.foundation.units import format_duration
from hybridbench.series.times import is_epoch, is_moment, parse_times

_BAD_SHARE = 0.01
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# A call an hour at least, where numbers below are as large; they are multiples of 4096.
_STEP_S_MAX, _STEP_S_MAX_AMONG_BYTES = 7 * 86400.0, 3600.0
_TOP = re.compile(r"top - (\d\d:\d\d:\d\d) up ")
_OF_TOP = re.compile(r"(Tasks|Threads|%?Cpu\S*|([KMG]iB )?(Mem|Swap) ?):.*[,%]|%?Cpu\d+ ")
_PROMPT = re.compile(r"[\w.-]+@[\w.-]+(:\S*| \S+)?[#$%>] ?|PS [A-Z]:\\\S*>|\$ (?=[a-z./])")
_NO_DATA = re.compile(
    # First lines of sysstat and mprof, and what curl and the shell say of a call that failed.
    r"Linux \S+ \(.*\)\s+\S+|curl: \(\d+\)|(ba|z)?sh: |error:|Error from server|grep: |cat: |"
    r"[-=+ ]+$|(real|user|sys)\s+\d+m[\d.]+s|CMDLINE |FUNC ",
)
# Times as cells have them, with blanks or without.
_TIME = (
    r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d (?:\d{4} )?\d\d?:\d\d:\d\d(?: [AP]M)?(?: [A-Z]{3,5})?"
    r"(?: \d{4})?|"
    r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?"
    r"(?:Z| (?:UTC|Z)\b| ?[+-]\d\d:?\d\d\b)?|"
    r"\d\d?(?P<mark>[./])\d\d?(?P=mark)\d{4},? \d\d?:\d\d(?::\d\d)?(?: [AP]M\b)?|"
    r"\d\d?:\d\d:\d\d(?: [AP]M\b)?"
)
# Blanks within a cell: of a time, an amount, an entity of dcgmi.
_INNER_BLANKS = re.compile(
    rf"\b(?:{_TIME})|\d+(?:[.,]\d+)? ?[A-Za-z]* / [\d.]+ ?[A-Za-z]*|"
    r"\b\d+(?:[.,]\d+)? (?:[kKMGT]i?)?B\b|^\s*(?:GPU(?:-[IC]I)?|Switch|CPU) \d+\b"
)
_JOINED = "\x00"
_WIDE_BLANKS = re.compile(r"\s{2,}|\t")
_COMMANDS = frozenset({"command", "cmd", "args", "comm", "process"})


@dataclass(frozen=True)
class Source:
    """The file that is read: its name, what the caller said about it, and what is noted of it.

    ``time_column`` is ``NAME`` or ``NAME:UNIT``; ``interval_s`` is for a file that has no times.
    """

    name: str
    time_column: str | None = None
    interval_s: float | None = None
    notes: list[str] = field(default_factory=list)

    def wrong(self, what: str, line: int = 0, code: ErrorCode | None = None) -> ConfigError:
        """The error that names the file, and the line where there is one."""
        place = f"{self.name}:{line}" if line else self.name
        return ConfigError(f"{place}: {what}", code=code)

    def leave_out(
        self, bad: Sequence[int], lines: Sequence[int], why: str, refusal: str, few: int = 3
    ) -> None:
        """Note that the lines ``bad`` of ``lines`` are not read: one in 100 at most, or ``few``.

        Raises:
            ConfigError: they are more than a few, so that this is another kind of file.
        """
        if bad and bad[0] == lines[-1]:
            self.notes.append(f"the last line ({bad[0]}) is cut short: left out")
        elif len(bad) > max(few, _BAD_SHARE * len(lines)) or len(bad) == len(lines) > 0:
            raise self.wrong(refusal, bad[0])
        elif bad:
            self.notes.append(f"{len(bad)} lines left out, {why}, first {bad[0]}")

    def check_has_times(self) -> None:
        """Refuse an interval between samples, which would be another time.

        Raises:
            UsageError: one was given.
        """
        if self.interval_s is not None:
            raise UsageError(
                f"{format_duration(self.interval_s)}: {self.name} already has times; leave the "
                "option out.",
                code=ErrorCode.OPTION_CONFLICT,
                option="--interval",
            )


@dataclass(frozen=True)
class Line:
    """A line with something on it: its number from 1, and the time above it as written, if any."""

    number: int
    text: str
    at: str = ""


def lines_of(text: str) -> tuple[list[Line], list[int]]:
    """The lines that may hold readings, and the numbers of those that a shell or tool added."""
    every = enumerate(_ESCAPES.sub("", text).splitlines(), 1)
    raw = [(number, line.rstrip()) for number, line in every if line.strip()]
    gone = {n: True for n, line in raw if _PROMPT.match(line) or _NO_DATA.match(line)}
    raw = [(number, line) for number, line in raw if number not in gone]
    moments = _moments([line.strip() for _, line in raw])
    lines, at, top = list[Line](), "", False
    for (number, line), moment in zip(raw, moments, strict=True):
        if moment:
            at, top = moment, line.startswith("top - ")
        elif not (top and _OF_TOP.match(line.lstrip())):
            lines.append(Line(number, line, at))
    return lines, list(gone)


def blank_cells(text: str) -> list[str]:
    """The cells of a line that blanks part; those within a time or an amount part nothing."""
    text = _INNER_BLANKS.sub(lambda match: match[0].replace(" ", _JOINED), text)
    return [cell.replace(_JOINED, " ") for cell in text.split()]


def wide(text: str) -> list[str]:
    """The cells of a line that two or more blanks part."""
    return [cell.strip() for cell in _WIDE_BLANKS.split(text.strip().lstrip("# "))]


def fitted(text: str, row: list[str], names: Sequence[str]) -> list[str]:
    """The cells of a row; a command, and the cells of docker, may have blanks of their own."""
    spare = len(row) - len(names)
    if spare <= 0:
        return row
    apart = wide(text)
    if len(apart) == len(names) > 1:
        return apart
    of_text = [i for i, name in enumerate(names) if name.lower() in _COMMANDS]
    if not of_text:
        return row
    at = of_text[0]
    return [*row[:at], " ".join(row[at : at + spare + 1]), *row[at + spare + 1 :]]


def _moments(lines: Sequence[str]) -> list[str]:
    """For each line the time that it is, as text; empty for a line that is more or none."""
    of_top = [match[1] if (match := _TOP.match(line)) else "" for line in lines]
    if not lines or not (of_top[0] or is_moment(lines[0])):
        # A time stands before the first reading, or these are readings.
        return of_top
    found = [top or line * is_moment(line) for top, line in zip(of_top, lines, strict=True)]
    step_s_max = _STEP_S_MAX
    if all(found):
        # Bytes may look like seconds since 1970: then every second line is a time, or none is.
        found = [text if index % 2 == 0 else "" for index, text in enumerate(found)]
        step_s_max = _STEP_S_MAX_AMONG_BYTES
    epochs = [text for text in found if is_epoch(text)]
    if epochs and not all(0 < step < step_s_max for step in np.diff(parse_times(epochs).t_s)):
        return [""] * len(lines)
    return found
