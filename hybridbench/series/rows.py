"""Rows of a table: cells with the line that they stand in, and which of them fit the heading."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hybridbench.errors import ConfigError
from hybridbench.series.grid import TableOptions
from hybridbench.series.lines import Line
from hybridbench.series.refusals import NO_SHAPE, is_prose

Row = tuple[Line, list[str]]
# Names, rows, and the units of columns that the reader named.
Read = tuple[list[str], list[Row], dict[str, str]]

_WIDE_BLANKS = re.compile(r"\s{2,}|\t")
_COMMANDS = frozenset({"command", "cmd", "args", "comm"})
_BAD_SHARE, _BAD_LEAST = 0.01, 3


def few(count: int, of: int) -> bool:
    """Whether so many lines may be left out of ``of``; more make another kind of file."""
    return count <= max(_BAD_LEAST, _BAD_SHARE * of)


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


def check_rows(
    heading: Line,
    names: Sequence[str],
    body: Sequence[Row],
    options: TableOptions,
    notes: list[str],
    hint: str,
) -> None:
    """Say which rows are left out because they have too few or too many cells; refuse many."""
    bad = [(line.number, len(cells)) for line, cells in body if len(cells) != len(names)]
    if not bad:
        return
    number, count = bad[0]
    if len(bad) == 1 and number == body[-1][0].number:
        notes.append(f"the last line ({number}) is cut short: left out")
    elif few(len(bad), len(body)) and len(bad) < len(body):
        notes.append(f"{len(bad)} lines with too few or too many cells left out, first {number}")
    elif 2 * len(bad) > len(body) and is_prose([line for line, _ in body]):
        raise ConfigError(f"{options.source}: {NO_SHAPE}.")
    else:
        raise ConfigError(
            f"{options.source}:{number}: {count} cells where the heading has {len(names)} (line "
            f"{heading.number}); {hint}."
        )


def wide(text: str) -> list[str]:
    """The cells of a line that two or more blanks part."""
    return [cell.strip() for cell in _WIDE_BLANKS.split(text.strip().lstrip("# "))]
