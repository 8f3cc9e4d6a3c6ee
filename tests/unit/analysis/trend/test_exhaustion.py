"""Which limit a growing metric reaches, and when."""

from __future__ import annotations

import pytest

from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.trend.exhaustion import Limit, limit_of, time_to_exhaustion
from hybridbench.records.finding import Rate
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import manifest_from_json


def record(limits: dict[str, JsonValue]) -> RunRecord:
    pools: dict[str, JsonValue] = {"mamba": 200}
    return RunRecord(manifest_from_json({"limits": limits, "pools": pools}), {}, [])


def rate(value: float, lower: float, upper: float) -> Rate:
    return Rate(value, lower, upper, "B", "h")


def test_the_interval_of_the_rate_becomes_that_of_the_time() -> None:
    left = time_to_exhaustion(Limit(100.0, "a limit"), 40.0, rate(20.0, 10.0, 30.0))

    assert left is not None
    assert (left.soonest_s, left.expected_s, left.latest_s) == (7200.0, 10800.0, 21600.0)


def test_a_rate_that_may_be_zero_may_never_get_there() -> None:
    left = time_to_exhaustion(Limit(100.0, "a limit"), 40.0, rate(20.0, -1.0, 30.0))

    assert left is not None
    assert left.latest_s is None


def test_what_does_not_grow_runs_into_nothing() -> None:
    assert time_to_exhaustion(Limit(100.0, "a limit"), 40.0, rate(-1.0, -2.0, 1.0)) is None


def test_past_the_limit_is_now() -> None:
    left = time_to_exhaustion(Limit(100.0, "a limit"), 140.0, rate(20.0, 10.0, 30.0))

    assert left is not None
    assert left.expected_s == 0.0


@pytest.mark.parametrize(
    ("source", "said"), [("cgroup", "control group"), ("MemAvailable", "machine had available")]
)
def test_memory_says_who_limits_it(source: str, said: str) -> None:
    limit = limit_of(record({"memory_bytes": 8e9, "memory_source": source}), "rss_anon_swap_bytes")

    assert limit is not None
    assert limit.size == 8e9
    assert said in limit.said


def test_pools_and_descriptors_have_limits_of_their_own() -> None:
    known = record({"open_files": 1024})
    pool, files = limit_of(known, "pool.mamba.residual"), limit_of(known, "open_fds")

    assert pool is not None
    assert (pool.size, pool.said) == (200.0, "the size of the mamba pool")
    assert files is not None
    assert files.size == 1024.0


def test_the_device_is_full_one_day() -> None:
    limit = limit_of(record({"device_bytes": 80e9}), "device_allocated_bytes")

    assert limit is not None
    left = time_to_exhaustion(limit, 20e9, rate(30e9, 20e9, 60e9))
    assert left is not None
    assert left.text("B") == (
        "at this rate the limit of 74.5 GiB is reached in 2h (1h to 3h) "
        "(what the device had for the engine)"
    )


def test_what_the_manifest_does_not_know_has_no_limit() -> None:
    assert limit_of(record({}), "rss_anon_swap_bytes") is None
    assert limit_of(record({}), "pool.kv.residual") is None
    assert limit_of(record({}), "allocated_blocks") is None
