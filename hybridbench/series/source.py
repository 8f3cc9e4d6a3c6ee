"""The input file as every reader sees it: options, notes, and lines.

A time alone on a line applies to the lines below it.  Terminal output (colours, prompts, banners)
is dropped here; it holds no readings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hybridbench.analysis.findings import words
from hybridbench.foundation.errors import ConfigError, ErrorCode
from hybridbench.series.times import is_epoch, is_moment, names_time, parse_times

_BAD_SHARE = 0.01
# Colours, cursor movements, window titles and character sets.
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(\x07|\x1b\\)|\([0B]|[=>])")
# What psql's \watch prints above each table, perhaps after a title.
_OF_PSQL = re.compile(r"(?:.*\t)? *(\S[^\t]*) \(every \d[\d.]*s\)$")
# promtool tsdb dump writes the name of a metric as a label.
_OF_DUMP = re.compile(r'^\{__name__="([^"]+)"(?:, )?([^}]*)\}')
# The longest step between times; shorter than 4096 where the lines may be byte counts, whose steps
# are multiples of that.
_STEP_S_MAX, _STEP_S_MAX_AMONG_BYTES = 7 * 86400.0, 3600.0
# A time that a loop prints in a frame: === 2026-11-03 10:00:00 ===, ## time 10:00:00, [10:00:00].
_FRAMED = re.compile(
    r"(?:[=#>~*]+|[+-]{2,})\s*(?:(?:time(?:stamp)?|date)\b[:=]?\s*)?(?P<ruled>.*?)\s*[=#*<~+:-]*|"
    r"\[(?P<bracketed>[^][\",]+)\]|(?P<first>[\dA-Z].*):",
    re.I,
)
_TOP = re.compile(r"(?:top - )?(\d\d:\d\d:\d\d) up ")
_OF_TOP = re.compile(r"(([KMG]iB )?%?[^\W\d]\S*(\(s\))? ?):.*[,%]|%?Cpu\d+ ")
_END_OF_OBJECT = re.compile(r"((?=[{}\]]|\[\{).*[}\]])([^{}\[\]]+)$")
_PROMPT = re.compile(r"[\w.-]+@[\w.-]+(:\S*| \S+)?[#$%>] ?|PS [A-Z]:\\\S*>|\$ (?=[a-z./])")
_NO_DATA = re.compile(
    # First lines of sysstat and mprof, and messages of curl and the shell after a failed call.
    r"Linux \S+ \(.*\)\s+\S+|curl: \(\d+\)|(ba|z)?sh: |error:|Error from server|grep: |cat: |"
    r"[-=+|: ]+$|\.$|(real|user|sys)\s+\d+m[\d.]+s|CMDLINE |FUNC |\"sep=.|(RESET|SEP|END)$|"
    # What rabbitmqctl prints above each list.
    r"Timeout: [\d.]+ seconds \.\.\.$|Listing \w+ .*\.\.\.$|"
    # The end of a database's tables, and what MySQL prints between rows.
    r"\(?\d+ rows?(\)| affected\)| selected\.)$|\*+ \d+\. row \*+$|"
    # Around code in Markdown.
    r"```\w*$|"
    # What script(1) writes, and an interrupt.
    r"Script (started|done) on |\^C$|"
    # The head of BusyBox's top.
    r"Every [\d.]+s: |Mem: \d+K used, |CPU: +\d+% usr|Load average: "
)
# Times as they appear in cells, with or without spaces.
_CLOCK = r"\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?(?: [AP]M\b)?"
_TIME = (
    rf"(?:[A-Z][a-z]{{2}} ){{2}}[ \d]\d (?:\d{{4}} )?{_CLOCK}(?: [A-Z]{{3,5}})?(?: \d{{4}})?|"
    rf"\d{{4}}[-/]\d\d[-/]\d\d[ T]{_CLOCK}(?:Z| (?:UTC|Z)\b| ?[+-]\d\d:?\d\d\b)?|"
    rf"\d\d?(?P<mark>[./])\d\d?(?P=mark)\d{{4}},? {_CLOCK}|\d\d?:\d\d:\d\d(?: [AP]M\b)?|"
    rf"\d\d-[A-Z][a-z]{{2}}-\d{{4}} {_CLOCK}(?: [A-Z]{{3,4}})?|"
    rf"(?:\d\d-\d\d|[A-Z][a-z]{{2}} [ \d]\d) {_CLOCK}"
)
# Spaces inside a cell: in a time, an amount, or a dcgmi entity.
_INNER_BLANKS = re.compile(
    rf"\b(?:{_TIME})|\d+(?:[.,]\d+)? ?[A-Za-z]* / [\d.]+ ?[A-Za-z]*|"
    r"-- / --|\b\d+(?:[.,]\d+)? (?:(?:[kKMGT]i?)?B|[KMGT]o)\b|\d K$|^Control Group\b|"
    r"^\s*(?:GPU(?:-[IC]I)?|Switch|CPU) \d+\b"
)
_JOINED = "\x00"
_WIDE_BLANKS = re.compile(r"\s{2,}|\t")
COMMANDS = frozenset({"command", "cmd", "args", "comm", "process", "befehl"})


@dataclass(frozen=True)
class Source:
    """The input file: its name, what the caller said about it, and notes on it.

    ``time_column`` is ``NAME`` or ``NAME:UNIT``; ``interval_s`` is for a file without times.
    """

    name: str
    time_column: str | None = None
    interval_s: float | None = None
    notes: list[str] = field(default_factory=list)

    def wrong(self, what: str, line: int = 0, code: ErrorCode | None = None) -> ConfigError:
        """Build an error that names the file, and the line if given."""
        place = f"{self.name}:{line}" if line else self.name
        return ConfigError(f"{place}: {what}", code=code)

    def leave_out(
        self, bad: Sequence[Line], lines: Sequence[Line], why: str, refusal: str, few: int = 3
    ) -> None:
        """Note that ``bad`` lines out of ``lines`` are skipped: at most one in 100, or ``few``.

        Raises:
            ConfigError: too many lines are bad, so this is another kind of file.
        """
        if bad and bad[0] is lines[-1]:
            self.notes.append(f"the last line ({bad[0].number}) is cut short: left out")
        elif len(bad) > max(few, _BAD_SHARE * len(lines)) or len(bad) == len(lines) > 0:
            raise self.wrong(refusal, bad[0].number)
        elif bad:
            said = words.times(len(bad), "line")
            self.notes.append(f"{said} left out, {why}, first {bad[0].number}")


@dataclass(frozen=True)
class Line:
    """A non-empty line: its number from 1, its text, and the time printed above it, if any."""

    number: int
    text: str
    at: str = ""


def lines_of(text: str) -> tuple[list[Line], list[int]]:
    """Return lines that may hold readings, and the numbers of those that a shell or tool added."""
    every = enumerate(_parted(_ESCAPES.sub("", text).splitlines()), 1)
    raw = [(number, _untitled(line.rstrip())) for number, line in every if line.strip()]
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


def _parted(lines: Sequence[str]) -> Iterator[str]:
    """Yield ``lines``; split off a time after an object that curl printed without a line end."""
    for line in lines:
        match = _END_OF_OBJECT.match(line)
        yield from match.groups() if match and is_moment(match[2]) else (line,)


def _untitled(line: str) -> str:
    """Return a line without what psql's watch, memcached, promtool or a drawn table adds."""
    if line.startswith("STAT "):
        return line[5:].replace(" ", ": ", 1)
    if line.startswith("|") and line.endswith("|"):
        return line[1:-1].strip()
    framed = _FRAMED.fullmatch(line.strip())
    if framed is not None:
        time = framed["ruled"] or framed["bracketed"] or framed["first"] or ""
        if is_moment(time):
            return time
    line = _OF_DUMP.sub(r"\1{\2}", line)
    match = _OF_PSQL.match(line) if line.endswith("s)") else None
    return line if match is None else match[1]


