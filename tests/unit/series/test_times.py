"""Times in the formats of various tools are read as the same seconds."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.series.times import BadTimeError, is_moment, looks_like_time, parse_times, unit_in

EPOCH = 1_700_000_000


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ([str(EPOCH), str(EPOCH + 60)], "time"),
        ([f"{EPOCH}000", f"{EPOCH + 60}000"], "ts"),
        ([f"{EPOCH}000000", f"{EPOCH + 60}000000"], "ts"),
        ([f"{EPOCH}000000000", f"{EPOCH + 60}000000000"], "ts"),
        (["2023-11-14T22:13:20Z", "2023-11-14T22:14:20Z"], "time"),
        (["20231114221320", "20231114221420"], "date +%Y%m%d%H%M%S"),
        ([f"{EPOCH}000", f"{EPOCH + 60}000"], "time_s"),
        ([f"/Date({EPOCH}000)/", f"/Date({EPOCH + 60}000+0100)/"], "PowerShell"),
        (["2023-11-14 22:13:20,000", "2023-11-14 22:14:20,000"], "asctime"),
        (["2023-11-15T00:13:20+02:00", "2023-11-15T00:14:20+02:00"], "time"),
        (["2023/11/14 22:13:20.000", "2023/11/14 22:14:20.000"], "timestamp"),
        (["11/14/2023 22:13:20", "11/14/2023 22:14:20"], "date"),
        (["11/14/2023 22:13:20.000", "11/14/2023 22:14:20.000"], "(PDH-CSV 4.0)"),
        (["11/14/2023 10:13:20 PM", "11/14/2023 10:14:20 PM"], "date"),
        (["14.11.2023 22:13:20", "14.11.2023 22:14:20"], "Zeit"),
        (["14.11.2023 22:13:20,000", "14.11.2023 22:14:20,000"], "Zeit"),
        (["2023-11-14 10:13:20 PM", "2023-11-14 10:14:20 PM"], ".NET"),
        (["Nov 14, 2023, 10:13:20 PM", "Nov 14, 2023, 10:14:20 PM"], "toLocaleString, medium"),
        (["Nov 14, 2023 @ 22:13:20.000", "Nov 14, 2023 @ 22:14:20.000"], "Kibana"),
        (["14/11/2023 10:13:20 p.m.", "14/11/2023 10:14:20 p.m."], "en-AU"),
        (["11-14-2023 22:13:20.000", "11-14-2023 22:14:20.000"], "TensorRT-LLM"),
        (["11/14/23 22:13:20", "11/14/23 22:14:20"], "Excel"),
        (["14-Nov-2023 22:13:20", "14-Nov-2023 22:14:20"], "Oracle"),
        (["14/11/2023 22:13:20 - 22:14:20", "14/11/2023 22:14:20 - 22:15:20"], "PRTG"),
        (["2023.11.14 22:13:20", "2023.11.14 22:14:20"], "Excel in Hungary"),
        (["14.11.23 22:13:20", "14.11.23 22:14:20"], "Excel in Germany"),
        (["14/11/2023 10:13:20 p. m.", "14/11/2023 10:14:20 p. m."], "es"),
        ([f"{EPOCH},0", f"{EPOCH + 60},0"], "Zeit"),
        (["45244,92592592593", "45244,92662037037"], "Zeit"),
        (["2023-11-14 22:13:20 UTC", "2023-11-14 22:14:20 UTC"], "timestamp"),
        (["Tue Nov 14 22:13:20 UTC 2023", "Tue Nov 14 22:14:20 UTC 2023"], "date"),
        (["11/14/2023, 10:13:20 PM", "11/14/2023, 10:14:20 PM"], "toLocaleString"),
        (["14/11/2023, 22:13:20", "14/11/2023, 22:14:20"], "toLocaleString, en-GB"),
        (
            ["Tue Nov 14 2023 22:13:20 GMT+0100 (CET)", "Tue Nov 14 2023 22:14:20 GMT+0100 (CET)"],
            "JS",
        ),
        (["Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:14:20 GMT"], "toUTCString"),
        (["Tue, 14 Nov 2023 22:13:20 +0100", "Tue, 14 Nov 2023 22:14:20 +0100"], "date -R"),
    ],
)
def test_every_form_of_a_date_is_the_same_moment(cells: list[str], name: str) -> None:
    times = parse_times(cells, unit_in(name))

    assert times.absolute
    np.testing.assert_allclose(times.t_s, [EPOCH, EPOCH + 60])


def test_dates_that_begin_with_the_year_need_no_zeros() -> None:
    times = parse_times(["2023/11/9 9:59", "2023/11/9 10:00", "2023/11/10 0:00"])

    assert np.diff(times.t_s).tolist() == [60, 14 * 3600]


@pytest.mark.parametrize(
    ("cells", "name", "seconds"),
    [
        (["0.5", "1.5"], "elapsed", [0.5, 1.5]),
        (["0,500", "1,500"], "elapsed", [0.5, 1.5]),
        (["500", "1500"], "elapsed_ms", [0.5, 1.5]),
        (["1", "2"], "time (min)", [60, 120]),
        (["1500000000000", "7200000000000"], "time_ns", [1500, 7200]),
        (["120000000", "14400000000000"], "monotonic (ns)", [0.12, 14400]),
        (["23:59:50", "00:00:10"], "time", [86390, 86410]),
        (["11:59:59 PM", "12:00:01 AM"], "time", [86399, 86401]),
        (["1", "2"], "day", [86400, 2 * 86400]),
    ],
)
def test_times_from_a_start_or_a_clock_only_count_on(
    cells: list[str], name: str, seconds: list[float]
) -> None:
    times = parse_times(cells, unit_in(name))

    assert not times.absolute
    np.testing.assert_allclose(times.t_s, seconds)


@pytest.mark.parametrize(
    "cell",
    [
        *("2026-01-31 12:00", "31.01.2026 12:00:00", "31.01.2026 12:00", "01/31/2026 12:00:00.5"),
        "10:00:00 PM",
    ],
)
def test_a_date_is_known_without_the_name_of_its_column(cell: str) -> None:
    assert looks_like_time(cell)
    assert parse_times([cell, cell]).t_s.size == 2
    assert not looks_like_time("12.5")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("1700000000", True),
        ("1700000000123", True),
        ("THU NOV 19 21:30:00 UTC 2026", True),
        ("1700000000,597456", False),
        ("10:00:00 - starting", False),
        ("3.11.12", False),
        ("2026-11-19 21:30:00 597456", False),
    ],
)
def test_a_time_on_a_line_of_its_own_is_that_and_nothing_else(text: str, is_one: bool) -> None:
    assert is_moment(text) is is_one


def test_the_first_cell_that_is_no_time_is_named() -> None:
    with pytest.raises(BadTimeError, match="'soon' is not a time") as caught:
        parse_times(["2023-11-14T22:13:20", "soon"])

    assert caught.value.index == 1


@pytest.mark.parametrize(
    "form",
    [
        "Do 30. Nov 22:13:{} CET 2023",
        "jeu. 30 nov. 2023 22:13:{} CET",
        "2023年 11月 30日 星期四 22:13:{} CST",
        "30 ноя 2023 22:13:{}",
    ],
)
def test_dates_in_any_language_count_days_and_seconds(form: str) -> None:
    first = form.format("20")
    next_day = form.replace("30", "1").format("25")

    times = parse_times([first, form.format("50"), next_day])

    np.testing.assert_allclose(np.diff(times.t_s), [30, 86400 - 25])


def test_a_date_in_english_is_read_whole_and_not_by_its_day_alone() -> None:
    times = parse_times(["Tue, 14 Nov 2023 22:13:20 GMT", "Thu, 14 Dec 2023 22:13:20 GMT"])

    assert times.absolute
    np.testing.assert_allclose(np.diff(times.t_s), 30 * 86400)


def test_days_before_months_are_known_by_the_shorter_recording() -> None:
    times = parse_times(["01/12/2023 10:00:00", "02/12/2023 10:00:00", "03/12/2023 10:00:00"])

    np.testing.assert_allclose(np.diff(times.t_s), [86400, 86400])


@pytest.mark.parametrize(
    "cells",
    [
        ["31-12 23:59:30", "01-01 00:00:30"],
        ["12-31 23:59:30", "01-01 00:00:30"],
        ["Dec 31 23:59:30.500", "Jan  1 00:00:30.500"],
        ["09-11 23:59:30", "10-11 00:00:30"],
        ["11-09 23:59:30", "11-10 00:00:30"],
    ],
)
def test_dates_without_a_year_count_on_at_midnight_and_new_year(cells: list[str]) -> None:
    times = parse_times(cells)

    assert not times.absolute
    assert np.diff(times.t_s).tolist() == [60.0]


@pytest.mark.parametrize(
    "cells", [["2026-11-19T21:30:00Z,1134.926MiB"], ["1,000", "1,010"], ["1.5", "2,5"], [""]]
)
def test_what_is_beside_a_time_or_may_be_two_numbers_is_no_time(cells: list[str]) -> None:
    with pytest.raises(BadTimeError):
        parse_times(cells)
