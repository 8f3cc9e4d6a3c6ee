"""Read recorded traffic as a stream of rows: JSONL and CSV of four published datasets.

All contain lengths and times, but no text.  Mooncake and Qwen-Bailian also mark equal blocks of
tokens: one hash id per block, and equal ids at equal positions are a shared prefix.  Tools that
write Mooncake's format, such as AIPerf, may omit the ids, use blocks of another size, or give the
later turns of a session a delay after the previous turn instead of a time.  AIPerf sends such a
turn with all earlier turns and answers; here its prompt has only its own length.  GuideLLM writes
its times in seconds.  Rows without the keys of such a recorder may have either unit: the user is
asked, unless seconds would make the trace months long.
Source: the published formats of Mooncake (FAST 2025), the anonymised Qwen-Bailian usage traces, the
Azure LLM inference datasets 2023 and 2024, and BurstGPT.
"""

from __future__ import annotations

import csv
import gzip
import heapq
import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import IO, Final, TextIO, cast

from hybridbench.foundation.errors import ConfigError, ErrorCode
from hybridbench.foundation.foreign import (
    LINE_BYTES_MAX,
    MIB,
    ForeignDataError,
    json_value,
    open_regular,
)

BLOCK_TOKENS: Final = 512  # tokens per hash id in a Mooncake trace
# Block sizes of recorders that write this format with their engine's blocks.
_BLOCK_SIZES: Final = (BLOCK_TOKENS, 16, 32, 64, 128, 256)
_BLOCKS: Final = ", ".join(map(str, sorted(_BLOCK_SIZES)))
TIME_UNITS: Final = {"s": 1.0, "ms": 1000.0}  # units per second
# Requests per second in published traces; outside these limits, the unit may be wrong.  Mooncake's
# have at most 7, and 20 a second in ms may also be one in 50 s.
_PER_SECOND: Final = (0.01, 10.0)
_RATE_FROM: Final = 10  # rows needed to estimate a rate
_SPAN_S_MAX: Final = 60 * 86400.0  # no recording lasts longer
_OF_RECORDERS: Final = ("hash_ids", "session_id", "delay")  # keys of Mooncake's and AIPerf's, in ms
_LOOKED_AT: Final = 200
_BAILIAN_BLOCK_TOKENS: Final = 16
# Columns of time, prompt length and output length.
_AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT_COLUMNS: Final = ("Timestamp", "Request tokens", "Response tokens")
# Two thousand times the longest context in use.
_TOKENS_MAX: Final = 2**31 - 1
_MOMENT: Final = re.compile(r"(\d{4}-[^.,]*?)(?:[.,](\d+))?([+-]\d\d:?\d\d|Z)?", re.ASCII)
_WHOLE: Final = re.compile(r"-?\d{1,18}(\.0*)?")
# No request takes this long, so rows that are further out of order are an error.
_OUT_OF_ORDER_S: Final = 600.0
# The most rows held for sorting; with more of them within that time, the earliest is taken.
_HELD_MAX: Final = 100_000
# Seconds since 1970, up to the year 5138; larger numbers have a smaller unit.
_EPOCH_S: Final = (1e9, 1e11)
_SHOWN_CHARS: Final = 60
_HEAD_CHARS: Final = 2000  # read from an indented document, to recognise what it holds
_OTHER_FILES: Final = {
    b"PAR1": "a Parquet file; write its rows as CSV or JSONL",
    b"ARROW1": "an Arrow file; write its rows as CSV or JSONL",
    b"PK\x03\x04": "a ZIP archive or a spreadsheet; give the CSV or JSONL in it",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it, or use gzip",
    b"\xfd7zXZ": "compressed with xz; unpack it, or use gzip",
    b"BZh": "compressed with bzip2; unpack it, or use gzip",
    b"version https://git-lfs": "a Git LFS pointer; fetch the trace with git lfs pull",
}
_GZIP_MAGIC: Final = b"\x1f\x8b"
_DAMAGED: Final = (EOFError, gzip.BadGzipFile, zlib.error)
# Keys of text datasets without times, and their names.
_CONVERSATIONS: Final = {
    "conversations": "conversations (ShareGPT)",
    "conversation": "conversations (LMSYS, WildChat)",
    "messages": "conversations (messages)",
    "turns": "conversations (turns)",
    "text_input": "prompts (AIPerf)",
    "text": "prompts (AIPerf)",
    "prompt": "prompts",
}
_MOONCAKE_KEYS: Final = ("timestamp", "input_length", "output_length")


