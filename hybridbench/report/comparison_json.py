"""A comparison's verdict.json, according to the published schema ``hybridbench.comparison/1``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hybridbench import __version__
from hybridbench.analysis.comparison.records import (
    Comparison,
    ComparisonVerdict,
    SideComparison,
    Version,
)
from hybridbench.records.codec import to_json
from hybridbench.records.json_value import JsonValue, json_text
from hybridbench.records.verdict import Failure
from hybridbench.report.document import Document
from hybridbench.report.write import rendered, write_failures, write_pages
from hybridbench.rundir.atomic import write_atomically
from hybridbench.rundir.layout import ANALYSIS_ERRORS, COMPARISON_VERDICT_SCHEMA, VERDICT


def write_comparison(
    directory: Path, comparison: Comparison, verdict: ComparisonVerdict, document: Document
) -> tuple[Failure, ...]:
    """Write verdict.json, report.html, report.md and junit.xml, each completely or not at all.

    Returns:
        Why some of the pages could not be made.

    Raises:
        RunDirectoryError: when ``directory`` cannot be written.
    """
    stored = comparison_to_json(comparison, verdict, document)
    write_atomically(directory / VERDICT, json_text(stored))
    pages = rendered(document)
    write_failures(directory / ANALYSIS_ERRORS, (*verdict.failures, *pages.failures))
    write_pages(directory, pages)
    return pages.failures


def comparison_to_json(
    comparison: Comparison, verdict: ComparisonVerdict, document: Document
) -> dict[str, JsonValue]:
    """Return the result for programs; ratios are later version to first."""
    return {
        "schema": COMPARISON_VERDICT_SCHEMA,
        "tool": {"name": "hybridbench", "version": __version__},
        "comparison_id": document.run_id,
        "outcome": verdict.outcome.value,
        "word": verdict.word,
        "exit_code": document.exit_code,
        "headline": verdict.full_headline,
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
        "notes": list(map(str, document.notes)),
    }


def _version(version: Version) -> Mapping[str, JsonValue]:
    return {
        "name": version.name,
        "kind": version.kind,
        "run_id": version.manifest.run_id or None,
        "engine_hash": version.manifest.engine_hash or None,
        "verdict": version.verdict.kind.value,
    }


def _side(side: SideComparison) -> Mapping[str, JsonValue]:
    metrics = [to_json(metric) for metric in side.metrics]
    for stored in metrics:
        # A display name, which is in the metric's declaration.
        del stored["label"]
    return {**to_json(side), "headline": side.full_headline, "metrics": metrics}
