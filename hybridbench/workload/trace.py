"""Recorded traffic as a stream of rows: Mooncake JSONL and Azure CSV, read line by line.

Both carry lengths and times, no text.  Mooncake also says which 512-token blocks are equal: one
hash id per block, and equal ids at equal positions are a shared prefix.
Source: Mooncake (FAST 2025) and the Azure LLM inference dataset 2023, their published formats.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, TextIO

from hybridbench.errors import ConfigError, ErrorCode
from hybridbench.foreign import LINE_BYTES_MAX, MIB, ForeignDataError, json_value, open_regular

BLOCK_TOKENS: Final = 512  # tokens per hash id in a Mooncake trace
_AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
# Two thousand times the longest context that is served.
_TOKENS_MAX: Final = 2**31 - 1
_WHOLE: Final = re.compile(r"-?\d{1,18}")
_SHOWN_CHARS: Final = 60
_MOONCAKE_KEYS: Final = ("timestamp", "input_length", "output_length", "hash_ids")


class TraceFormat(StrEnum):
    """The formats we read."""

    MOONCAKE = "mooncake-jsonl"
    AZURE = "azure-csv"


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request: seconds after the first row, lengths in tokens, unscaled."""

    line: int
    arrival_s: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


class TraceFile:
    """A trace on disk.  Reading holds one line at a time."""

    def __init__(self, path: Path) -> None:
        """Open once to recognise the format by what the first line holds.

        Raises:
            ConfigError: if the file cannot be read or is of neither format.
        """
        self.path = path
        self.format = self._recognise()

    def rows(self) -> Iterator[TraceRow]:
        """The rows from the beginning.

        A time before that of the row above is taken as that time: some recorders write a few rows
        out of order.

        Raises:
            ConfigError: with file and line, at the first row that is malformed.
        """
        latest_s = 0.0
        empty = True
        with self._open() as lines:
            raw = self._azure(lines) if self.format is TraceFormat.AZURE else self._mooncake(lines)
            for row in raw:
                empty = False
                latest_s = max(latest_s, row.arrival_s)
                yield row if row.arrival_s == latest_s else _at(row, latest_s)
        if empty:
            raise ConfigError(f"{self.path}: the trace has no rows.")

    def _open(self) -> TextIO:
        try:
            return io.TextIOWrapper(open_regular(self.path), encoding="utf-8-sig", newline="")
        except ForeignDataError as error:
            raise ConfigError(
                f"{self.path}: the trace {error}; give a file.", code=ErrorCode.NOT_READABLE
            ) from error
        except OSError as error:
            reason = error.strerror or "unreadable"
            raise ConfigError(
                f"{self.path}: the trace cannot be read: {reason}.", code=ErrorCode.NOT_READABLE
            ) from error

    def _recognise(self) -> TraceFormat:
        with self._open() as lines:
            try:
                first = lines.readline(100_000)
            except UnicodeDecodeError as error:
                raise ConfigError(f"{self.path}: not a text file; {_FORMATS}.") from error
        if first.startswith("{"):
            return TraceFormat.MOONCAKE
        if first.strip().split(",")[:1] == ["TIMESTAMP"]:
            return TraceFormat.AZURE
        what = "the trace is empty" if not first.strip() else "this is no trace we know"
        raise ConfigError(f"{self.path}:1: {what}; {_FORMATS}.")

    def _mooncake(self, lines: TextIO) -> Iterator[TraceRow]:
        zero_ms: float | None = None
        for number, line in _numbered(lines, self.path):
            if not line.strip():
                continue
            place = f"{self.path}:{number}"
            record = _json_record(line, place)
            time_ms = _number(record["timestamp"], "timestamp", place)
            input_length = _length(record["input_length"], "input_length", place, least=1)
            output_length = _length(record["output_length"], "output_length", place, least=0)
            hash_ids = _hash_ids(record["hash_ids"], input_length, place)
            zero_ms = time_ms if zero_ms is None else zero_ms
            arrival_s = (time_ms - zero_ms) / 1000.0
            yield TraceRow(number, arrival_s, input_length, output_length, hash_ids)

    def _azure(self, lines: TextIO) -> Iterator[TraceRow]:
        zero: datetime | None = None
        columns: list[int] = []
        for number, line in _numbered(lines, self.path):
            place = f"{self.path}:{number}"
            cells = _cells(line, place)
            if number == 1:
                columns = _columns(cells, place)
            elif cells:
                if len(cells) <= max(columns):
                    raise ConfigError(
                        f"{place}: {len(cells)} cells; a row has {', '.join(_AZURE_COLUMNS)}."
                    )
                time, context, generated = (cells[column] for column in columns)
                stamp = _timestamp(time, place)
                zero = stamp if zero is None else zero
                yield TraceRow(
                    number,
                    (stamp - zero).total_seconds(),
                    _length(_whole(context), "ContextTokens", place, least=1),
                    _length(_whole(generated), "GeneratedTokens", place, least=0),
                    (),
                )


