from __future__ import annotations

from dataclasses import fields

from hybridbench.engine.counters import EngineCounters
from hybridbench.workload.coverage import COVERAGE_COUNTERS, Floor
from hybridbench.workload.settings import Force


def test_every_counter_a_profile_may_name_is_one_the_engine_keeps() -> None:
    forced = {f"forced_{field.name}" for field in fields(Force)}
    assert set(COVERAGE_COUNTERS) <= set(EngineCounters().as_dict()) | forced
    assert forced <= set(COVERAGE_COUNTERS)


def test_the_larger_of_count_and_rate_is_the_minimum() -> None:
    floor = Floor(min=20, per_minute=6.0)

    assert floor.minimum(60.0) == 20
    assert floor.minimum(3600.0) == 360
    assert Floor(per_minute=0.5).minimum(60.0) == 1