class TraceFormat(StrEnum):
    """The formats that can be read."""

    MOONCAKE = "mooncake-jsonl"
    BAILIAN = "bailian-jsonl"
    AZURE = "azure-csv"
    BURSTGPT = "burstgpt-csv"


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request: seconds after the first row, lengths in tokens, unscaled.

    Each of ``hash_ids`` represents ``block_tokens`` tokens of the prompt.  A last block that is not
    full may have no id, and a row may have no ids at all.
    """

    line: int
    arrival_s: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    block_tokens: int = BLOCK_TOKENS
    is_later_turn: bool = False  # its time is given as a delay after the previous turn


class TraceFile:
    """A trace on disk.  Reading keeps ten minutes of rows, and turns that are not due yet."""

    def __init__(self, path: Path, time_unit: str = "") -> None:
        """Open once to recognise the format by its first lines.

        Args:
            path: the file, possibly compressed with gzip.
            time_unit: unit of times that are numbers, ``s`` or ``ms``; empty for the format's
                default.

        Raises:
            ConfigError: if the file cannot be read or has no known format, or if the unit of its
                times is unclear, or is given although they are dates.
        """
        self.path = path
        self._delimiter = ","
        first = self._first_line()
        self.format = self._recognise(first)
        self.block_tokens = BLOCK_TOKENS
        self.time_unit = time_unit or ("ms" if self.format is TraceFormat.MOONCAKE else "s")
        if time_unit and self.format is TraceFormat.AZURE:
            raise ConfigError(
                f"{path}: its times are dates; --trace-time-unit is for times that are numbers.",
                code=ErrorCode.OPTION_CONFLICT,
            )
        first_records = self._first_records() if first.startswith("{") else []
        if not time_unit and self.format is not TraceFormat.AZURE:
            keys = {key for record in first_records for key in record}
            published = not keys.isdisjoint(_OF_RECORDERS)
            self._check_unit(self._first_times(first_records), is_published=published)
        if self.format is TraceFormat.MOONCAKE:
            self.block_tokens = _block_tokens(first_records)
        # Whether rows identify the tokens that they share with other rows.
        self.shares_prefixes = any(record.get("hash_ids") for record in first_records)

    def rows(self) -> Iterator[TraceRow]:
        """Yield the rows in order of time, without those that have no prompt.

        BurstGPT records failed requests with neither prompt nor answer.  Some recorders write a
        request when it ends, so rows up to 10 minutes out of order are sorted.

        Raises:
            ConfigError: a row is malformed, or more than 10 minutes earlier than a row above it;
                raised after the rows above, with file and line.
        """
        start_s = latest_s = 0.0
        empty = True
        for row in self._in_order():
            if empty:
                empty, start_s = False, min(row.arrival_s, 0.0)
            latest_s = max(latest_s, row.arrival_s - start_s)
            yield row if row.arrival_s == latest_s else replace(row, arrival_s=latest_s)
        if empty:
            raise ConfigError(f"{self.path}: the trace has no rows.")

    def _in_order(self) -> Iterator[TraceRow]:
        """Yield rows sorted within ten minutes, and later turns of sessions at their own times."""
        held: list[tuple[float, int, TraceRow]] = []
        latest_s = 0.0
        failure: ConfigError | None = None
        with self._open() as lines:
            try:
                for row in self._rows_of(lines):
                    if row.arrival_s < latest_s - _OUT_OF_ORDER_S and not row.is_later_turn:
                        raise ConfigError(  # noqa: TRY301 - reported after the rows above
                            f"{self.path}:{row.line}: a time {latest_s - row.arrival_s:.0f} s "
                            "before that of a row above; sort the rows by time."
                        )
                    if not row.is_later_turn:
                        latest_s = max(latest_s, row.arrival_s)
                    heapq.heappush(held, (row.arrival_s, row.line, row))
                    while held[0][0] < latest_s - _OUT_OF_ORDER_S or len(held) > _HELD_MAX:
                        yield heapq.heappop(held)[2]
            except ConfigError as error:
                failure = error
        while held:
            yield heapq.heappop(held)[2]
        if failure is not None:
            raise failure

    @contextmanager
    def _open(self) -> Iterator[TextIO]:
        try:
            file = open_regular(self.path)
        except ForeignDataError as error:
            raise ConfigError(
                f"{self.path}: the trace {error}; give a file.", code=ErrorCode.NOT_READABLE
            ) from error
        except OSError as error:
            reason = error.strerror or "unreadable"
            raise ConfigError(
                f"{self.path}: the trace cannot be read: {reason}.", code=ErrorCode.NOT_READABLE
            ) from error
        with file:
            start = file.read(32)
            file.seek(0)
            for magic, what in _OTHER_FILES.items():
                if start.startswith(magic):
                    raise ConfigError(f"{self.path}: the trace is {what}.")
            packed = start.startswith(_GZIP_MAGIC)
            raw = cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if packed else file
            with io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as lines:
                yield lines

    def _first_line(self) -> str:
        """Return the first non-blank line, stripped; if it is only a bracket, what follows too."""
        with self._open() as lines:
            try:
                while line := lines.readline(100_000):
                    if line.strip() in {"[", "{"}:
                        return line.strip() + "\n" + lines.read(_HEAD_CHARS)
                    if line.strip():
                        return line.strip()
            except UnicodeDecodeError as error:
                raise ConfigError(f"{self.path}: not text in UTF-8; {_FORMATS}.") from error
            except _DAMAGED as error:
                raise _damaged(self.path, error) from error
        raise ConfigError(f"{self.path}: the trace is empty; {_FORMATS}.")

    def _recognise(self, first: str) -> TraceFormat:
        for key, what in _CONVERSATIONS.items():
            if f'"{key}":' in first and '"input_length"' not in first:
                raise ConfigError(
                    f"{self.path}: holds {what}, not a time and lengths in tokens; {_FORMATS}, or "
                    "soak with the profile chat-churn, which makes conversations."
                )
        if first.startswith(("[", "{\n")):
            what = "a JSON array" if first.startswith("[") else "one JSON object"
            raise ConfigError(
                f"{self.path}: {what}; write one request per line (jq -c '.[]' does, for an "
                f"array), each with {', '.join(_MOONCAKE_KEYS)}."
            )
        if first.startswith("{"):
            return TraceFormat.BAILIAN if '"parent_chat_id"' in first else TraceFormat.MOONCAKE
        for self._delimiter in _DELIMITERS:
            cells = [cell.strip() for cell in _cells(first, str(self.path), self._delimiter)]
            for columns, found in _TABLES.items():
                if columns[0] in cells:
                    return found
        raise ConfigError(f"{self.path}: unknown trace format; {_FORMATS}.")

    def _rows_of(self, lines: TextIO) -> Iterator[TraceRow]:
        match self.format:
            case TraceFormat.MOONCAKE:
                return self._blocks(lines, self.block_tokens)
            case TraceFormat.BAILIAN:
                return self._blocks(lines, _BAILIAN_BLOCK_TOKENS)
            case TraceFormat.AZURE:
                return self._table(lines, _AZURE_COLUMNS, _moment_s)
            case TraceFormat.BURSTGPT:
                return self._table(lines, _BURSTGPT_COLUMNS, self._number_s)

    def _first_records(self) -> list[dict[str, object]]:
        """Return the first objects without malformed ones, which ``rows`` reports."""
        with self._open() as lines:
            records = []
            for number, line in islice(_numbered(lines, self.path), _LOOKED_AT):
                try:
                    records.append(_json_record(line, f"{self.path}:{number}"))
                except ConfigError:
                    continue
        return records

    def _first_times(self, records: Sequence[dict[str, object]]) -> list[float]:
        """Return the first times in the trace's unit; in a table, relative to its first row."""
        given = (record.get("timestamp") for record in records)
        times = [time for time in given if isinstance(time, int | float) and isfinite(time)]
        if self.format is TraceFormat.BURSTGPT:
            with self._open() as lines, suppress(ConfigError):
                times.extend(row.arrival_s for row in islice(self._rows_of(lines), _LOOKED_AT))
        return times

    def _check_unit(self, times: Sequence[float], *, is_published: bool) -> None:
        """Refuse times whose unit may not be the format's default.

        ``is_published`` means that rows have keys that only recorders in the default unit write.
        """
        span = max(times, default=0.0) - min(times, default=0.0)
        if not span:
            return
        rate, is_ms = len(times) / span, self.time_unit == "ms"
        low, high = (limit / TIME_UNITS[self.time_unit] for limit in _PER_SECOND)
        is_odd = len(times) >= _RATE_FROM and (rate < low or (is_ms and rate > high))
        of_epoch = _EPOCH_S[0] <= min(times) < _EPOCH_S[1]
        # Seconds of rare requests look like the ms of frequent ones, unless they span months.
        is_open = is_ms and not is_published and len(times) >= _RATE_FROM and span < _SPAN_S_MAX
        may_be_s = is_ms and (of_epoch or any(float(time) % 1 for time in times))
        if not (is_odd or is_open or may_be_s):
            return
        raise ConfigError(
            f"{self.path}: the unit of its times is unknown: in ms these are "
            f"{rate * TIME_UNITS['ms']:.3g} requests a second, in s {rate:.3g}; pass "
            "--trace-time-unit s or ms, and write times of any other unit in ms.",
            code=ErrorCode.OPTION_CONFLICT,
        )

    def _blocks(self, lines: TextIO, block_tokens: int) -> Iterator[TraceRow]:
        """Yield rows of JSONL; a row without ids shares no prefix."""
        per_second = TIME_UNITS[self.time_unit]
        zero: float | None = None
        latest: dict[object, float] = {}  # time of the latest turn by session, in the trace's unit
        for number, line in _numbered(lines, self.path):
            if not line.strip():
                continue
            place = f"{self.path}:{number}"
            record = _json_record(line, place)
            session = record.get("session_id")
            if isinstance(session, list | dict):
                raise ConfigError(f"{place}: session_id must be a string or a number.")
            is_later_turn = record.get("timestamp") is None
            if is_later_turn and session not in latest:
                raise ConfigError(
                    f"{place}: timestamp is missing; only a later turn of a session may have a "
                    f"delay in its place; a row has {', '.join(_MOONCAKE_KEYS)}."
                )
            if is_later_turn:
                # AIPerf writes delays in ms, whatever the unit of its times.
                delay_s = _number(record["delay"], "delay", place) / TIME_UNITS["ms"]
                time = latest[session] + delay_s * per_second
            else:
                time = self._time(record["timestamp"], "timestamp", place)
            if session is not None:
                latest[session] = time
            input_length = _length(record["input_length"], "input_length", place)
            output_length = _length(record["output_length"], "output_length", place)
            ids = record.get("hash_ids")
            hash_ids = () if ids is None else _hash_ids(ids, place)
            counts = _block_counts(input_length, block_tokens)
            # Some recorders write an empty list for a row that shares nothing.
            if hash_ids and len(hash_ids) not in counts:
                raise ConfigError(
                    f"{place}: {len(hash_ids)} hash_ids for {input_length} tokens; "
                    f"one per {block_tokens} makes {max(counts)}; blocks of {_BLOCKS} tokens are "
                    "read, and rows without hash_ids share no prefix."
                )
            zero = time if zero is None else zero
            arrival_s = (time - zero) / per_second
            if input_length:
                yield TraceRow(
                    *(number, arrival_s, input_length, output_length, hash_ids, block_tokens),
                    is_later_turn=is_later_turn,
                )

    def _table(
        self, lines: TextIO, names: tuple[str, str, str], seconds: Callable[[str, str], float]
    ) -> Iterator[TraceRow]:
        """Yield rows of a CSV, whose columns may be in any order."""
        zero: float | None = None
        columns: list[int] = []
        for number, line in _numbered(lines, self.path):
            place = f"{self.path}:{number}"
            cells = _cells(line, place, self._delimiter)
            if not line.strip():
                continue
            if not columns:
                columns = _columns(cells, names, place)
            else:
                if len(cells) <= max(columns):
                    raise ConfigError(f"{place}: {len(cells)} cells; a row has {', '.join(names)}.")
                time, prompt, answer = (cells[column] for column in columns)
                arrival = seconds(time, place)
                zero = arrival if zero is None else zero
                input_length = _length(_whole(prompt), names[1], place)
                output_length = _length(_whole(answer), names[2], place)
                if input_length:
                    yield TraceRow(number, arrival - zero, input_length, output_length, ())

    def _number_s(self, text: str, place: str) -> float:
        """Convert a cell of BurstGPT to seconds."""
        try:
            value: object = float(text)
        except ValueError:
            value = text
        return self._time(value, "Timestamp", place) / TIME_UNITS[self.time_unit]

    def _time(self, value: object, name: str, place: str) -> float:
        """Return a time in the trace's unit."""
        time = _number(value, name, place)
        if time / TIME_UNITS[self.time_unit] >= _EPOCH_S[1]:
            advice = "pass --trace-time-unit ms" if self.time_unit == "s" else "write it in ms"
            raise ConfigError(
                f"{place}: {name} is {_excerpt(value)}, thousands of years in {self.time_unit}; "
                f"{advice}.",
                code=ErrorCode.OPTION_CONFLICT,
            )
        return time


