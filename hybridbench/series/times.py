"""Parse times as tools write them: dates, epoch times, numbers with a unit, hh:mm:ss."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import takewhile

import numpy as np

from hybridbench.analysis.record import FloatArray
from hybridbench.foundation.units import parse_duration_s
from hybridbench.series.cells import is_number, may_be_grouped

# Python, pandas and ps may put days first: 1 day, 2:03:04; 0 days 00:10:00; 1-02:03:04.  Only ps
# omits the hours.
_CLOCK = re.compile(r"(?:(\d+)(?: days?,? |-))?(?:(\d{1,6}):)?([0-5]?\d):([0-5]\d(?:[.,]\d+)?)")
# sysstat in a Chinese or Japanese locale: 14时40分10秒.
_CLOCK_SIGNS = str.maketrans({"时": ":", "時": ":", "分": ":", "秒": None})
_ISO_LIKE = re.compile(r"\d{4}([-/])\d\d\1\d\d|\d{8}T\d{4}")
# Formats of Excel, JavaScript, Germany and ``date``; day and month in either order.
_DATES = (
    *("%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%d/%m/%Y %H:%M"),
    *("%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%a %b %d %H:%M:%S %Y", "%a %b %d %Y %H:%M:%S"),
    *("%b %d %Y %H:%M:%S", "%a %d %b %Y %H:%M:%S", "%d %b %Y %H:%M:%S"),
)
# Without a year, as dstat and mongostat write it; two numbers are day and month in either order.
_OF_YEAR = ("%d-%m %H:%M:%S", "%m-%d %H:%M:%S", "%b %d %H:%M:%S")
_FRACTION = re.compile(r":\d\d\.\d+$")
# 1:05 PM is 13:05, and a day alone means midnight.
_HALF_DAY = re.compile(r"\b(\d\d?)(:\d\d[:.\d]*)\s*([AaPp])\.?\s?[Mm]\b\.?")
_DAY = re.compile(
    r"^(\d\d?)([/.-])(\d\d?|[A-Z][a-z]{2})\2(\d{4}|(?<=/)\d\d|(?<=\.)\d\d(?= \d))(?=$| )"
)
# With the year first, nvidia-smi and Excel in Asia write slashes, Hungary and Korea dots, and both
# may omit zeros.
_YEAR_FIRST = re.compile(r"^(\d{4})([/-]|\.(?=\S+ \d))(\d\d?)\2(\d\d?)(?!\d)(?: (\d)(?=:))?")
_DECIMAL_COMMA = re.compile(r"\d+,\d+")
# PRTG writes intervals: drop the end.
_TO = re.compile(r" - (\d\S+ )?\d\d?:\d\d(:\d\d)?$")
_DATE_LIKE = re.compile(r"(?:[A-Za-z]{3},? +|\d\d?[-/. ])\S{1,3}[/. ].*\d:\d\d")
# Ignored: only differences matter, and a column has one time zone.
_ZONE = re.compile(r" ((GMT)?[+-]\d{4}( \(.*\))?|[A-Z]{3,4})(?=$| \d{4}$)")
# ``date`` in another language: a day, a time of day and a year among a few words.  2025年06月13日
# also has a numeric month; text with more numbers, or with a sign, is a measurement.
_LOCAL_CLOCK = re.compile(r"(?<![\d:])(?:[01]?\d|2[0-3]):\d\d:\d\d(?![\d:])")
_YEAR, _NO_DATE = re.compile(r"\b(?:19|20)\d\d(?!\d)"), re.compile(r"[=:|%\[{/]")
_LOCAL_CHARS_MAX, _LOCAL_WORDS_MAX, _CHARS_MAX = 60, 7, 80
# Epoch seconds from 2001 to 2033 are 1e9 to 2e9; other numbers count from a run's start.
_EPOCH = re.compile(r"1\d{9}(\d{3}){0,3}(\.\d+)?")
_EPOCH_S_MIN, _EPOCH_S_MAX = 1e9, 2.0e9
# date +%Y%m%d%H%M%S
_COMPACT = re.compile(r"20\d\d[01]\d[0-3]\d[0-2]\d[0-5]\d[0-5]\d")
# .NET and PowerShell write milliseconds since 1970 in JSON: /Date(1710000000000+0100)/.
_DOTNET = re.compile(r"/Date\((\d+)(?:[+-]\d{4})?\)/")
_UNIT_WORDS = {
    "ms": r"ms|msecs?|millis|milliseconds?", "us": r"us|microseconds?",
    "ns": r"ns|nanos?|nanoseconds?",
    "s": r"s|secs?|seconds?", "min": r"min|mins|minutes?", "h": r"h|hrs?|hours?",
    "d": r"d|days?|date|datum",
}  # fmt: skip
UNITS_S = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT = "|".join(_UNIT_WORDS.values())
_UNIT_AT_END = re.compile(rf"(?:^|[^a-z])({_UNIT})[)\]]?$", re.I)
_NAME = re.compile(
    r"#?\s*_?(?P<head>t|time|ts|timestamp|date|datetime|elapsed|when|wall|epoch|uptime|(?:uhr)?zeit|"
    rf"(?:elapsed|wall|unix|sample|date|run|up|start)[_ ]?time(?:stamp)?|time[_ ]?stamp|age|"
    rf"relative time(?: [(](?:process|wall)[)])?|time[_ ]?unix)?"
    rf"[_ ]?(?P<unit>[(\[]?(?:{_UNIT}|utc)[)\]]?)?",
    re.I,
)
# Names that mean a time if the numbers below them are large enough, perhaps after a dotted path.
_EPOCH_NAME = re.compile(
    r"(.*[.])?(begin|end|event|created|observed|last|sample)?[_ ]?"
    rf"(clock|date|time|ts|timestamp|now)[_ ]?({_UNIT}|unix)?",
    re.I,
)
# Alone, these often mean something else: a minimum, a letter, a host's uptime.
_NEEDS_UNIT = frozenset({"uptime", "up time", "up_time", "age"})
_NO_TIME_ALONE = frozenset({"min", "s", "d", "h", "ms", "us", "ns", "utc", "mins", "hr"})
# 20 min, 1h 30m, but not months
_UNIT_OF_SPAN = re.compile(r" ?(ms|[smhd])(?!o)[a-z]*[ .]*")
_DAY_S = 86400.0
_YEAR_DAYS = 365
# Excel counts days since 1899; these bounds are the years 2000 to 2100.  Steps of up to an hour
# leave no doubt.
_EXCEL_1970, _EXCEL_DAYS, _EXCEL_STEP_MAX, _WEEK = 25569, (36526, 73051), 0.05, 7
# The forms: a time of day, ISO 8601, ``_DATES``, a date without a year, one with a month in an
# unknown language, and ps's ELAPSED.
_OF_DAY, _ISO, _LOCAL, _OF_PS = "time of day", "ISO 8601", "day of a month", "since a start"
_SPAN = "duration"
_COUNTS_ON = (_OF_DAY, *_OF_YEAR, _LOCAL, _OF_PS, _SPAN)
_ALL_FORMS = (_OF_DAY, _ISO, *_DATES, *_OF_YEAR, _LOCAL)
_FORMS = (
    "write ISO-8601 (2026-01-31T12:00:00Z), seconds since 1970 (or ms, us, ns), seconds from 0, or "
    "hh:mm:ss"
)


class BadTimeError(ValueError):
    """Cell ``index`` of a time column is not a time."""

    def __init__(self, index: int, cell: str) -> None:
        locale = "" if cell.isascii() else "; record with LC_ALL=C"
        super().__init__(f"{cell!r} is not a time; {_FORMS}{locale}")
        self.index = index


@dataclass(frozen=True)
class Times:
    """Times in seconds: since 1970 if ``absolute``, else since the file's own start."""

    t_s: FloatArray
    absolute: bool


