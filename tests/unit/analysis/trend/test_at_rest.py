"""Threads and open files at idle points decide what traffic leaves open."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hybridbench.analysis.trend.at_rest import decided_at_rest
from hybridbench.analysis.trend.reasons import FewSteps
from hybridbench.foundation.labels import of_process
from hybridbench.records.events import IdleLook
from hybridbench.records.finding import Rate
from hybridbench.records.verdict import MetricResult
from tests.unit.analysis.records import Run, healthy_record, with_events

LABELS = of_process("server", "", "")
# Of llama.cpp, which has one thread for each connection; 26 to 31 under traffic.
BACK = [11, 11, 12, 11, 11, 11, 12, 11, 11, 11]
KEPT = [11, 12, 13, 13, 14, 15, 16, 16, 17, 18]


def undecided(metric: str = "threads", lower: float = -13.4) -> MetricResult:
    rate = Rate(0.0, lower, 8.0, "count", "h")
    return MetricResult(
        metric, "INCONCLUSIVE", (60.0, 660.0), rate, None, 1.0, None, "", why=FewSteps().why()
    )


def decided(result: MetricResult, held: Sequence[int], pids: Sequence[int] = ()) -> MetricResult:
    looks = [
        IdleLook("server", pid, handles={"threads": float(count)}, t_s=90.0 + 60.0 * index)
        for index, (count, pid) in enumerate(zip(held, pids or [7] * len(held), strict=True))
    ]
    record = with_events(healthy_record(Run(duration_s=60.0, steady_s=10.0)), *looks)
    (found,) = decided_at_rest(record, [result], LABELS)
    return found


@pytest.mark.parametrize(
    ("result", "held", "pids", "expected"),
    [
        (undecided(), BACK, (), "CLEAN"),
        (undecided(), KEPT, (), "INCONCLUSIVE"),  # by 42 an hour
        (undecided(), BACK[:7], (), "INCONCLUSIVE"),  # too few
        (undecided(), BACK, [*range(5, 10), *range(5, 10)], "INCONCLUSIVE"),  # other processes
        (undecided(lower=3.0), BACK, (), "INCONCLUSIVE"),  # they surely grow under traffic
        (undecided("rss_anon_swap_bytes"), BACK, (), "INCONCLUSIVE"),
    ],
)
def test_handles_that_are_gone_at_each_idle_point_are_not_kept(
    result: MetricResult, held: Sequence[int], pids: Sequence[int], expected: str
) -> None:
    assert decided(result, held, pids).outcome == expected


def test_an_outcome_of_clean_says_by_how_much_they_may_grow() -> None:
    found = decided(undecided(), BACK)

    assert found.rate_per_hour is not None
    assert found.rate_per_hour.upper < 18.0
    assert "(95%), below the tolerance of 18/h" in found.reason
