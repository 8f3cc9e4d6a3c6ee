"""The data inside the page unpacks to the measured values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridbench.analysis.facts.window import Window
from hybridbench.report.chart_data import chart_data, packed
from hybridbench.report.document import Chart, Legend, Line


def lines_of(chart: Chart, borders: Sequence[float] = ()) -> list[dict[str, Any]]:
    """Return the lines as the page's script reads them."""
    lines: list[dict[str, Any]] = json.loads(json.dumps(chart_data(chart, borders)))["lines"]
    return lines


def unpacked(counts: list[int | None], step: float) -> list[float | None]:
    sums = accumulate(count or 0 for count in counts)
    return [
        None if count is None else total * step for count, total in zip(counts, sums, strict=True)
    ]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.sampled_from([0.1, 1.0, 20.0]))
def test_a_value_comes_back_within_half_a_step(values: list[float], step: float) -> None:
    counts = packed(np.array(values), step)
    again = unpacked(json.loads(json.dumps(counts)), step)

    assert again == [pytest.approx(value, abs=0.51 * step) for value in values]


def test_a_hole_in_the_samples_travels_as_null() -> None:
    t = np.concatenate([np.arange(0.0, 100.0, 5.0), np.arange(400.0, 500.0, 5.0)])
    chart = Chart("c", "t", "MiB", (Line("rss", t, np.linspace(100.0, 200.0, t.size)),))

    line = lines_of(chart)[0]

    values = unpacked(line["v"], line["step"])
    assert values.count(None) == 1
    assert len(line["t"]) == t.size + 1
    shown = [value for value in values if value is not None]
    assert shown == pytest.approx(np.linspace(100.0, 200.0, t.size).tolist(), abs=0.01)


def test_counts_stay_whole() -> None:
    t = np.arange(100.0)
    chart = Chart("c", "t", "slots", (Line("residual", t, np.floor(t / 30.0)),))

    line = lines_of(chart)[0]

    assert line["step"] == 1.0


def test_the_parts_of_a_stack_share_their_times() -> None:
    rng = np.random.default_rng(1)
    t = np.arange(0.0, 40_000.0, 5.0)
    lines = tuple(Line(name, t, rng.poisson(50, t.size).astype(float)) for name in "abcdef")

    stored = lines_of(Chart("c", "t", "slots", lines, stacked=True))

    times = [line["t"] for line in stored]
    assert all(part == times[0] for part in times)
    assert len(times[0]) <= 2000


def test_a_legend_has_the_mean_of_the_judged_window_or_the_last_value_and_says_which() -> None:
    t = np.arange(0.0, 100.0)
    values = np.append(t[:-1], np.nan)
    chart = Chart("c", "t", "ms", (Line("p50", t, values),))
    mean = replace(chart, legend=Legend.MEAN)
    judged = Window(10.0, 20.0, steady=True, pauses=((12.0, 18.0),))

    made = [chart_data(chart), chart_data(mean, judged=judged), chart_data(mean)]

    names = [one["legend"] for one in made]
    assert names == ["last value", "mean of the judged window", "mean"]
    shown = [one["lines"][0]["shown"] for one in json.loads(json.dumps(made))]
    assert shown == [98.0, 15.0, 49.0]


def test_no_line_crosses_the_border_between_two_workers() -> None:
    t = np.arange(0.0, 100.0, 5.0)
    chart = Chart("k", "t", "", (Line("rss", t, t), Line("later", t + 300.0, t)))
    first, second = lines_of(chart, borders=(52.0, 300.0))

    # One gap in the line that spans a border, none in the line that begins there.
    assert (first["v"].count(None), second["v"].count(None)) == (1, 0)
    assert first["v"].index(None) == 11
    assert all(line["v"].count(None) == 0 for line in lines_of(chart))


def test_a_span_just_below_a_power_of_ten_is_drawn() -> None:
    """The logarithm of the span is rounded up to that of the power."""
    t = np.arange(3.0)
    for power in range(-12, 6):
        span = float(np.nextafter(50_000.0 * 10.0**power, 0.0))
        value = span * np.array([0.0, 1.0, 0.3])

        (line,) = lines_of(Chart("c", "t", "", (Line("a", t, value),)))

        shown = [one for one in unpacked(line["v"], line["step"]) if one is not None]
        assert shown == pytest.approx(value.tolist(), rel=1e-3)