def names_time(name: str) -> bool:
    """Return whether ``name`` is a name for a time column: ``ts``, ``uptime_hours``."""
    found = _NAME.fullmatch(name.strip())
    if found is None or not (found["head"] or found["unit"]):
        return False
    if found["head"] is None:
        return found["unit"].strip("([)]").lower() not in _NO_TIME_ALONE
    return bool(found["unit"]) or found["head"].lower() not in _NEEDS_UNIT


def names_epoch(name: str) -> bool:
    """Return whether ``name``, such as ``clock``, means a time if the numbers are epoch times."""
    return bool(_EPOCH_NAME.fullmatch(name.strip()))


def unit_in(name: str) -> str:
    """Return the time unit at the end of ``name``, as a key of ``UNITS_S``; empty without one."""
    found = _UNIT_AT_END.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip()))
    word = "" if found is None else found[1].lower()
    return next((u for u, words in _UNIT_WORDS.items() if re.fullmatch(words, word)), "")


def parse_times(cells: Sequence[str], unit: str = "", *, of_ps: bool = False) -> Times:
    """Parse the times in a column's cells.

    Args:
        cells: as written.
        unit: of plain numbers that count from zero, a key of ``UNITS_S``; seconds if empty.
        of_ps: read minutes:seconds, with optional days and hours, as in ps's ELAPSED.

    Raises:
        BadTimeError: for the first cell that is not a time.
    """
    if _COMPACT.fullmatch(cells[0]):
        cells = [f"{cell[:8]}T{cell[8:]}" for cell in cells]
    if _DOTNET.fullmatch(cells[0]):
        cells = [_DOTNET.sub(r"\1", cell) for cell in cells]
    if all(map(_DECIMAL_COMMA.fullmatch, cells)) and not may_be_grouped(cells):
        cells = [cell.replace(",", ".") for cell in cells]
    try:
        numbers = np.array(cells, dtype=np.float64)
    except ValueError:
        return _words(cells, (_OF_PS,) if of_ps else (*_ALL_FORMS, _SPAN))
    bad = np.flatnonzero(~np.isfinite(numbers))
    if bad.size:
        raise BadTimeError(int(bad[0]), cells[int(bad[0])])
    return scaled(numbers, unit)


