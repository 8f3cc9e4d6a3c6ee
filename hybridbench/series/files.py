"""Read a file of series from any program: detect its shape and return its columns.

Each shape has one reader: JSON (``json_shapes.py``), blocks of names and numbers (``pairs.py``), or
a table (``table.py``).  All return tables of text (``grid.py``), and one pass finds the times, the
owners and the numbers in them.  Any other shape is refused in one sentence (``refusals.py``).
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hybridbench.analysis.findings import words
from hybridbench.foundation.errors import ConfigError, ErrorCode
from hybridbench.foundation.foreign import (
    GIB,
    LINE_BYTES_MAX,
    MIB,
    ForeignDataError,
    TooLargeError,
    longest_line,
    read_piped,
    read_stream,
    unpacked,
)
from hybridbench.series.grid import Grid, RawColumn, table_of
from hybridbench.series.json_shapes import json_tables
from hybridbench.series.pairs import are_fields, are_pairs, fields, pairs
from hybridbench.series.refusals import AS_CSV, NO_SHAPE, what_it_is
from hybridbench.series.source import Source, lines_of
from hybridbench.series.table import table
from hybridbench.series.timeline import make_timeline

STDIN = "-"
_GZIP_MAGIC = b"\x1f\x8b"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BYTES_MAX = GIB // 2

_BINARY = re.compile(r"[\x01-\x08\x0e-\x1a\x1c-\x1f]")
_IN_BRACKETS = re.compile(r"\[[^\[\]{}\",]+\]\s*[^\s,\]]")


@dataclass(frozen=True)
class SeriesFile:
    """The columns of one file.  Columns with the same ``group`` share their times."""

    source: str
    columns: tuple[RawColumn, ...]
    notes: tuple[str, ...]

    def names(self) -> tuple[str, ...]:
        """Return the names of all columns, in the file's order."""
        return tuple(column.name for column in self.columns)


def read_series(
    path: str, time_column: str | None = None, interval_s: float | None = None
) -> SeriesFile:
    """Read the series in the file ``path``; ``-`` is standard input.

    Args:
        path: a file, or ``-``.
        time_column: the column that holds the times, as ``NAME`` or ``NAME:UNIT``, if its name does
            not show it.
        interval_s: time between two samples, for a file without times.

    Raises:
        ConfigError: the file cannot be read or holds no series; the message gives the file, the
            line and what to do.
        UsageError: ``interval_s`` was given for a file that has times.
    """
    source = Source("<stdin>" if path == STDIN else path, time_column, interval_s)
    data = _bytes(path, source)
    _refuse_long_lines(data, source)
    # PowerShell's > writes UTF-16.
    encoding = "utf-16" if data[:2] in _UTF16 else "utf-8-sig"
    return series_of(source, data.decode(encoding, "replace"))


def series_of(source: Source, text: str) -> SeriesFile:
    """Read the series in ``text``, which came from ``source``; raises as ``read_series`` does."""
    if not text.strip():
        raise source.wrong("the file is empty; give a file with a time column.")
    if "\0" in text:
        # After a power failure, a file system may pad a file with NUL bytes.
        text = text.replace("\0", "")
        if _BINARY.search(text) or not text.strip():
            raise source.wrong("is not text; give the numbers as CSV or JSON.")
        source.notes.append("NUL bytes removed")
    columns = _columns(_grids(text, source), source)
    lines = {
        group: make_timeline(one.t_s, source, absolute=one.absolute)
        for group, one in {column.group: column for column in columns}.items()
    }
    if not any(c.is_text or np.isfinite(c.value).sum() >= 2 for c in columns):
        raise source.wrong(f"no column but the time has two numbers or more; {AS_CSV}.")
    risen = []
    for column in columns:
        line = lines[column.group]
        value = column.value[line.rows]
        risen.append(replace(column, t_s=line.t_s, value=value, starts_s=line.starts_s))
    return SeriesFile(source.name, tuple(risen), tuple(source.notes))


def _columns(grids: Sequence[Grid], source: Source) -> list[RawColumn]:
    columns: list[RawColumn] = []
    for grid in grids:
        group = 1 + max((column.group for column in columns), default=-1)
        try:
            table = table_of(grid, source)
        except ConfigError:
            # The processes of a machine may be too many to read beside its own memory.
            if not columns:
                raise
            source.notes.append(f"lists are not read: {grid.before.rstrip('.')}")
        else:
            columns += [replace(column, group=group + column.group) for column in table]
    return columns


def _grids(text: str, source: Source) -> list[Grid]:
    lines, left_out = lines_of(text)
    if not lines:
        raise source.wrong(f"{NO_SHAPE}.")
    # Each object may follow a line of text, which is its name.
    start = lines[0].text.lstrip()
    is_json = start[0] in "{[" or lines[1 % len(lines)].text.startswith("{")
    # A time in brackets starts a log line, not JSON.
    is_json = is_json and not _IN_BRACKETS.match(start)
    if are_fields(lines):
        return [fields(lines, source)]
    what = what_it_is(lines, is_json=is_json)
    if what:
        raise source.wrong(f"{what}.")
    if is_json:
        return json_tables(lines, source)
    if left_out:
        said = words.times(len(left_out), "line")
        source.notes.append(f"{said} from a shell or a tool skipped, first line {left_out[0]}")
    if are_pairs(lines):
        return [pairs(lines, source)]
    return [table(lines, source)]


def _bytes(path: str, source: Source) -> bytes:
    if path != STDIN and Path(path).is_dir():
        what = "is a directory without manifest.json: not a run; give files."
        raise source.wrong(what, code=ErrorCode.NOT_FOUND)
    try:
        if path == STDIN:
            data = read_stream(sys.stdin.buffer, _BYTES_MAX)
        else:
            data = read_piped(Path(path), _BYTES_MAX)
        return unpacked(data, _BYTES_MAX) if data[:2] == _GZIP_MAGIC else data
    except TooLargeError as error:
        raise source.wrong(f"{error}; keep the columns that matter.") from error
    except ForeignDataError as error:
        raise source.wrong(f"{error}; give the numbers as CSV or JSON.") from error
    except FileNotFoundError as error:
        raise source.wrong("no such file.", code=ErrorCode.NOT_FOUND) from error
    except EOFError as error:
        what = (
            "the compressed file is cut short; unpack what there is with "
            "`gzip -dc FILE | hybridbench judge -`."
        )
        raise source.wrong(what, code=ErrorCode.DAMAGED) from error
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}."
        raise source.wrong(what, code=ErrorCode.NOT_READABLE) from error


def _refuse_long_lines(data: bytes, source: Source) -> None:
    # A Prometheus export is one line of any length; a table is not.
    if data.lstrip()[:1] in (b"{", b"["):
        return
    number, length = longest_line(data)
    if length > LINE_BYTES_MAX:
        raise source.wrong(
            f"a line of {length / MIB:.0f} MiB; a table has one line per sample: is it the right "
            "file?",
            number,
        )
