"""Files with series, whoever wrote them: which format one is in, and its columns.

CSV (nvidia-smi's, too), TSV and columns of blanks (psrecord, ps, pidstat), mprof's ``MEM`` lines,
JSON lines (flat, or the samples of a run), a list of JSON objects, a Prometheus range export, what
is printed anew for each sample (``screens.py``); each also compressed with gzip, or on standard
input.
"""

from __future__ import annotations

import codecs
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybridbench.errors import ConfigError, ErrorCode, UsageError
from hybridbench.foreign import (
    GIB,
    LINE_BYTES_MAX,
    MIB,
    WALL_S_MAX,
    ForeignDataError,
    json_value,
    longest_line,
    read_piped,
    read_stream,
    unpacked,
)
from hybridbench.series.json_formats import json_document, json_lines
from hybridbench.series.screens import screens_of, stamped
from hybridbench.series.table import RawColumn, RawTable, TableOptions, delimited, mprof
from hybridbench.units import format_duration

STDIN = "-"
_GZIP_MAGIC = b"\x1f\x8b"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BYTES_MAX = GIB // 2
_LOG = re.compile(r"\[?\(?.*(\b(INFO|DEBUG|WARNING)\b|\]\[info\]|(Decode|Prefill) batch)")
_MACHINE = {"vmstat": re.compile(r"procs -+"), "free": re.compile(r"total +used +free +shared")}


@dataclass(frozen=True)
class SeriesFile:
    """The columns of one file.  Columns of one ``group`` share their times."""

    source: str
    columns: tuple[RawColumn, ...]
    notes: tuple[str, ...]

    def names(self) -> tuple[str, ...]:
        """Names of all columns, in the file's order."""
        return tuple(column.name for column in self.columns)


def read_series(
    path: str, time_column: str | None = None, interval_s: float | None = None
) -> SeriesFile:
    """The series in the file ``path``; ``-`` is standard input.

    Args:
        path: a file, or ``-``.
        time_column: the one with the times, where its name does not say so.
        interval_s: between two samples of a file without times.

    Raises:
        ConfigError: it cannot be read or holds no series; says file, line and what to do.
        UsageError: ``interval_s`` for a file that has times.
    """
    source = "<stdin>" if path == STDIN else path
    data = _bytes(path, source)
    _refuse_long_lines(data, source)
    # PowerShell's > writes UTF-16.
    encoding = "utf-16" if data[:2] in _UTF16 else "utf-8-sig"
    text = data.decode(encoding, "replace")
    if not text.strip():
        raise ConfigError(f"{source}: the file is empty; give a file with a time column.")
    table = _table(source, text, TableOptions(source, time_column, interval_s))
    if interval_s is not None and table.has_times:
        raise UsageError(
            f"{format_duration(interval_s)}: {source} already has times; leave the option out.",
            code=ErrorCode.OPTION_CONFLICT,
            option="--interval",
        )
    for column in table.columns:
        _refuse_far_times(column, source)
    if not any(c.is_text or np.isfinite(c.value).sum() >= 2 for c in table.columns):
        raise ConfigError(
            f"{source}: no column has two numbers apart from the time; is it the right file?"
        )
    return SeriesFile(source, tuple(table.columns), tuple(table.notes))


def _table(source: str, text: str, options: TableOptions) -> RawTable:
    start = text.lstrip()
    if start.startswith(("MEM ", "CMDLINE ")):
        return mprof(text, options)
    screens = screens_of(start)
    if screens is not None:
        return screens(text.splitlines(), options)
    _refuse_known(source, start.split("\n", 1)[0])
    if not start.startswith(("{", "[")):
        return delimited(stamped(text), options)
    # One document, or one object a line?  A document is all there is; a line is not.
    first_line = start.split("\n", 1)[0].strip()
    try:
        first = json_value(first_line)
    except ForeignDataError:
        first = None
    if isinstance(first, dict) and "status" not in first and "data" not in first:
        return json_lines(text, options)
    try:
        document = json_value(text)
    except ForeignDataError as error:
        if isinstance(first, dict):
            return json_lines(text, options)
        raise ConfigError(
            f"{source}: starts like JSON and cannot be read: it {error}; give JSON lines or an "
            "export of /api/v1/query_range."
        ) from error
    return json_document(document, options)


def _bytes(path: str, source: str) -> bytes:
    if path != STDIN and Path(path).is_dir():
        raise ConfigError(
            f"{source}: is a directory without manifest.json: not a run; give files.",
            code=ErrorCode.NOT_FOUND,
        )
    try:
        if path == STDIN:
            data = read_stream(sys.stdin.buffer, _BYTES_MAX)
        else:
            data = read_piped(Path(path), _BYTES_MAX)
        return unpacked(data, _BYTES_MAX) if data[:2] == _GZIP_MAGIC else data
    except ForeignDataError as error:
        raise ConfigError(f"{source}: {error}; keep the columns that matter.") from error
    except FileNotFoundError as error:
        raise ConfigError(f"{source}: no such file.", code=ErrorCode.NOT_FOUND) from error
    except EOFError as error:
        raise ConfigError(
            f"{source}: the compressed file is cut short; unpack what there is with "
            "`gzip -dc FILE | hybridbench judge -`.",
            code=ErrorCode.DAMAGED,
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{source}: cannot be read: {error.strerror or error}.", code=ErrorCode.NOT_READABLE
        ) from error


def _refuse_far_times(column: RawColumn, source: str) -> None:
    far = ~(np.abs(column.t_s) <= WALL_S_MAX)
    if far.any():
        raise ConfigError(
            f"{source}: series {column.name} has a time of {column.t_s[far][0]:g} s, which is not "
            "a time; remove that row."
        )


def _refuse_known(source: str, first_line: str) -> None:
    """Refuse what is no series of a process, and say what to record in its place."""
    for tool, pattern in _MACHINE.items():
        if pattern.match(first_line):
            raise ConfigError(
                f"{source}: the output of {tool} is the memory of the whole machine and its page "
                "cache; record a process: `while sleep 10; do ps -o rss= -p PID; done`."
            )
    if not first_line.startswith("{") and _LOG.match(first_line):
        raise ConfigError(
            f"{source}: is a log; record the server's metrics: `while sleep 10; do curl -s "
            "URL/metrics; done`, and pass --interval 10s."
        )


def _refuse_long_lines(data: bytes, source: str) -> None:
    # An export of Prometheus is one line, whatever its length; a table is not.
    if data.lstrip()[:1] in (b"{", b"["):
        return
    number, length = longest_line(data)
    if length > LINE_BYTES_MAX:
        raise ConfigError(
            f"{source}:{number}: a line of {length / MIB:.0f} MiB; a table has one line per "
            "sample: is it the right file?"
        )
