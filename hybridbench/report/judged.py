"""Judge and render a stored run; a part that fails affects only its part of the report.

After hours of soaking, a bug in one sentence or one renderer must not hide what was found.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.judge import judge, with_failures
from hybridbench.analysis.record import RunRecord
from hybridbench.records.finding import VerdictKind
from hybridbench.records.verdict import Failure, Verdict
from hybridbench.report.advice import MEANING
from hybridbench.report.build import build_document
from hybridbench.report.document import Document, DocumentKind
from hybridbench.report.formats import FORMATS
from hybridbench.report.wording import BADGES
from hybridbench.report.write import Pages, rendered
from hybridbench.rundir.layout import ANALYSIS_ERRORS

# The verdict if the whole analysis failed; the failure itself becomes its finding.
_NOTHING: Final = Verdict(
    kind=VerdictKind.INCONCLUSIVE,
    headline="",
    findings=(),
    metrics=(),
    window_s=None,
    can_rule_out="",
)


@dataclass(frozen=True)
class JudgedRun:
    """A run's verdict, its document, and the pages that could be rendered."""

    record: RunRecord
    verdict: Verdict
    document: Document
    pages: Pages


def judged_run(record: RunRecord, shown: Collection[str] = ()) -> JudgedRun:
    """Return the verdict on ``record`` with its report; failures become findings, so that no run is
    CLEAN without its report.

    ``shown`` names formats to be printed besides the pages of the run directory.
    """
    run, failures = _judged(record, (), shown)
    return _judged(record, failures, shown)[0] if failures else run


def _judged(
    record: RunRecord, known: Sequence[Failure], shown: Collection[str]
) -> tuple[JudgedRun, tuple[Failure, ...]]:
    """Return the run with ``known`` failures among its findings, and the failures of this call."""
    boundary = Boundary()
    verdict = boundary.value("the analysis of the run", _NOTHING, judge, record)
    if known:
        verdict = with_failures(verdict, known, ANALYSIS_ERRORS)
    document = boundary.value("the layout of the report", None, build_document, record, verdict)
    document = document or _bare_document(record, verdict)
    pages = rendered(document)
    for name in FORMATS.keys() & shown:
        boundary.value(f"the format {name}", "", FORMATS[name], document)
    return JudgedRun(record, verdict, document, pages), (*boundary.failures, *pages.failures)


def _bare_document(record: RunRecord, verdict: Verdict) -> Document:
    """Return a document with the verdict alone, for when the report cannot be built."""
    return Document(
        kind=DocumentKind.RUN,
        run_id=record.manifest.run_id,
        subtitle="",
        badge=BADGES[verdict.kind],
        meaning=MEANING[verdict.kind],
        exit_code=int(verdict.exit_code),
        headline=verdict.headline,
        answer=(),
        gates=(),
        notes=tuple(found.title for found in verdict.findings),
    )
