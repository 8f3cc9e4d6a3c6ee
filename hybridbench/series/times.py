"""Times as tools write them: ISO-8601, epoch in four sizes, seconds from zero, hh:mm:ss."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from hybridbench.analysis.record import FloatArray

_CLOCK = re.compile(r"(\d{1,6}):([0-5]\d):([0-5]\d(?:[.,]\d+)?)(?:\s*([AaPp])[Mm])?")
# ps: [[days-]hours:]minutes:seconds.
_ELAPSED = re.compile(r"(?:(?:(\d+)-)?(\d+):)?([0-5]?\d):([0-5]\d)")
_ISO_LIKE = re.compile(r"\d{4}([-/])\d\d\1\d\d|\d{8}T\d{4}")
_DAY_FIRST = re.compile(
    r"\d\d?([./])\d\d?\1\d{4} +\d\d?:\d\d|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:"
)
# Written by Excel, in Germany, and by ``date``.
_DATES = (
    *("%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S.%f", "%m/%d/%Y %I:%M:%S %p", "%d.%m.%Y %H:%M:%S"),
    *("%a %b %d %H:%M:%S %Y", "%a %b %d %I:%M:%S %p %Y"),
)
# Left out: only differences matter, and a column has one zone.
_ZONE = re.compile(r" [A-Z]{3,4}(?=$| \d{4}$)")
# Seconds since 1970 lie in 1e9..1e10 from 2001 to 2286; smaller numbers count from a run's start.
_EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3), (1e9, 1.0))
_NAMED = (("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("min", 60.0), ("h", 3600.0))
_DAY_S = 86400.0
_FORMS = (
    "write ISO-8601 (2026-01-31T12:00:00Z), seconds since 1970 (or ms, us, ns), seconds from 0, or "
    "hh:mm:ss"
)


class BadTimeError(ValueError):
    """Cell ``index`` of a time column is no time."""

    def __init__(self, index: int, cell: str) -> None:
        super().__init__(f"{cell!r} is not a time; {_FORMS}")
        self.index = index


@dataclass(frozen=True)
class Times:
    """Seconds, since 1970 where ``absolute``, else since whatever the file counts from."""

    t_s: FloatArray
    absolute: bool


def parse_times(cells: Sequence[str], name: str = "") -> Times:
    """The times of a column called ``name``; its name may tell the unit of plain numbers.

    Raises:
        BadTimeError: for the first cell that is no time.
    """
    try:
        numbers = np.array(cells, dtype=np.float64)
    except ValueError:
        if name == "ELAPSED":
            return Times(_elapsed(cells), absolute=False)
        return _words(cells, _first_word(cells))
    bad = np.flatnonzero(~np.isfinite(numbers))
    if bad.size:
        raise BadTimeError(int(bad[0]), cells[int(bad[0])])
    return scaled(numbers, name)


def scaled(numbers: FloatArray, name: str = "") -> Times:
    """Numbers as seconds, by their size or, when they count from zero, by the name's unit."""
    size = float(np.median(np.abs(numbers))) if numbers.size else 0.0
    for least, factor in _EPOCHS:
        if size >= least:
            return Times(numbers * factor, absolute=True)
    head = name.strip().lower().rstrip(")]")
    for unit, factor in _NAMED:
        if re.search(rf"(^|[^a-z]){unit}$", head):
            return Times(numbers * factor, absolute=False)
    return Times(numbers, absolute=False)


def looks_like_time(cell: str) -> bool:
    """Whether ``cell`` is a time that no plain number would be."""
    text = cell.strip()
    return bool(_CLOCK.fullmatch(text) or _ISO_LIKE.match(text) or _DAY_FIRST.match(text))


def parse_moment(text: str) -> Times:
    """One moment, as ``parse_times`` reads a column.

    Raises:
        BadTimeError: it is none.
    """
    return parse_times([text])


def _first_word(cells: Sequence[str]) -> int:
    """The first cell that is no number."""
    for index, cell in enumerate(cells):
        try:
            float(cell)
        except ValueError:
            return index
    return 0


def _words(cells: Sequence[str], odd: int) -> Times:
    if odd:
        # Numbers up to here: this cell is the odd one.
        raise BadTimeError(odd, cells[odd])
    first = next((cell.strip() for cell in cells if cell.strip()), "")
    if _CLOCK.fullmatch(first):
        return Times(_clock(cells), absolute=False)
    seconds = np.empty(len(cells))
    forms: Sequence[str] = _DATES
    for index, cell in enumerate(cells):
        moment, forms = _moment(_plain(cell), forms)
        if moment is None:
            raise BadTimeError(index, cell)
        seconds[index] = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return Times(seconds, absolute=True)


def _plain(cell: str) -> str:
    text = cell.strip().replace(",", ".", 1)
    if not text.endswith((" AM", " PM")):
        text = _ZONE.sub("", text)
    # nvidia-smi writes 2026/01/31.
    return text.replace("/", "-") if _ISO_LIKE.match(text) else text


def _moment(text: str, forms: Sequence[str]) -> tuple[datetime | None, Sequence[str]]:
    """The moment, and the forms with its own first: a column has one."""
    try:
        return datetime.fromisoformat(text), forms
    except ValueError:
        pass
    for form in forms:
        try:
            # Read in UTC: differences are all that matters.
            moment = datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        return moment, [form, *(other for other in forms if other != form)]
    return None, forms


def _elapsed(cells: Sequence[str]) -> FloatArray:
    seconds = np.empty(len(cells))
    for index, cell in enumerate(cells):
        match = _ELAPSED.fullmatch(cell.strip())
        if match is None:
            raise BadTimeError(index, cell)
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        seconds[index] = days * _DAY_S + hours * 3600 + minutes * 60 + rest
    return seconds


def _clock(cells: Sequence[str]) -> FloatArray:
    """Times of day, each midnight passed adding a day."""
    seconds = np.empty(len(cells))
    for index, cell in enumerate(cells):
        match = _CLOCK.fullmatch(cell.strip())
        if match is None:
            raise BadTimeError(index, cell)
        hour, minute, second, half = match.groups()
        hours = int(hour)
        if half is not None:
            hours = hours % 12 + 12 * (half in "Pp")
        seconds[index] = hours * 3600 + int(minute) * 60 + float(second.replace(",", "."))
    midnights = np.concatenate([[0], np.cumsum(np.diff(seconds) < -_DAY_S / 2)])
    return seconds + _DAY_S * midnights