def scaled(numbers: FloatArray, unit: str = "") -> Times:
    """Convert numbers to seconds: since 1970 if they are recent epoch times, else from ``unit``.

    ``unit`` is ignored only if it would make the times too late, and another unit makes them epoch
    times: an uptime in nanoseconds is not mistaken for milliseconds since 1970.
    """
    few = not unit and 0 < _usual_step(numbers) < _EXCEL_STEP_MAX
    if (few or unit == "d") and _are_days_of_excel(numbers):
        return Times((numbers - _EXCEL_1970) * _DAY_S, absolute=True)
    # Quantiles ignore outliers: a clock that is not set yet shows 1970.
    low, high = np.quantile(np.abs(numbers), (0.05, 0.95)) if numbers.size else (0.0, 0.0)
    factor = UNITS_S.get(unit, 1.0)
    if not unit or high * factor > _EPOCH_S_MAX:
        for each in (UNITS_S[one] for one in ("s", "ms", "us", "ns")):
            if low * each >= _EPOCH_S_MIN and high * each <= _EPOCH_S_MAX:
                return Times(numbers * each, absolute=True)
    return Times(numbers * factor, absolute=bool(unit) and low * factor >= _EPOCH_S_MIN)


def is_epoch(cell: str) -> bool:
    """Return whether ``cell`` may be an epoch time (2001 to 2033) in s, ms, us or ns."""
    return bool(_EPOCH.fullmatch(cell))


def is_since_1970(cells: Sequence[str]) -> bool:
    """Return whether plain numbers are large enough to be epoch times."""
    try:
        return scaled(np.array(cells, dtype=np.float64)).absolute
    except ValueError:
        return False


def is_unit_unsure(times: Times) -> bool:
    """Return whether times from a start, read as seconds, may be Excel's days or milliseconds."""
    # Long intervals in seconds are usually multiples of five minutes, such as 3600 s.  Intervals in
    # milliseconds are near whole seconds, such as 10003, or divide one, such as 100 or 500.
    step = _usual_step(times.t_s)
    of_minutes, of_thousands = (step + 3) % 300 <= 6, (step + 50) % 1000 <= 100
    divides = step >= 100 and abs(1000 - step * round(1000 / step)) <= 20
    of_hours = 0 < step <= _WEEK and bool(np.all(np.abs((24 * times.t_s + 0.5) % 1 - 0.5) < 0.01))
    return not times.absolute and (
        (of_hours and _are_days_of_excel(times.t_s))
        or (step >= 1000 and (of_thousands or not of_minutes))
        or divides
    )


def _are_days_of_excel(numbers: FloatArray) -> bool:
    return bool(np.all((numbers > _EXCEL_DAYS[0]) & (numbers < _EXCEL_DAYS[1])))


def _usual_step(numbers: FloatArray) -> float:
    """Return the median step from one moment to the next; 0 if there is only one."""
    steps = np.diff(np.unique(numbers))
    return float(np.median(steps)) if steps.size else 0.0


def looks_like_time(cell: str) -> bool:
    """Return whether ``cell`` is a time that is not a plain number, or starts with a date."""
    return bool(_ISO_LIKE.match(_plain(cell))) or (is_moment(cell) and not is_epoch(cell.strip()))


@lru_cache(maxsize=4096)
def is_moment(cell: str) -> bool:
    """Return whether ``cell`` is only a time."""
    if len(cell) > _CHARS_MAX:
        return False
    text = _plain(cell)
    has_mark = ":" in text or _ISO_LIKE.match(text)
    is_read = has_mark and any(_seconds(form, text) is not None for form in _ALL_FORMS)
    return bool(is_read) or is_epoch(cell.strip())


