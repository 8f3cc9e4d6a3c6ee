"""Files with series, whoever wrote them: which shape one has, and its columns.

A shape has one reader: JSON (``json_shapes.py``), blocks of names and numbers (``pairs.py``), a
table (``table.py``).  What has none of these is refused in a sentence (``refusals.py``).
"""

from __future__ import annotations

import codecs
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
    longest_line,
    read_piped,
    read_stream,
    unpacked,
)
from hybridbench.series.grid import RawColumn, RawTable, TableOptions
from hybridbench.series.json_shapes import json_table
from hybridbench.series.lines import lines_of
from hybridbench.series.pairs import are_pairs, pairs
from hybridbench.series.refusals import NO_SHAPE, what_it_is
from hybridbench.series.table import table
from hybridbench.units import format_duration

STDIN = "-"
_GZIP_MAGIC = b"\x1f\x8b"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BYTES_MAX = GIB // 2


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
        time_column: the one with the times, ``NAME`` or ``NAME:UNIT``, where no name says so.
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
    return series_of(source, data.decode(encoding, "replace"), time_column, interval_s)


def series_of(
    source: str, text: str, time_column: str | None = None, interval_s: float | None = None
) -> SeriesFile:
    """The series in ``text``, which came from ``source``; arguments and errors as above."""
    if not text.strip():
        raise ConfigError(f"{source}: the file is empty; give a file with a time column.")
    if "\0" in text:
        raise ConfigError(f"{source}: is not text; give the numbers as CSV or JSON.")
    found = _table(text, TableOptions(source, time_column, interval_s))
    if interval_s is not None and found.has_times:
        raise UsageError(
            f"{format_duration(interval_s)}: {source} already has times; leave the option out.",
            code=ErrorCode.OPTION_CONFLICT,
            option="--interval",
        )
    for column in found.columns:
        _refuse_far_times(column, source)
    if not any(c.is_text or np.isfinite(c.value).sum() >= 2 for c in found.columns):
        raise ConfigError(
            f"{source}: no column has two numbers apart from the time; is it the right file?"
        )
    return SeriesFile(source, tuple(found.columns), tuple(found.notes))


def _table(text: str, options: TableOptions) -> RawTable:
    notes: list[str] = []
    lines, left_out = lines_of(text)
    if not lines:
        raise ConfigError(f"{options.source}: {NO_SHAPE}.")
    # A line of words before each object is named as such.
    is_json = lines[0].text.lstrip()[0] in "{[" or lines[1 % len(lines)].text.startswith("{")
    what = what_it_is(lines, is_json=is_json)
    if what:
        raise ConfigError(f"{options.source}: {what}.")
    if is_json:
        return json_table(text, lines, options, notes)
    if left_out:
        notes.append(
            f"{len(left_out)} lines of the shell or of a heading left out, first {left_out[0]}"
        )
    if are_pairs(lines):
        return pairs(lines, options, notes)
    return table(lines, options, notes)


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
