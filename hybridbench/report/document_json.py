"""A whole document for machines, by the published schema ``report``; the curves stay out of it.

They are in samples.jsonl, every sample of them, and would make megabytes here.
"""

from __future__ import annotations

import math

from hybridbench.records.codec import to_json
from hybridbench.records.json_value import JsonValue, json_text
from hybridbench.report.document import Document, Measure, Table
from hybridbench.rundir.layout import REPORT_SCHEMA


def render_document_json(document: Document) -> str:
    """The text of ``report --format json``."""
    return json_text(document_to_json(document))


def document_to_json(document: Document) -> dict[str, JsonValue]:
    """``document`` as schema ``hybridbench.report/1`` wants it; without NaN and infinities."""
    return {
        "schema": REPORT_SCHEMA,
        "tool": {"name": "hybridbench", "version": document.tool_version},
        "kind": document.kind.name.lower(),
        "id": document.run_id,
        "suite": document.suite,
        "about": document.subtitle,
        "answer": document.badge.word,
        "tone": document.badge.tone.value,
        "exit_code": document.exit_code,
        "headline": document.headline,
        "meaning": document.meaning,
        "facts": [to_json(fact) for fact in document.answer],
        "ruling": document.ruling,
        "gates": [to_json(gate) for gate in document.gates],
        "measures": [to_json(measure) for measure in document.measures],
        "tables": [_table(table) for table in document.tables],
        "findings": [
            {**to_json(finding), "badge": finding.badge.word, "data": dict(finding.data)}
            for finding in document.findings
        ],
        "bounds": _table(document.bounds),
        "coverage": _table(document.coverage),
        "not_seen": list(document.not_seen),
        "notes": list(document.notes),
        "diagnosis": None if document.diagnosis is None else document.diagnosis.paragraph,
        "provenance": [_table(table) for table in document.provenance],
        "command": document.command,
    }


def render_benchmark_json(document: Document) -> str:
    """Numbers for github-action-benchmark's ``customSmallerIsBetter``."""
    rows: list[JsonValue] = [
        {"name": f"{document.suite}: {m.name}", "unit": m.unit, "value": m.value, **_range(m)}
        for m in document.measures
        if m.smaller_is_better and math.isfinite(m.value)
    ]
    return json_text(rows)


def _range(measure: Measure) -> dict[str, str]:
    lower, upper = measure.lower, measure.upper
    if lower is None or upper is None or not math.isfinite(lower + upper):
        return {}
    return {"range": f"{lower + 0.0:.6g} to {upper + 0.0:.6g}"}


def _table(table: Table) -> dict[str, JsonValue]:
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": [list(row) for row in table.rows],
        "note": table.note,
    }
