from __future__ import annotations

import io
import os
import re

import pytest
from rich.console import Console

from hybridbench.runs.live import (
    LastingView,
    LiveView,
    PlainView,
    SilentView,
    make_view,
    picture,
    sparkline,
)
from hybridbench.runs.status import PoolLevel, RunStatus, View


def make_status() -> RunStatus:
    status = RunStatus("qwen3-next / smoke", "", duration_s=180.0, phase="steady")
    status.traffic_s, status.elapsed_s = 60.0, 65.0
    status.saw_sample({"rss_bytes": 400 * 2**20, "requests_per_s": 120.0})
    status.pools["mamba"] = PoolLevel(total=100, available=25, evictable=50, in_flight=25)
    return status


def shown(ui: str) -> View:
    view = make_view(ui, io.StringIO())
    view.close()
    return view.shown if isinstance(view, LastingView) else view


def test_without_a_terminal_there_are_plain_lines_and_with_none_there_is_nothing() -> None:
    assert isinstance(shown("auto"), PlainView)
    assert isinstance(shown("none"), SilentView)
    assert isinstance(shown("live"), LiveView)


@pytest.mark.parametrize("ui", ["plain", "live"])
def test_a_view_whose_reader_died_goes_silent_and_the_run_goes_on(ui: str) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w", encoding="utf-8") as stream:
        view = make_view(ui, stream)
        view.update(make_status())
        os.close(read)

        for second in range(3):
            view.note(f"nobody reads this: {second}")
            view.update(make_status())
        view.close()

        # The pipe is left: what others write to the same stream goes nowhere, and fails nowhere.
        stream.write("the last words\n" * 10_000)
    assert isinstance(view, LastingView)
    assert isinstance(view.shown, SilentView)


def test_a_line_has_a_time_and_what_matters_and_no_colour() -> None:
    stream = io.StringIO()
    view = make_view("plain", stream)
    view.note("building [model]")
    view.update(make_status())

    note, line = stream.getvalue().splitlines()
    assert re.match(r"\d\d:\d\d:\d\d building \[model\]$", note)
    assert re.match(
        r"\d\d:\d\d:\d\d steady +1m of 3m +rss 400 MiB +120 req/s .*mamba 75% +too early", line
    )
    assert "\x1b" not in stream.getvalue()


def test_lines_come_with_a_phase_and_then_now_and_then_only() -> None:
    stream = io.StringIO()
    view = PlainView(Console(file=stream, width=200))
    status = make_status()
    for second in range(600):
        status.elapsed_s = float(second)
        # Checkpoints come and go without a line of their own.
        status.phase = "drain" if second % 20 == 5 else "steady"
        view.update(status)

    assert 15 <= len(stream.getvalue().splitlines()) <= 30


def test_the_picture_shows_progress_memory_pools_and_what_probing_costs() -> None:
    stream = io.StringIO()
    Console(file=stream, width=120, no_color=True).print(picture(make_status()))
    text = stream.getvalue()

    assert "1m of 3m, 2m to go" in text
    assert "400 MiB" in text
    assert re.search(r"pool mamba +75% +█{8}▒{15}·{7}", text)
    assert "0.00%" in text


def test_a_sparkline_spans_its_own_range_and_a_flat_line_looks_flat() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 50.0, 100.0]) == "▁▄█"
    assert set(sparkline([1e9, 1e9 + 1000, 1e9])) == {"▁"}
