"""A whole document for programs, according to the published schema ``report``, without curves.

The curves would take megabytes; samples.jsonl has them in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from hybridbench.records.codec import to_json
from hybridbench.records.json_value import JsonValue, json_text
from hybridbench.report.document import NO_TABLE, Document, Measure, Table
from hybridbench.report.quantity import Form, Phrase, Quantity, quantities
from hybridbench.rundir.layout import REPORT_SCHEMA

_PARTS_OF_FULL: Final = {Form.VALUE, Form.INTERVAL, Form.BOUND}


def render_document_json(document: Document) -> str:
    """Return the text of ``report --format json``."""
    return json_text(document_to_json(document))


def document_to_json(document: Document) -> dict[str, JsonValue]:
    """Convert ``document`` to schema ``hybridbench.report/1``, without NaN and infinities."""
    return {
        "schema": REPORT_SCHEMA,
        "tool": {"name": "hybridbench", "version": document.tool_version},
        "kind": document.kind.name.lower(),
        "id": document.run_id,
        "suite": document.suite,
        "about": str(document.subtitle),
        "answer": document.badge.word,
        "tone": document.badge.tone.value,
        "exit_code": document.exit_code,
        "headline": str(document.headline),
        "meaning": document.meaning,
        "facts": _plain(document.answer),
        "ruling": str(document.ruling),
        "gates": _plain(document.gates),
        "measures": [_measure(measure) for measure in document.measures],
        "tables": [_table(table) for table in document.tables],
        "findings": [
            {**_plain(finding), "badge": finding.badge.word, "data": dict(_plain(finding.data))}
            for finding in document.findings
        ],
        "bounds": _table(document.bounds),
        "coverage": _table(document.coverage),
        "not_seen": list(document.not_seen),
        "notes": _plain(document.notes),
        "diagnosis": None if document.diagnosis is None else document.diagnosis.paragraph,
        "provenance": [_table(table) for table in document.provenance],
        "command": document.command,
        "quantities": [_quantity(one) for one in _distinct(document)],
    }


def _distinct(document: Document) -> Iterable[Quantity]:
    """Return the quantities shown, without duplicates, except those of events and curves."""
    found: dict[object, Quantity] = {}
    for one in quantities(replace(document, events=NO_TABLE, charts=())):
        key = (one.of, one.name, one.window)
        # A cell may omit the interval.
        if key not in found or (found[key].lower is None and one.lower is not None):
            found[key] = one
    return found.values()


def _quantity(quantity: Quantity) -> dict[str, JsonValue]:
    whole = quantity.shown(Form.FULL) if quantity.form in _PARTS_OF_FULL else quantity
    stored = {**to_json(quantity), "text": str(whole)}
    del stored["form"], stored["signed"]
    return stored


def _plain(part: object) -> Any:
    """Convert a ``part`` of a document to dicts and lists, with every quantity as its text."""
    if isinstance(part, Quantity | Phrase):
        return str(part)
    if is_dataclass(part):
        return {field.name: _plain(getattr(part, field.name)) for field in fields(part)}
    return [_plain(item) for item in part] if isinstance(part, tuple) else part


def render_benchmark_json(document: Document) -> str:
    """Return numbers for github-action-benchmark's ``customSmallerIsBetter``."""
    rows: list[JsonValue] = [
        {"name": f"{document.suite}: {m.name}", "unit": m.unit, "value": v.value, **_range(v)}
        for m in document.measures
        for v in [m.quantity]
        if m.smaller_is_better and math.isfinite(v.value)
    ]
    return json_text(rows)


def _measure(measure: Measure) -> dict[str, JsonValue]:
    ends = to_json(measure.quantity)
    return {
        "name": measure.name,
        "value": ends["value"],
        "unit": measure.unit,
        "lower": ends["lower"],
        "upper": ends["upper"],
        "smaller_is_better": measure.smaller_is_better,
    }


def _range(quantity: Quantity) -> dict[str, str]:
    lower, upper = quantity.lower, quantity.upper
    if lower is None or upper is None or not math.isfinite(lower + upper):
        return {}
    return {"range": f"{lower + 0.0:.6g} to {upper + 0.0:.6g}"}


def _table(table: Table) -> dict[str, JsonValue]:
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": [list(row) for row in table.texts],
        "note": str(table.note),
    }
