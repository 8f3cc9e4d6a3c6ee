"""verdict.json of a comparison, by the published schema ``hybridbench.comparison/1``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from hybridbench import __version__
from hybridbench.analysis.comparison.records import (
    Comparison,
    ComparisonVerdict,
    LeakComparison,
    MetricComparison,
    SideComparison,
    Version,
)
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Rate
from hybridbench.report.document import Document
from hybridbench.report.write import write_document, write_failures
from hybridbench.rundir.atomic import write_atomically
from hybridbench.rundir.layout import ANALYSIS_ERRORS, COMPARISON_VERDICT_SCHEMA, VERDICT


def write_comparison(
    directory: Path, comparison: Comparison, verdict: ComparisonVerdict, document: Document
) -> None:
    """verdict.json, report.html, report.md and junit.xml, each whole or not at all.

    Raises:
        RunDirectoryError: when ``directory`` cannot be written.
    """
    stored = comparison_to_json(comparison, verdict, document)
    text = json.dumps(stored, indent=2, allow_nan=False, ensure_ascii=False)
    write_atomically(directory / VERDICT, text + "\n")
    write_failures(directory / ANALYSIS_ERRORS, verdict.failures)
    write_document(directory, document)


def comparison_to_json(
    comparison: Comparison, verdict: ComparisonVerdict, document: Document
) -> dict[str, JsonValue]:
    """The answer for programs; ratios are of the later version to the first."""
    return {
        "schema": COMPARISON_VERDICT_SCHEMA,
        "tool": {"name": "hybridbench", "version": __version__},
        "comparison_id": document.run_id,
        "outcome": verdict.outcome.value,
        "word": verdict.word,
        "exit_code": document.exit_code,
        "headline": verdict.headline,
        "interleaved": verdict.interleaved,
        "rounds": verdict.rounds,
        "terms": {
            "margin": verdict.terms.margin,
            "alpha": verdict.terms.alpha,
            "leak_alpha": verdict.terms.leak_alpha,
            "looks": list(comparison.looks or verdict.terms.looks),
        },
        "allowed_mismatches": sorted(comparison.allowed_mismatches),
        "versions": [_version(version) for version in comparison.versions],
        "sides": [_side(side) for side in verdict.sides],
        "notes": list(document.notes),
    }


def _version(version: Version) -> Mapping[str, JsonValue]:
    run_id, digest = version.manifest.get("run_id"), version.manifest.get("engine_hash")
    return {
        "name": version.name,
        "kind": version.kind,
        "run_id": run_id if isinstance(run_id, str) else None,
        "engine_hash": digest if isinstance(digest, str) else None,
        "verdict": version.verdict.kind.value,
    }


def _side(side: SideComparison) -> Mapping[str, JsonValue]:
    return {
        "version": side.version,
        "name": side.name,
        "outcome": side.outcome.value,
        "word": side.word,
        "headline": side.headline,
        "metrics": [_metric(metric) for metric in side.metrics],
        "leaks": [_leak(row) for row in side.leaks],
        "notes": list(side.notes),
    }


def _metric(metric: MetricComparison) -> Mapping[str, JsonValue]:
    return {
        "metric": metric.metric,
        "unit": metric.unit,
        "role": metric.role.value,
        "call": metric.call.value,
        "word": metric.word,
        "margin": metric.margin,
        "base": _finite(metric.base),
        "other": _finite(metric.other),
        "ratio": _finite(metric.ratio),
        "lower": _finite(metric.lower),
        "upper": _finite(metric.upper),
        "confidence": metric.confidence,
        "pairs": metric.pairs,
        "sd": _finite(metric.sd),
        "robust_ratio": _finite(metric.robust_ratio),
        "pairs_needed": metric.pairs_needed,
        "position_effect": _optional(metric.position_effect),
        "position_p": _optional(metric.position_p),
        "reason": metric.reason,
    }


def _leak(row: LeakComparison) -> Mapping[str, JsonValue]:
    return {
        "kind": row.kind,
        "subject": row.subject,
        "driver": row.driver,
        "title": row.title,
        "verdict": row.verdict.value,
        "change": row.change.value,
        "exact": row.exact,
        "base": _rate(row.base),
        "other": _rate(row.other),
        "difference": _rate(row.difference),
        "bytes_per_hour": _rate(row.bytes_per_hour),
        "reason": row.reason,
    }


def _rate(rate: Rate | None) -> JsonValue:
    if rate is None:
        return None
    return {
        "value": _finite(rate.value),
        "lower": _finite(rate.lower),
        "upper": _finite(rate.upper),
        "unit": rate.unit,
        "per": rate.per,
        "confidence": rate.confidence,
    }


def _optional(value: float | None) -> float | None:
    return None if value is None else _finite(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
