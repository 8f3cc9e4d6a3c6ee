"""The JSON document: its schema, finite numbers, and the numbers for github-action-benchmark."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import jsonschema
import pytest

from hybridbench.analysis.record import RunRecord
from hybridbench.records.verdict import Verdict
from hybridbench.report.build import build_document
from hybridbench.report.document import DocumentKind, Measure
from hybridbench.report.document_json import render_benchmark_json, render_document_json
from hybridbench.report.formats import FORMATS
from hybridbench.report.quantity import Quantity
from hybridbench.rundir.layout import published_schema
from tests.unit.report import synthetic


@pytest.mark.parametrize(
    "make",
    [synthetic.leak_verdict, synthetic.open_verdict, synthetic.invalid_verdict],
    ids=lambda make: make.__name__,
)
def test_a_document_follows_the_published_schema(make: Callable[[RunRecord], Verdict]) -> None:
    record = synthetic.record_of(300.0)
    document = build_document(record, make(record))

    stored = json.loads(render_document_json(document))

    jsonschema.Draft202012Validator.check_schema(published_schema("report"))
    jsonschema.validate(stored, published_schema("report"))
    assert stored["answer"] == document.badge.word
    assert [gate["name"] for gate in stored["gates"]] == [gate.name for gate in document.gates]


@pytest.mark.parametrize("kind", DocumentKind)
def test_a_document_of_every_kind_follows_the_schema(kind: DocumentKind) -> None:
    record = synthetic.record_of(300.0)
    document = replace(build_document(record, synthetic.leak_verdict(record)), kind=kind)

    jsonschema.validate(json.loads(render_document_json(document)), published_schema("report"))


def test_an_open_interval_is_null() -> None:
    record = synthetic.record_of(300.0)

    stored = json.loads(
        render_document_json(build_document(record, synthetic.open_verdict(record)))
    )

    assert {measure["upper"] for measure in stored["measures"]} == {None}


def test_an_invalid_run_leaves_no_number_in_anybodys_trend() -> None:
    record = synthetic.record_of(300.0)

    invalid = build_document(record, synthetic.invalid_verdict(record))
    clean = build_document(record, synthetic.clean_verdict(record))

    assert invalid.measures == ()
    assert [measure.name for measure in clean.measures] == [
        "rss_anon_swap_bytes growth",
        "gc_collectible_bytes growth",
    ]


def test_benchmark_numbers_are_those_that_are_better_when_smaller() -> None:
    record = synthetic.record_of(300.0)
    document = build_document(record, synthetic.leak_verdict(record))
    measures = (
        Measure("rss growth", Quantity("rss", 1.5, lower=1.0, upper=2.0), "B/h"),
        Measure("hit_rate", Quantity("hits", 0.6), "ratio", smaller_is_better=False),
        Measure("lost", Quantity("lost", math.nan), "B/h"),
    )

    rows = json.loads(render_benchmark_json(replace(document, measures=measures)))

    assert rows == [
        {"name": f"{document.suite}: rss growth", "unit": "B/h", "value": 1.5, "range": "1 to 2"}
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_says_the_answer(name: str) -> None:
    record = synthetic.record_of(300.0)
    document = build_document(record, synthetic.leak_verdict(record))

    text = FORMATS[name](document)

    assert ("growth" if name == "benchmark-json" else "LEAK") in text
    assert text.endswith("\n")
