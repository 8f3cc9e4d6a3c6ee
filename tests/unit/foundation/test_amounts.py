"""One grammar of amounts: every option that takes one accepts and refuses the same texts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from pydantic import TypeAdapter

from hybridbench.foundation.metrics import Unit
from hybridbench.foundation.thresholds import parse_column_threshold, parse_threshold
from hybridbench.foundation.units import parse_byte_rate, parse_bytes
from hybridbench.records.nightly import parse_max_rate
from hybridbench.series.units import parse_unit
from hybridbench.workload.fields import PerSecond

MIB = 2.0**20
_PER_SECOND: TypeAdapter[float] = TypeAdapter(PerSecond)


def limit(text: str) -> float:
    return parse_threshold(text).limit


def max_rate(text: str) -> tuple[float, str, str]:
    rate = parse_max_rate(text)
    return rate.value, rate.unit, rate.per


def of_bytes(text: str) -> float:
    return parse_column_threshold(text).per_hour(parse_unit("MiB").unit)


def of_slots(text: str) -> float:
    return parse_column_threshold(text).per_hour(parse_unit("slots").unit)


def of_seconds(text: str) -> float:
    return parse_column_threshold(text).per_hour(parse_unit("s").unit)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bytes, "512MiB", 512 * MIB),
        (parse_bytes, " 0.1 MB ", 100_000),
        (parse_bytes, "1KB", 1000),
        (parse_byte_rate, "200MiB/h", 200 * MIB),
        (parse_byte_rate, "1.5 GB/min", 9e10),
        (parse_byte_rate, "1kB/s", 3.6e6),
        (max_rate, "2GiB/h", (2048 * MIB, "B", "h")),
        (max_rate, "60MiB/min", (3600 * MIB, "B", "h")),
        (max_rate, "4KiB/request", (4096.0, "B", "request")),
        (max_rate, "1.1 slots/retract", (1.1, "slots", "retract")),
        (max_rate, "0.95 nodes/evicted node", (0.95, "nodes", "evicted node")),
        (_PER_SECOND.validate_python, 40, 40.0),
        (_PER_SECOND.validate_python, "40/s", 40.0),
        (_PER_SECOND.validate_python, "90/min", 1.5),
        (limit, "rss.slope<200MiB/h", 200 * MIB),
        (limit, "rss.slope<24GiB/d", 1024 * MIB),
        (limit, "rss.slope<24GiB/day", 1024 * MIB),
        (limit, "rss.slope<100B/request", 100.0),
        (limit, "rss.slope < -1 MB / min", -60e6),
        (limit, "events.retracts.slope<0.01/request", 0.01),
        (limit, "pool.mamba.free.slope>-1/session_closes", -1.0),
        (limit, "pool.mamba.free.min>3slots", 3.0),
        (limit, "throughput.p50>900/s", 900.0),
        (limit, "throughput.p50>900 1/s", 900.0),
        (limit, "throughput.slope>-5/s/h", -5.0),
        (limit, "hit_rate.mean>57%", 0.57),
        (limit, "ttft.p50<250ms", 250.0),
        (limit, "ttft.p50<1.5s", 1500.0),
        (of_bytes, "rss<200MiB/h", 200 * MIB),
        (of_bytes, "rss<=24 GiB/day", 1024 * MIB),
        (of_bytes, "rss<1kB / s", 3.6e6),
        (of_slots, "free<5/hour", 5.0),
        (of_slots, "free<5slots/min", 300.0),
        (of_seconds, "delay<0.25/h", 0.25),
        (of_seconds, "delay<250ms/h", 0.25),
    ],
)
def test_an_amount_is_read_in_its_unit(
    parse: Callable[[object], object], text: object, value: object
) -> None:
    assert parse(text) == pytest.approx(value) if isinstance(value, float) else parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_bytes, "512", "'512' is not a size; write 512MiB"),
        (parse_bytes, "-1MiB", "is not a size"),
        (parse_bytes, "9999999TiB", "larger than any memory; write 512MiB or less"),
        (parse_byte_rate, "200MiB", "'200MiB' is not a rate; write 200MiB/h"),
        (parse_byte_rate, "200/h", "is not a rate"),
        (parse_byte_rate, "200MiB/request", "is not a rate"),
        (parse_max_rate, "2/h", "'2/h' is not a rate; write 200MiB/h, 4KiB/request"),
        (parse_max_rate, "2GiB", "is not a rate"),
        (_PER_SECOND.validate_python, "40/h", "is not a request rate; write 40 (a second)"),
        (_PER_SECOND.validate_python, "0/s", "is not a request rate"),
        (_PER_SECOND.validate_python, True, "is not a request rate"),
        (limit, "rss.max<5 1MB", "1MB is not a unit of rss.max; write 200MiB (2^20)"),
        (limit, "rss.max<9999999TiB", "larger than any memory"),
        (limit, "rss.max<1MiB/h", "MiB/h is not a unit of rss.max"),
        (limit, "throughput.p50>900", "900 has no unit; write 900/s"),
        (limit, "rss.slope<1MiB/", "is neither a time nor an event"),
        (of_bytes, "rss<200MiB", "not a threshold; write NAME<200MiB/h"),
        (of_bytes, "rss<5/h", "is not a size; write 512MiB"),
        (of_slots, "free<-5/h", "not a threshold"),
        (of_slots, "free<5MiB/h", "not known to be in MiB"),
    ],
)
def test_what_is_no_amount_there_is_refused_with_what_would_do(
    parse: Callable[[object], object], text: object, said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse(text)


def test_the_columns_of_these_tests_have_the_units_that_they_are_named_for() -> None:
    assert parse_unit("MiB").unit is Unit.BYTES
    assert parse_unit("slots").unit is Unit.SLOTS