def blank_cells(text: str) -> list[str]:
    """Split a line at spaces, except inside a time or an amount."""
    text = _INNER_BLANKS.sub(lambda match: match[0].replace(" ", _JOINED), text)
    # FreeBSD's vmstat -z puts commas behind its numbers as well.
    return [cell.replace(_JOINED, " ").rstrip(",") for cell in text.split()]


def wide(text: str) -> list[str]:
    """Split a line at two or more spaces."""
    return [cell.strip() for cell in _WIDE_BLANKS.split(text.strip().lstrip("# "))]


def fitted(text: str, row: list[str], names: Sequence[str]) -> list[str]:
    """Fit a row's cells to ``names``; commands and docker's cells may contain spaces."""
    spare = len(row) - len(names)
    of_text = [i for i, name in enumerate(names) if name.lower() in COMMANDS]
    if spare == -1 or (of_text and all(map(names_time, names[:2]))):
        # A day and a time of day are one cell, below `Date Time`.
        parts = (cell.split(" ", 1) if is_moment(cell) else [cell] for cell in row)
        row = [part for two in parts for part in two]
        spare = len(row) - len(names)
    if spare <= 0:
        return row
    apart = wide(text)
    if len(apart) == len(names) > 1:
        return apart
    if not of_text:
        return row
    at = of_text[0]
    return [*row[:at], " ".join(row[at : at + spare + 1]), *row[at + spare + 1 :]]


def _moments(lines: Sequence[str]) -> list[str]:
    """Return, for each line, its text if it is only a time, else an empty string."""
    of_top = [match[1] if (match := _TOP.match(line)) else "" for line in lines]
    if not lines or not (of_top[0] or is_moment(lines[0])):
        # A time must come before the first reading; otherwise these are readings.
        return of_top
    # Where the times are dates, numbers as large as epoch times are byte counts.
    dated = not (of_top[0] or is_epoch(lines[0]))
    each = zip(of_top, lines, strict=True)
    found = [
        top or line * (is_moment(line) and not (dated and is_epoch(line))) for top, line in each
    ]
    step_s_max = _STEP_S_MAX
    if all(found):
        # Byte counts may look like epoch seconds: then either every second line is a time, or none.
        found = [text if index % 2 == 0 else "" for index, text in enumerate(found)]
        step_s_max = _STEP_S_MAX_AMONG_BYTES
    epochs = [text for text in found if is_epoch(text)]
    if epochs and not all(0 < step < step_s_max for step in np.diff(parse_times(epochs).t_s)):
        return [""] * len(lines)
    return found