_DELIMITERS: Final = ",;\t"
_TABLES: Final = {
    _AZURE_COLUMNS: TraceFormat.AZURE,
    _BURSTGPT_COLUMNS: TraceFormat.BURSTGPT,
}
_FORMATS: Final = (
    "write JSONL of Mooncake or Qwen-Bailian (one object a line), Azure CSV "
    "(TIMESTAMP,ContextTokens,GeneratedTokens) or BurstGPT CSV "
    "(Timestamp,Request tokens,Response tokens)"
)


def _numbered(lines: TextIO, path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    while True:
        number += 1
        try:
            line = lines.readline(LINE_BYTES_MAX + 1)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}:{number}: not text in UTF-8.") from error
        except _DAMAGED as error:
            raise _damaged(path, error) from error
        if not line:
            return
        if len(line) > LINE_BYTES_MAX:
            raise ConfigError(
                f"{path}:{number}: a line of more than {LINE_BYTES_MAX // MIB} MiB; a row is one "
                "request."
            )
        yield number, line


def _damaged(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"{path}: the compressed trace is damaged or cut short ({error}); unpack what there is "
        "with `gzip -dc`.",
        code=ErrorCode.DAMAGED,
    )


def _block_tokens(records: Sequence[dict[str, object]]) -> int:
    """Return the tokens per hash id that fit most rows, preferring Mooncake's size."""
    pairs = [
        (length, len(ids))
        for record in records
        if isinstance(ids := record.get("hash_ids"), list)
        and isinstance(length := record.get("input_length"), int)
    ]
    fits = {
        size: sum(count in _block_counts(length, size) for length, count in pairs)
        for size in _BLOCK_SIZES
    }
    return max(_BLOCK_SIZES, key=lambda size: fits[size])


