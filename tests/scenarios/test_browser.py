"""report.html in a real browser: it loads without errors, zooms, and makes no requests."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hybridbench.report.build import build_document
from hybridbench.report.document import Chart, ChartGroup, Document, DocumentKind, Ink, Line
from hybridbench.report.html import render_html
from tests.scenarios.chromium import HOW, Tab, chromium
from tests.unit.report import synthetic

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason=HOW),
]

RANGE = "document.querySelector('output.range').textContent"


def picture_of(key: str) -> str:
    """JavaScript for the pixels of a chart."""
    return f"document.querySelector('#chart-{key} canvas').toDataURL()"


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with Tab() as opened:
        yield opened


def opened(tab: Tab, document: Document, folder: Path) -> None:
    """Show ``document``, without the errors and requests of the previous page."""
    page = folder / "report.html"
    page.write_text(render_html(document), "utf-8")
    tab.complaints.clear()
    tab.requests.clear()
    tab.open(page)


def run_document(length_s: float = 300.0) -> Document:
    record = synthetic.record_of(length_s)
    return build_document(record, synthetic.leak_verdict(record))


def comparison_document() -> Document:
    rounds = np.arange(1.0, 13.0)
    ratio = 0.95 + 0.01 * np.sin(rounds)
    lines = (
        Line("B / A", rounds, ratio, Ink.POINTS),
        Line("lower", rounds, ratio - 0.02, Ink.SPREAD),
        Line("upper", rounds, ratio + 0.02, Ink.SPREAD),
        Line("equal", rounds[[0, -1]], np.ones(2), Ink.LIMIT),
    )
    chart = Chart(
        "ratio", "Throughput, round by round", "", lines, from_zero=False, counted="round"
    )
    made = run_document()
    return replace(
        made,
        kind=DocumentKind.COMPARISON,
        charts=(ChartGroup("Ratios", (chart,)), *made.charts),
    )


def middle_of(tab: Tab, key: str) -> tuple[float, float, float]:
    """Return the left and right edge of a chart's plotting area, and its vertical centre."""
    script = (
        f"(() => {{ const e = document.querySelector('#chart-{key} .u-over');"
        "e.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const b = e.getBoundingClientRect();"
        "return [b.left, b.right, (b.top + b.bottom) / 2]; })()"
    )
    left, right, height = tab.run(script)
    tab.settle()
    return float(left), float(right), float(height)


@pytest.mark.parametrize("length_s", [300.0, 12 * 3600.0], ids=["five minutes", "a night"])
def test_a_page_opens_without_a_complaint_and_asks_for_nothing_but_itself(
    tab: Tab, tmp_path: Path, length_s: float
) -> None:
    opened(tab, run_document(length_s), tmp_path)

    drawn = tab.run("document.querySelectorAll('.plot canvas').length")
    assert drawn == tab.run("document.querySelectorAll('.plot').length") > 20
    assert tab.complaints == []
    assert tab.requests
    assert all(url.startswith(("file:", "data:")) for url in tab.requests)
    assert len([url for url in tab.requests if url.startswith("file:")]) == 1


def test_a_request_from_the_page_is_refused_by_its_policy(tab: Tab, tmp_path: Path) -> None:
    opened(tab, run_document(), tmp_path)

    said = tab.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')")

    assert said == "refused"
    assert any("Content Security Policy" in text for text in tab.complaints)


def test_the_first_screen_is_the_answer(tab: Tab, tmp_path: Path) -> None:
    opened(tab, run_document(), tmp_path)

    bottom = tab.run("document.querySelector('.answer').getBoundingClientRect().bottom")

    assert 0 < bottom < 900


def test_dragging_over_one_chart_zooms_all_of_them_and_a_double_click_goes_back(
    tab: Tab, tmp_path: Path
) -> None:
    opened(tab, run_document(), tmp_path)
    whole, other = tab.run(RANGE), tab.run(picture_of("throughput"))
    left, right, height = middle_of(tab, "rss")
    width = right - left

    tab.drag((left + 0.25 * width, height), (left + 0.5 * width, height))
    zoomed, moved = tab.run(RANGE), tab.run(picture_of("throughput"))
    tab.double_click((left + 0.5 * width, height))

    assert whole == "0:00:00 to 0:04:55"
    start, end = zoomed.split(" to ")
    assert "0:01:1" in start
    assert "0:02:3" in end or "0:02:2" in end
    assert moved != other
    assert tab.run(RANGE) == whole
    assert tab.complaints == []


