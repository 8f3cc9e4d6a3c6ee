"""The charts of a comparison: ratios per round, sides overlaid."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hybridbench.report.comparison_charts import comparison_charts
from hybridbench.report.document import Chart, Ink
from tests.unit.report.comparisons import comparison, judged


def _charts(ratio: float = 0.9) -> dict[str, Chart]:
    made = comparison(ratio)
    groups = comparison_charts(made, judged(made))
    return {chart.key: chart for group in groups for chart in group.charts}


def test_each_round_is_a_point_between_the_ends_of_the_interval_and_the_margin() -> None:
    chart = _charts()["ratio-1-throughput-tokens-per-s"]

    by_ink = {line.ink: line for line in chart.lines}
    points = by_ink[Ink.POINTS]
    assert chart.counted == "round"
    assert points.t_s.tolist() == list(range(1, 13))
    assert float(np.median(points.value)) == pytest.approx(0.9, abs=0.01)
    spread = [line.value[0] for line in chart.lines if line.ink is Ink.SPREAD]
    assert spread[0] < by_ink[Ink.FIT].value[0] < spread[1]
    limits = [line.value[0] for line in chart.lines if line.ink is Ink.LIMIT]
    assert limits == pytest.approx([1 / 1.03, 1.03])


def test_an_interval_of_a_few_rounds_does_not_flatten_the_points() -> None:
    made = comparison(0.9)
    verdict = judged(made)
    side = verdict.sides[0]
    wide = tuple(replace(metric, lower=0.01, upper=math.inf) for metric in side.metrics)
    unsure = replace(verdict, sides=(replace(side, metrics=wide),))

    chart = comparison_charts(made, unsure)[0].charts[0]

    spread = [line.value[0] for line in chart.lines if line.ink is Ink.SPREAD]
    others = np.concatenate([line.value for line in chart.lines if line.ink is not Ink.SPREAD])
    assert spread[1] - spread[0] <= 5.01 * np.ptp(others)
    assert str(chart.note).endswith("The interval goes beyond the chart.")
    assert "beyond" not in str(_charts()[chart.key].note)


def test_only_what_gates_has_a_chart_of_ratios() -> None:
    keys = [key for key in _charts() if key.startswith("ratio-")]

    assert "ratio-1-ttft-ms-p50" in keys
    assert "ratio-1-ttft-ms-p99" not in keys


def test_the_sides_lie_over_each_other_in_their_own_colours() -> None:
    charts = _charts()

    memory = charts["side-rss-anon-swap-bytes"]
    assert [line.label for line in memory.lines] == ["A . (working tree)", "B defect:x"]
    assert [line.colour for line in memory.lines] == [0, 1]
    assert charts["side-pool-mamba-available"].title == "Recurrent state slots: free"


def test_stored_runs_have_no_rounds_to_draw() -> None:
    made = replace(comparison(), interleaved=False)

    keys = [c.key for group in comparison_charts(made, judged(made)) for c in group.charts]

    assert not [key for key in keys if key.startswith(("ratio-", "blocks"))]
    assert "side-rss-anon-swap-bytes" in keys


def test_keys_are_unique_with_several_versions() -> None:
    made = comparison(several=True)

    keys = [c.key for group in comparison_charts(made, judged(made)) for c in group.charts]

    assert len(keys) == len(set(keys))