def _words(cells: Sequence[str], forms: Sequence[str]) -> Times:
    """Parse all times in one form; if day and month are ambiguous, prefer the shorter span."""
    if is_number(cells[0]):
        odd = next((index for index, cell in enumerate(cells) if not is_number(cell)), 0)
        raise BadTimeError(odd, cells[odd])
    texts = [_plain(cell) for cell in cells]
    read: list[tuple[str, FloatArray]] = []
    furthest = 0
    for form in forms:
        moments = (_seconds(form, text) for text in texts)
        seconds = list(takewhile(lambda moment: moment is not None, moments))
        furthest = max(furthest, len(seconds))
        if len(seconds) == len(texts):
            read.append((form, np.array(seconds, dtype=np.float64)))
        if read and form in (_OF_DAY, _ISO, _DATES[-1]):
            # If the whole date was read, do not try to read only its day.
            break
    if not read:
        raise BadTimeError(furthest, cells[furthest])
    form, t_s = min(read, key=lambda one: float(np.ptp(one[1])))
    if form == _OF_DAY:
        t_s[1:] += _DAY_S * np.cumsum(np.diff(t_s) < -_DAY_S / 2)
    elif form in _OF_YEAR:
        year_s = _YEAR_DAYS * _DAY_S
        t_s[1:] += year_s * np.cumsum(np.diff(t_s) < -year_s / 2)
    elif form == _LOCAL:
        # The first day of a month follows the last of the one before, whichever month it was.
        day = t_s // _DAY_S
        t_s -= _DAY_S * day[0]
        t_s[1:] += _DAY_S * np.cumsum(np.where(np.diff(day) < 0, day[:-1], 0.0))
    return Times(t_s, absolute=form not in _COUNTS_ON)


def _plain(cell: str) -> str:
    text = cell.strip().replace(", ", " ").replace(",", ".", 1).replace(" @ ", " ")
    text = text.translate(_CLOCK_SIGNS)
    half = _HALF_DAY.search(text)
    if half is not None:
        hour = int(half[1]) % 12 + 12 * (half[3] in "Pp")
        text = f"{text[: half.start()]}{hour:02}{half[2]}{text[half.end() :]}"
    text = _DAY.sub(_whole_day, _TO.sub("", text))
    return _YEAR_FIRST.sub(_iso, text)


def _iso(match: re.Match[str]) -> str:
    year, _, month, day, hour = match.groups()
    return f"{year}-{month:0>2}-{day:0>2}" + (f" 0{hour}" if hour else "")


def _whole_day(match: re.Match[str]) -> str:
    day, mark, month, year = match.groups()
    midnight = " 00:00:00" if match.end() == len(match.string) else ""
    year = year if len(year) > 2 else f"20{year}"
    return mark.replace("-", "/" if month.isdecimal() else " ").join((day, month, year)) + midnight


def _seconds(form: str, text: str) -> float | None:
    """Return seconds since 1970, or since a start, midnight, month or year, if ``form`` fits."""
    if form == _SPAN:
        return span_s(text)
    if form in (_OF_DAY, _OF_PS, _LOCAL):
        return _of_month(text) if form == _LOCAL else _of_day(text, of_ps=form == _OF_PS)
    # Checking for separators is quick; parsing a date is slow.
    if form != _ISO and (form[2] not in text or not _DATE_LIKE.match(text)):
        return None
    text = _ZONE.sub("", text)
    if form != _ISO and _FRACTION.search(text):
        form += ".%f"
    if form.startswith(_OF_YEAR):
        # In 1970, February 29 is refused: in other years the days after it would be off by one.
        text, form = f"1970 {text}", f"%Y {form}"
    try:
        moment = datetime.fromisoformat(text) if form == _ISO else datetime.strptime(text, form)
    except ValueError:
        return None
    # Read as UTC: only differences matter.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _of_day(text: str, *, of_ps: bool = False) -> float | None:
    match = _CLOCK.fullmatch(text)
    if match is None or not (match[2] or of_ps):
        return None
    days, hour, minute, second = match.groups()
    return int(days or 0) * _DAY_S + int(hour or 0) * 3600 + int(minute) * 60 + float(second)


def span_s(text: str) -> float | None:
    """Return the seconds of a duration, such as ``20 min`` or ``1h 30m``; None for other text."""
    with suppress(ValueError):
        return None if is_number(text) else parse_duration_s(_UNIT_OF_SPAN.sub(r"\1", text.lower()))
    return None


def _of_month(text: str) -> float | None:
    """Return seconds since the month began, from the output of ``date`` in any language."""
    clock, rest = _LOCAL_CLOCK.findall(text), _LOCAL_CLOCK.sub(" ", text)
    years, rest = len(_YEAR.findall(rest)), _YEAR.sub(" ", rest)
    days = re.findall(r"\d+", rest)
    is_long = len(text) > _LOCAL_CHARS_MAX or len(text.split()) > _LOCAL_WORDS_MAX
    if is_long or _ISO_LIKE.match(text) or (len(clock), years) != (1, 1) or not 1 <= len(days) <= 2:
        return None
    measured = _NO_DATE.search(rest) or max(map(len, days)) > 2
    if measured or not re.search(r"[^\W\d_]", rest) or not 1 <= int(days[-1]) <= 31:
        return None
    of_day = _of_day(clock[0])
    return None if of_day is None else int(days[-1]) * _DAY_S + of_day