def test_keys_and_buttons_zoom_too(tab: Tab, tmp_path: Path) -> None:
    opened(tab, run_document(), tmp_path)
    whole = tab.run(RANGE)
    tab.run("document.querySelector('[data-chart=rss]').focus({preventScroll: true})")

    tab.key("+")
    closer = tab.run(RANGE)
    tab.key("Escape")
    back = tab.run(RANGE)
    tab.run("document.querySelector('[data-range=window]').click()")

    assert closer != whole == back
    assert tab.run(RANGE).startswith("0:01:00")


def test_a_chart_that_counts_rounds_zooms_alone_and_shows_its_intervals(
    tab: Tab, tmp_path: Path
) -> None:
    opened(tab, comparison_document(), tmp_path)
    before, whole = tab.run(picture_of("ratio")), tab.run(RANGE)
    memory = tab.run(picture_of("rss"))
    left, right, height = middle_of(tab, "ratio")

    tab.drag((left + 0.2 * (right - left), height), (left + 0.6 * (right - left), height))

    assert tab.run(picture_of("ratio")) != before
    assert tab.run(RANGE) == whole
    assert tab.run(picture_of("rss")) == memory
    assert tab.complaints == []


def test_the_dark_page_is_dark_and_its_curves_are_drawn_anew(tab: Tab, tmp_path: Path) -> None:
    opened(tab, run_document(), tmp_path)
    paper = "getComputedStyle(document.body).backgroundColor"
    light = (tab.run(paper), tab.run(picture_of("rss")))

    tab.prefer("dark")
    dark = (tab.run(paper), tab.run(picture_of("rss")))
    tab.prefer("light")

    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] == "rgb(20, 23, 27)"
    assert dark[1] != light[1]
    assert tab.run(picture_of("rss")) == light[1]


def test_nothing_on_the_page_is_wider_than_a_telephone(tab: Tab, tmp_path: Path) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    tab.send("Emulation.setDeviceMetricsOverride", **size)
    try:
        opened(tab, comparison_document(), tmp_path)

        assert tab.run("document.documentElement.scrollWidth") == 390
    finally:
        tab.send("Emulation.setDeviceMetricsOverride", **{**size, "width": 1280, "height": 900})


def test_charts_follow_the_width_of_the_window(tab: Tab, tmp_path: Path) -> None:
    size = {"width": 1300, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    tab.send("Emulation.setDeviceMetricsOverride", **size)
    opened(tab, run_document(), tmp_path)
    widths = (
        "[...document.querySelectorAll('.plot')].map(p => [p.getBoundingClientRect().width,"
        " p.querySelector('.u-wrap').getBoundingClientRect().width].map(Math.floor))"
    )
    try:
        for width in (1100, 700, 360, 1300):
            tab.send("Emulation.setDeviceMetricsOverride", **{**size, "width": width})
            tab.settle()

            assert all(holder == chart for holder, chart in tab.run(widths))
            assert tab.run("document.documentElement.scrollWidth") == width
    finally:
        tab.send("Emulation.setDeviceMetricsOverride", **{**size, "width": 1280})


def test_legends_say_which_number_they_show_and_that_of_a_moment_pointed_at(
    tab: Tab, tmp_path: Path
) -> None:
    opened(tab, run_document(), tmp_path)
    legend = "document.querySelector('#chart-ttft .u-legend').textContent"
    # The quantiles of the table of latencies; other charts show the mean of their samples.
    assert "judged windowp5041 msp99118 ms" in tab.run(legend)
    throughput = tab.run(legend.replace("ttft", "throughput"))
    assert "mean of the judged window" in throughput
    left, right, height = middle_of(tab, "ttft")

    tab.drag((left + 0.5 * (right - left), height), (left + 0.5 * (right - left), height))

    assert "0:02:" in tab.run(legend)
    assert "judged window" not in tab.run(legend)


def test_the_page_prints_with_its_charts(tab: Tab, tmp_path: Path) -> None:
    opened(tab, run_document(), tmp_path)

    paper = base64.b64decode(tab.send("Page.printToPDF", printBackground=True)["data"])

    assert paper.startswith(b"%PDF")
    assert len(paper) > 100_000
    assert tab.complaints == []
    assert tab.run("document.documentElement.hasAttribute('data-print')") is False