def _block_counts(tokens: int, size: int) -> tuple[int, int]:
    """Return a prompt's number of full blocks, which engines hash, and of all its blocks."""
    return tokens // size, -(-tokens // size)


def _cells(line: str, place: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error as error:
        raise ConfigError(f"{place}: is not a table row: {error}.") from error


def _json_record(line: str, place: str) -> dict[str, object]:
    try:
        record = json_value(line)
    except ForeignDataError as error:
        raise ConfigError(f"{place}: {error}.") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{place}: not an object with {', '.join(_MOONCAKE_KEYS)}.")
    for key in _MOONCAKE_KEYS:
        instead = record.get("delay") if key == "timestamp" else None
        if record.get(key) is None and instead is None:
            raise ConfigError(f"{place}: {key} is missing; a row has {', '.join(_MOONCAKE_KEYS)}.")
    return record


def _number(value: object, name: str, place: str) -> float:
    # The double comparison also refuses NaN, for which every comparison is false.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e21:
        raise ConfigError(f"{place}: {name} is {_excerpt(value)}; it must be a number, 0 or more.")
    return float(value)


def _length(value: object, name: str, place: str) -> int:
    # Tables with empty cells store their counts as 472.0.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(value, int) or not whole or value < 0:
        raise ConfigError(
            f"{place}: {name} is {_excerpt(value)}; it must be a whole number, 0 or more."
        )
    if value > _TOKENS_MAX:
        raise ConfigError(f"{place}: {name} is {value}; no request has more than {_TOKENS_MAX}.")
    return value


def _hash_ids(value: object, place: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ConfigError(
            f"{place}: hash_ids must be a list of whole numbers below 2**63; number the different "
            "blocks 0, 1, 2 and so on."
        )
    return tuple(value)


def _columns(cells: list[str], names: tuple[str, ...], place: str) -> list[int]:
    found = [cell.strip() for cell in cells]
    for name in names:
        if name not in found:
            raise ConfigError(f"{place}: column {name} is missing; {_FORMATS}.")
    return [found.index(name) for name in names]


def _whole(text: str) -> object:
    stripped = text.strip()
    return int(stripped.partition(".")[0]) if _WHOLE.fullmatch(stripped) else text


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _moment_s(text: str, place: str) -> float:
    """Convert a date and time to seconds."""
    # The files of 2023 have seven decimals, which not every Python version can read.
    found = _MOMENT.fullmatch(text.strip())
    head, fraction, offset = found.groups(default="") if found else ("", "", "")
    try:
        stamp = datetime.fromisoformat(head + offset)
    except ValueError as error:
        raise ConfigError(
            f"{place}: TIMESTAMP is {_excerpt(text)}; write 2023-11-16 18:17:03.9799600."
        ) from error
    stamp = stamp.replace(microsecond=int(fraction[:6].ljust(6, "0")))
    return stamp.replace(tzinfo=stamp.tzinfo or UTC).timestamp()