_FORMATS: Final = (
    "write Mooncake JSONL (one object a line) or Azure CSV "
    "(TIMESTAMP,ContextTokens,GeneratedTokens)"
)


def _numbered(lines: TextIO, path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    while True:
        number += 1
        try:
            line = lines.readline(LINE_BYTES_MAX + 1)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}:{number}: not text in UTF-8.") from error
        if not line:
            return
        if len(line) > LINE_BYTES_MAX:
            raise ConfigError(
                f"{path}:{number}: a line of more than {LINE_BYTES_MAX // MIB} MiB; a row is one "
                "request."
            )
        yield number, line


def _at(row: TraceRow, arrival_s: float) -> TraceRow:
    return TraceRow(row.line, arrival_s, row.input_length, row.output_length, row.hash_ids)


def _cells(line: str, place: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise ConfigError(f"{place}: is no row of a table: {error}.") from error


def _json_record(line: str, place: str) -> dict[str, object]:
    try:
        record = json_value(line)
    except ForeignDataError as error:
        raise ConfigError(f"{place}: {error}.") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{place}: not an object with {', '.join(_MOONCAKE_KEYS)}.")
    for key in _MOONCAKE_KEYS:
        if key not in record:
            raise ConfigError(f"{place}: {key} is missing; a row has {', '.join(_MOONCAKE_KEYS)}.")
    return record


def _number(value: object, name: str, place: str) -> float:
    # The double comparison also refuses NaN, which compares with nothing.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ConfigError(f"{place}: {name} is {_excerpt(value)}; it must be a number, 0 or more.")
    return float(value)


def _length(value: object, name: str, place: str, *, least: int) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(value, int) or not whole or value < least:
        raise ConfigError(
            f"{place}: {name} is {_excerpt(value)}; it must be a whole number, {least} or more."
        )
    if value > _TOKENS_MAX:
        raise ConfigError(f"{place}: {name} is {value}; no request has more than {_TOKENS_MAX}.")
    return value


def _hash_ids(value: object, input_length: int, place: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ConfigError(f"{place}: hash_ids must be a list of whole numbers.")
    blocks = -(-input_length // BLOCK_TOKENS)
    if len(value) != blocks:
        raise ConfigError(
            f"{place}: {len(value)} hash_ids for {input_length} tokens; "
            f"one per {BLOCK_TOKENS} makes {blocks}."
        )
    return tuple(value)


def _columns(cells: list[str], place: str) -> list[int]:
    names = [cell.strip() for cell in cells]
    for name in _AZURE_COLUMNS:
        if name not in names:
            raise ConfigError(f"{place}: column {name} is missing; {_FORMATS}.")
    return [names.index(name) for name in _AZURE_COLUMNS]


def _whole(text: str) -> object:
    stripped = text.strip()
    return int(stripped) if _WHOLE.fullmatch(stripped) else text


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _timestamp(text: str, place: str) -> datetime:
    # Seven decimals in the published files, one more than Python reads in every version.
    head, _, fraction = text.strip().partition(".")
    try:
        stamp = datetime.fromisoformat(head)
        micros = int(fraction[:6].ljust(6, "0")) if fraction else 0
        return stamp.replace(microsecond=micros, tzinfo=stamp.tzinfo or UTC)
    except ValueError as error:
        raise ConfigError(
            f"{place}: TIMESTAMP is {_excerpt(text)}; write 2023-11-16 18:17:03.9799600."
        ) from error
