from __future__ import annotations

import io
import os
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from hybridbench.runs.live import (
    LastingView,
    LiveView,
    PlainView,
    make_view,
    picture,
)
from hybridbench.runs.status import PoolLevel, RunStatus, View


def make_status() -> RunStatus:
    status = RunStatus("qwen3-next / smoke", duration_s=180.0, phase="steady")
    status.traffic_s, status.elapsed_s = 60.0, 65.0
    for second in range(70):
        status.elapsed_s = float(second)
        status.saw_sample(
            {
                "rss_anon_swap_bytes": 300 * 2**20 + 2**20 * second / 100 + 4096 * (second % 3),
                "requests_per_s": 120.0,
                "throughput_tokens_per_s": 12_345.0,
                "ttft_ms_p50": 17.81,
                "ttft_ms_p99": 141.3,
            }
        )
    status.pools["mamba"] = PoolLevel(total=100, available=25, evictable=50, in_flight=25)
    return status


def shown(ui: str) -> View:
    view = make_view(ui, io.StringIO())
    view.close()
    return view.shown if isinstance(view, LastingView) else view


def test_without_a_terminal_there_are_plain_lines_and_with_none_there_is_nothing() -> None:
    assert isinstance(shown("auto"), PlainView)
    assert type(shown("none")) is View
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

        # The pipe is no longer used: what others write to the same stream is lost without an error.
        stream.write("the last words\n" * 10_000)
    assert isinstance(view, LastingView)
    assert type(view.shown) is View


def test_a_line_has_a_time_and_what_matters_and_no_colour() -> None:
    stream = io.StringIO()
    view = make_view("plain", stream)
    view.note("building [model]")
    view.update(make_status())

    note, line = stream.getvalue().splitlines()
    assert re.match(r"\d\d:\d\d:\d\d building \[model\]$", note)
    assert re.match(
        r"\d\d:\d\d:\d\d steady +1m of 3m +private memory 301 MiB +120 req/s "
        r"+[\d.]+( k)? computed tok/s .*75% +too early",
        line,
    )
    assert "\x1b" not in stream.getvalue()


def test_lines_come_with_a_phase_and_then_now_and_then_only() -> None:
    stream = io.StringIO()
    view = PlainView(Console(file=stream, width=200))
    status = make_status()
    for second in range(600):
        status.elapsed_s = float(second)
        # Checkpoints do not get lines of their own.
        status.phase = "drain" if second % 20 == 5 else "steady"
        view.update(status)

    assert 15 <= len(stream.getvalue().splitlines()) <= 30


def test_the_picture_shows_progress_memory_pools_and_what_probing_costs() -> None:
    stream = io.StringIO()
    Console(file=stream, width=120, no_color=True).print(picture(make_status(), 120))
    text = stream.getvalue()

    assert "1m of 3m, 2m to go" in text
    assert "301 MiB" in text
    assert re.search(r"pool mamba +75% +█{8}▒{15}·{7}", text)
    assert "0.00%" in text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (50, 20)])
def test_the_picture_fits_a_small_terminal_with_growth_and_ttft(width: int, height: int) -> None:
    status = make_status()
    for name in ("kv", "req"):
        status.pools[name] = PoolLevel(total=4096, available=1024, evictable=2048, in_flight=1024)
    status.suspicion = "waiting requests hold 12 slots of the mamba pool"
    stream = io.StringIO()
    Console(file=stream, width=width, no_color=True).print(picture(status, width))
    lines = stream.getvalue().splitlines()

    assert len(lines) < height
    assert max(cell_len(line.rstrip()) for line in lines) <= width
    assert "…" not in stream.getvalue()
    text = " ".join(stream.getvalue().split())
    assert re.search(r"growth \+36\.0 MiB/h ± \d+ KiB/h \(95%\), private memory", text)
    assert "TTFT 17.8 ms p50; p99 141 ms" in text
