"""report.html: one self-contained file, which may not load anything else.

The content security policy lists the hash of every script and style of the page, and forbids all
other sources.  Text that a run wrote (model names, log lines) is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib import resources
from typing import Final

import numpy as np
from jinja2 import BaseLoader, Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from hybridbench.report.chart_data import chart_numbers, page_data
from hybridbench.report.document import Chart, Document, tally
from hybridbench.report.wording import BADGES

# Only between two letters: a decimal point or a unit per hour must not be split.
_NAME_JOINT: Final = re.compile(r"(?<=[A-Za-z])([._/]|::)(?=[A-Za-z]{2})")

_OPTION: Final = re.compile(r"--[a-z-]{1,30}")
_STYLES: Final = ("uPlot.min.css", "report.css")
_SCRIPTS: Final = ("uPlot.iife.min.js", "report.js")


def render_html(document: Document) -> str:
    """Render the whole page."""
    styles = [_asset(name) for name in _STYLES]
    scripts = [_asset(name) for name in _SCRIPTS]
    charts = [chart for group in document.charts for chart in group.charts]
    return _template().render(
        doc=document,
        policy=_policy(scripts, styles),
        styles=styles,
        scripts=scripts,
        data=_embedded_json(page_data(document)),
        badges=BADGES,
        phases=tuple(dict.fromkeys(span.name for span in document.timeline.phases)),
        marked={mark.kind for mark in document.timeline.marks},
        tally=tally(document.gates),
        lifted={chart.key for chart in charts if _lifted(chart)},
        numbers={chart.key: chart_numbers(chart) for chart in charts},
    )


def _policy(scripts: list[str], styles: list[str]) -> str:
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(_hash_source(text) for text in scripts)}",
            f"style-src {' '.join(_hash_source(text) for text in styles)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _embedded_json(data: object) -> Markup:
    """Encode JSON so that it cannot end its script element, whatever texts it contains."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    # json.dumps writes ASCII, so these three are all that HTML could interpret.
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704


def _lifted(chart: Chart) -> bool:
    """Whether the y axis, as drawn by the page's script, begins above zero."""
    values = [line.value for line in chart.lines if line.value.size]
    if chart.from_zero or not values:
        return False
    low = min(float(np.min(value)) for value in values)
    high = max(float(np.max(value)) for value in values)
    span = max(high - low, chart.min_span)
    return low - (span - (high - low)) / 2 - 0.06 * span > 0


def _breakable(text: object) -> Markup:
    """Escape ``text``, with break points in dotted or underscored names for narrow screens."""
    return Markup(_NAME_JOINT.sub(r"\1<wbr>", str(escape(str(text)))))  # noqa: S704


def _command(text: str) -> Markup:
    """Escape a command so that no line break splits its options; copying yields the same text."""
    words = (
        f'<span class="whole">{escape(word)}</span>' if _OPTION.fullmatch(word) else escape(word)
        for word in text.split(" ")
    )
    return Markup(" ".join(words))  # noqa: S704


@cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text("utf-8")


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=BaseLoader(),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["breakable"] = _breakable
    environment.filters["command"] = _command
    return environment.from_string(_asset("report.html.j2"))
