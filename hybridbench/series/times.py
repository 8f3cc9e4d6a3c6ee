"""Times as tools write them: dates, epochs in four sizes, numbers with a unit, hh:mm:ss."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from hybridbench.analysis.record import FloatArray

# Of Python and pandas with days before it: 1 day, 2:03:04; 0 days 00:10:00.
_CLOCK = re.compile(
    r"(?:(\d+) days?,? )?(\d{1,6}):([0-5]\d):([0-5]\d(?:[.,]\d+)?)(?:\s*([AaPp])[Mm])?"
)
# sysstat in a Chinese or Japanese locale: 14时40分10秒.
_CLOCK_SIGNS = str.maketrans({"时": ":", "時": ":", "分": ":", "秒": None})
# ps: [[days-]hours:]minutes:seconds.
_ELAPSED = re.compile(r"(?:(?:(\d+)-)?(\d+):)?([0-5]?\d):([0-5]\d)")
_ISO_LIKE = re.compile(r"\d{4}([-/])\d\d\1\d\d|\d{8}T\d{4}")
_WEEKDAY, _MONTH = r"[A-Z][a-z]{2}", r"[A-Z][a-z]{2}"
_DATED = re.compile(
    rf"\d\d?([./])\d\d?\1\d{{4}},? +\d\d?:\d\d|{_WEEKDAY} {_MONTH} [ \d]\d (\d{{4}} )?\d\d?:\d\d:|"
    rf"({_WEEKDAY},? )?\d\d? {_MONTH} \d{{4}} \d\d?:\d\d:"
)
# Written by Excel, by JavaScript, in Germany, and by ``date``; day and month in either order.
_DATES = (
    *("%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S.%f", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %H:%M"),
    *("%d/%m/%Y %H:%M:%S", "%d/%m/%Y %I:%M:%S %p", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y %H:%M"),
    *("%a %b %d %H:%M:%S %Y", "%a %b %d %I:%M:%S %p %Y", "%a %b %d %Y %H:%M:%S"),
    *("%a %d %b %Y %H:%M:%S", "%d %b %Y %H:%M:%S", "%a %d %b %Y %I:%M:%S %p"),
)
# Left out: only differences matter, and a column has one zone.
_ZONE = re.compile(r" ((GMT)?[+-]\d{4}( \(.*\))?|[A-Z]{3,4})(?=$| \d{4}$)")
# ``date`` in another language: a year, a day, a time of day, and words.
_YEAR, _LOCAL_DAY = re.compile(r"\b(?:19|20)\d\d(?!\d)"), re.compile(r"(?<![\d:])\d{1,2}(?![\d:])")
_LOCAL_WORD, _NO_DATE, _LOCAL_WORDS_MAX = re.compile(r"[^\W\d_]"), re.compile(r"[=:|%\[{/]"), 7
_LOCAL_CHARS_MAX = 60
_LOCAL_CLOCK = re.compile(r"(?<![\d:])\d\d?:\d\d:\d\d(?![\d:])")
# Seconds since 1970 lie in 1e9..1e10 from 2001 to 2286; smaller numbers count from a run's start.
_EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3), (1e9, 1.0))
_UNIT_WORDS = {
    "ms": r"ms|msecs?|millis|milliseconds?", "us": r"us|microseconds?",
    "ns": r"ns|nanos?|nanoseconds?",
    "s": r"s|secs?|seconds?", "min": r"min|mins|minutes?", "h": r"h|hrs?|hours?", "d": r"d|days?",
}  # fmt: skip
UNITS_S = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT = "|".join(_UNIT_WORDS.values())
_UNIT_AT_END = re.compile(rf"(?:^|[^a-z])({_UNIT})[)\]]?$", re.I)
_NAME = re.compile(
    r"#?\s*_?(?P<head>t|time|ts|timestamp|date|datetime|elapsed|when|wall|epoch|uptime|zeit|"
    rf"(?:elapsed|wall|unix|sample|date|run|up|start)[_ ]?time(?:stamp)?|time[_ ]?stamp|age|"
    rf"time[_ ]?unix)?"
    rf"[_ ]?(?P<unit>[(\[]?(?:{_UNIT}|utc)[)\]]?)?",
    re.I,
)
# Alone they are something else as often as a time: a minimum, a letter, a host's uptime.
_NEEDS_UNIT = frozenset({"uptime", "up time", "up_time", "age"})
_NO_TIME_ALONE = frozenset({"min", "s", "d", "h", "ms", "us", "ns", "utc", "mins", "hr"})
_SECONDS_ALONE = frozenset({"t", "time", "elapsed", "wall", "when", "elapsed time", "run time"})
_DAY_S = 86400.0
_FORMS = (
    "write ISO-8601 (2026-01-31T12:00:00Z), seconds since 1970 (or ms, us, ns), seconds from 0, or "
    "hh:mm:ss"
)


class BadTimeError(ValueError):
    """Cell ``index`` of a time column is no time."""

    def __init__(self, index: int, cell: str) -> None:
        locale = "" if cell.isascii() else "; record with LC_ALL=C"
        super().__init__(f"{cell!r} is not a time; {_FORMS}{locale}")
        self.index = index


@dataclass(frozen=True)
class Times:
    """Seconds, since 1970 where ``absolute``, else since whatever the file counts from."""

    t_s: FloatArray
    absolute: bool


def names_time(name: str) -> bool:
    """Whether a column called ``name`` has the times of the rows: ``ts``, ``uptime_hours``."""
    found = _NAME.fullmatch(name.strip())
    if found is None or not (found["head"] or found["unit"]):
        return False
    if found["head"] is None:
        return found["unit"].strip("([)]").lower() not in _NO_TIME_ALONE
    return bool(found["unit"]) or found["head"].lower() not in _NEEDS_UNIT


def unit_in(name: str) -> str:
    """The unit of time that ``name`` ends with, as a key of ``UNITS_S``; empty without one."""
    found = _UNIT_AT_END.search(name.strip())
    word = "" if found is None else found[1].lower()
    return next((u for u, words in _UNIT_WORDS.items() if re.fullmatch(words, word)), "")


def counts_seconds(name: str) -> bool:
    """Whether plain numbers below a name without a unit are seconds, as psrecord writes them."""
    return name.strip("# _").casefold().replace("_", " ") in _SECONDS_ALONE | {"timestamp", "ts"}


def parse_times(cells: Sequence[str], unit: str = "", *, of_ps: bool = False) -> Times:
    """The times in a column's cells.

    Args:
        cells: as written.
        unit: of plain numbers that count from zero, a key of ``UNITS_S``; seconds where empty.
        of_ps: minutes:seconds with days and hours before them, as ELAPSED of ps.

    Raises:
        BadTimeError: for the first cell that is no time.
    """
    try:
        numbers = np.array(cells, dtype=np.float64)
    except ValueError:
        return Times(_elapsed(cells), absolute=False) if of_ps else _words(cells)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if bad.size:
        raise BadTimeError(int(bad[0]), cells[int(bad[0])])
    return scaled(numbers, unit)


def scaled(numbers: FloatArray, unit: str = "") -> Times:
    """Numbers as seconds: since 1970 by their size, else in ``unit``."""
    size = float(np.median(np.abs(numbers))) if numbers.size else 0.0
    for least, factor in _EPOCHS:
        if size >= least:
            return Times(numbers * factor, absolute=True)
    return Times(numbers * UNITS_S.get(unit, 1.0), absolute=False)


def is_since_1970(cells: Sequence[str]) -> bool:
    """Whether plain numbers are so large that they count from 1970."""
    try:
        return scaled(np.array(cells, dtype=np.float64)).absolute
    except ValueError:
        return False


def looks_like_time(cell: str) -> bool:
    """Whether ``cell`` is a time that no plain number would be."""
    text = cell.strip()
    clock = _CLOCK.fullmatch(text.translate(_CLOCK_SIGNS))
    return bool(clock or _ISO_LIKE.match(text) or _DATED.match(text) or _local_date(text))


def _words(cells: Sequence[str]) -> Times:
    """Times of which the first that is no number is read, or is the odd one."""
    plain = [cell.strip().translate(_CLOCK_SIGNS) for cell in cells]
    if _is_number(plain[0]):
        odd = next(index for index, cell in enumerate(plain) if not _is_number(cell))
        raise BadTimeError(odd, cells[odd])
    first = next((cell for cell in plain if cell), "")
    if _CLOCK.fullmatch(first):
        return Times(_clock(plain), absolute=False)
    try:
        return Times(_moments(cells), absolute=True)
    except BadTimeError:
        if _local_date(first) is None:
            raise
    return Times(_local_days(plain), absolute=False)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _moments(cells: Sequence[str]) -> FloatArray:
    """Dates in the one form that reads them all; of day and month first, the shorter span."""
    texts = [_plain(cell) for cell in cells]
    read: list[FloatArray] = []
    furthest = 0
    for form in ("", *_DATES):
        seconds = np.empty(len(texts))
        for index, text in enumerate(texts):
            try:
                moment = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
            except ValueError:
                furthest = max(furthest, index)
                break
            # Read in UTC: differences are all that matters.
            seconds[index] = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        else:
            read.append(seconds)
            if not form:
                break
    if not read:
        raise BadTimeError(furthest, cells[furthest])
    return min(read, key=np.ptp)


def _plain(cell: str) -> str:
    text = cell.strip().replace(", ", " ").replace(",", ".", 1)
    if not text.endswith((" AM", " PM")):
        text = _ZONE.sub("", text)
    # nvidia-smi writes 2026/01/31.
    return text.replace("/", "-") if _ISO_LIKE.match(text) else text


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
    seconds = np.array([_of_day(index, cell) for index, cell in enumerate(cells)])
    midnights = np.concatenate([[0], np.cumsum(np.diff(seconds) < -_DAY_S / 2)])
    return seconds + _DAY_S * midnights


def _of_day(index: int, cell: str) -> float:
    match = _CLOCK.fullmatch(cell.strip())
    if match is None:
        raise BadTimeError(index, cell)
    days, hour, minute, second, half = match.groups()
    hours = int(hour)
    if half is not None:
        hours = hours % 12 + 12 * (half in "Pp")
    since_day = hours * 3600 + int(minute) * 60 + float(second.replace(",", "."))
    return int(days or 0) * _DAY_S + since_day


def _local_date(text: str) -> tuple[str, int] | None:
    """Time of day and day of the month of what ``date`` prints in any language."""
    text = text.translate(_CLOCK_SIGNS)
    if ":" not in text or len(text) > _LOCAL_CHARS_MAX:
        return None
    clock, year = _LOCAL_CLOCK.findall(text), _YEAR.findall(text)
    rest = _YEAR.sub(" ", _LOCAL_CLOCK.sub(" ", text))
    # 2025年06月13日 has its month in digits as well.
    days = [int(day) for day in _LOCAL_DAY.findall(rest)]
    words = len(text.split())
    if len(clock) != 1 or len(year) != 1 or not 1 <= len(days) <= 2 or words > _LOCAL_WORDS_MAX:
        return None
    if len(re.findall(r"\d+", rest)) != len(days) or _ISO_LIKE.match(text):
        # Something is measured there.
        return None
    is_date = 1 <= days[-1] <= 31 and _LOCAL_WORD.search(rest) and not _NO_DATE.search(rest)
    return (clock[0], days[-1]) if is_date else None


def _local_days(cells: Sequence[str]) -> FloatArray:
    seconds, day_s, before = np.empty(len(cells)), 0.0, 0
    for index, cell in enumerate(cells):
        found = _local_date(cell)
        if found is None:
            raise BadTimeError(index, cell)
        clock, day = found
        if index and day != before:
            # The first days of a month follow its last one, whatever the month was.
            day_s += _DAY_S * (day - before if day > before else day)
        before = day
        seconds[index] = day_s + _of_day(index, clock)
    return seconds
