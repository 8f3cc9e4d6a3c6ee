"""report.html: self-contained, strict, complete, and small enough to mail."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from hybridbench.analysis.record import RunRecord
from hybridbench.records.events import Note, Phase, Steady
from hybridbench.records.manifest import manifest_from_json
from hybridbench.records.verdict import Verdict
from hybridbench.report.build import build_document
from hybridbench.report.html import render_html
from tests.unit.report import synthetic

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&\u2028\"'"

VOID = {"meta", "link", "img", "br", "hr", "input", "wbr"}


class Page(HTMLParser):
    """Elements with their attributes, the text of scripts and styles, and unbalanced tags."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inline: dict[str, list[str]] = {"script": [], "style": []}
        self.words: list[str] = []
        self.stack: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)
        if tag in self.inline:
            self.inline[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] in self.inline:
            self.inline[self.stack[-1]][-1] += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    def data(self) -> Any:
        position = next(
            i
            for i, attrs in enumerate(a for tag, a in self.elements if tag == "script")
            if attrs.get("type") == "application/json"
        )
        return json.loads(self.inline["script"][position])


def page_of(
    make: Callable[[RunRecord], Verdict] = synthetic.leak_verdict, record: RunRecord | None = None
) -> Page:
    run = record if record is not None else synthetic.record_of(300.0)
    return Page(render_html(build_document(run, make(run))))


def test_nothing_on_the_page_comes_from_elsewhere() -> None:
    page = page_of()

    links = [
        value
        for _, attrs in page.elements
        for name, value in attrs.items()
        if name in {"src", "href", "action", "data", "poster", "srcset"} and value
    ]
    assert links
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert not [tag for tag, _ in page.elements if tag in {"iframe", "object", "embed", "base"}]
    styles = "".join(page.inline["style"])
    assert "url(" not in styles
    assert "@import" not in styles


def test_the_policy_allows_the_scripts_and_styles_of_the_page_and_nothing_else() -> None:
    page = page_of()
    policy = next(
        attrs["content"]
        for tag, attrs in page.elements
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split(";")}

    def hash_of(text: str) -> str:
        digest = hashlib.sha256(text.encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    run = [
        text
        for text, attrs in zip(
            page.inline["script"], (a for t, a in page.elements if t == "script"), strict=True
        )
        if "type" not in attrs
    ]
    assert rules["default-src"] == ["'none'"]
    assert rules["script-src"] == [hash_of(text) for text in run]
    assert rules["style-src"] == [hash_of(text) for text in page.inline["style"]]
    assert "connect-src" not in rules
    # Attributes that the policy would block must not be relied on.
    assert not [a for _, attrs in page.elements for a in attrs if a == "style" or a[:2] == "on"]


def test_hostile_texts_of_a_run_stay_texts() -> None:
    record = synthetic.record_of(
        120.0,
        model={"name": HOSTILE, "note": HOSTILE},
        run_id=HOSTILE,
        command=["hybridbench", HOSTILE],
        profile={"name": HOSTILE, "resolved": {HOSTILE: HOSTILE}},
    )
    hostile_events = {Phase: Phase(HOSTILE, HOSTILE), Steady: Steady(HOSTILE)}
    events = [
        msgspec.structs.replace(hostile_events.get(type(event), Note(HOSTILE)), t_s=event.t_s)
        for event in record.events
    ]
    hostile = RunRecord(record.manifest, record.series, events)

    page = page_of(record=hostile)

    assert [tag for tag, _ in page.elements].count("script") == 3
    assert "img" not in [tag for tag, _ in page.elements]
    assert "alert(1)" in page.text
    assert page.data()["timeline"]["phases"][0][0] == HOSTILE


def test_every_chart_of_the_page_has_its_data() -> None:
    page = page_of()

    named = [a["data-chart"] for _, a in page.elements if "data-chart" in a]
    charts = page.data()["charts"]
    assert set(named) == set(charts)
    assert len(named) == len(charts)
    for wanted in (
        "private",
        "rss",
        "collectible-bytes",
        "pool-kv",
        "throughput",
        "ttft",
        "sampler",
        "share",
    ):
        assert wanted in named
    assert {line["ink"] for line in charts["private"]["lines"]} == {"plain", "fit", "spread"}
    assert charts["private"]["unit"] == "MiB"
    assert charts["pool-mamba"]["stacked"]


def test_ids_are_unique_and_links_lead_somewhere() -> None:
    page = page_of()

    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = {a["href"] for tag, a in page.elements if tag == "a"}
    assert targets <= {f"#{name}" for name in ids}


def test_a_page_without_charts_has_no_link_to_them() -> None:
    record = synthetic.record_of(120.0)
    document = replace(build_document(record, synthetic.clean_verdict(record)), charts=())

    assert 'href="#charts"' not in render_html(document)


def test_the_first_heading_is_the_answer_and_names_rate_event_and_time() -> None:
    page = page_of()
    text = page.text

    start, end = text.index("exit code 10"), text.index("Findings")
    answer = text[start:end]
    assert "▲ LEAK" in text[:start]
    for words in ("0.93 nodes per evicted node", "+1.61 GiB/h", "+1.55 to +1.67 GiB", "0:01:00"):
        assert words in answer
    assert "--defect lru-reference-cycle" in answer


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (synthetic.clean_verdict, ["✓ CLEAN", "growth of at most 27.0 MiB/h (95%)", "200 MiB/h"]),
        (synthetic.open_verdict, ["? INCONCLUSIVE", "Run for 46m", "--duration 46m"]),
        (synthetic.invalid_verdict, ["∅ INVALID", "retracts seen 0, required 5", "✕ NOT MET"]),
        (synthetic.crash_verdict, ["✕ CRASHED", "alloc <failed> & gone", "0:03:32"]),
    ],
)
def test_each_verdict_says_what_it_means(
    make: Callable[[RunRecord], Verdict], words: list[str]
) -> None:
    page = page_of(make, synthetic.record_of(300.0, leaky=False))

    for word in words:
        assert word in page.text


def test_a_run_killed_at_once_still_has_a_page() -> None:
    record = RunRecord(manifest_from_json(synthetic.manifest()), {}, ())
    verdict = synthetic.crash_verdict(synthetic.record_of(120.0))

    page = Page(render_html(build_document(record, verdict)))

    assert "CRASHED" in page.text
    assert page.data()["charts"] == {}


def test_a_cpu_run_says_that_its_model_is_tiny() -> None:
    assert "tiny preset" in page_of().text
    on_gpu = synthetic.record_of(120.0, model={"name": "qwen3-next", "device": "cuda"})
    assert "tiny preset" not in page_of(record=on_gpu).text


def test_a_night_fits_in_three_megabytes() -> None:
    record = synthetic.record_of(12 * 3600.0)

    text = render_html(build_document(record, synthetic.leak_verdict(record)))

    assert len(text.encode()) < 3_000_000
    longest = max(
        len(line["t"]) for chart in Page(text).data()["charts"].values() for line in chart["lines"]
    )
    assert 1_000 < longest <= 2_000
