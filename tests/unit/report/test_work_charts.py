"""The charts of the cost per unit of work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybridbench.report.work_charts import work_charts
from tests.unit.analysis.work import HIT_SHARE, Work, working_record


def test_a_run_with_timings_has_a_chart_of_each_cost_in_its_unit() -> None:
    charts = {chart.key: chart for chart in work_charts(working_record(Work(seed=1)))}

    assert set(charts) == {"hit-rate", "evict-ms", "cache-ms", "schedule-ms", "token-ms"}
    hits = charts["hit-rate"].lines[0].value
    assert charts["hit-rate"].unit == "%"
    assert float(np.median(hits)) == pytest.approx(100 * HIT_SHARE, rel=0.02)
    assert {line.label for line in charts["token-ms"].lines} == {"whole step", "model"}


def test_a_run_without_timings_keeps_the_hit_rate_alone() -> None:
    record = working_record(Work(seed=1))
    counts = {name: s for name, s in record.series.items() if name.startswith("events.")}

    assert [chart.key for chart in work_charts(replace(record, series=counts))] == ["hit-rate"]
    assert work_charts(replace(record, series={})) == ()
