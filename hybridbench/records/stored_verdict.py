"""A run's verdict.json: written according to the published schema, and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from hybridbench import __version__
from hybridbench.foundation.errors import ErrorCode, RunDirectoryError
from hybridbench.foundation.foreign import DOCUMENT_BYTES_MAX, ForeignDataError, read_bytes
from hybridbench.records.codec import from_json, to_json
from hybridbench.records.documents import read_document
from hybridbench.records.finding import Finding, Rate, Recorded, VerdictKind
from hybridbench.records.json_value import JsonValue, json_text
from hybridbench.records.verdict import Verdict

VERDICT_SCHEMA: Final = "hybridbench.verdict/1"
_REBUILD: Final = "rebuild it with 'hybridbench report'"
_Part = TypeVar("_Part", "VerdictHead", "VerdictValues")


class VerdictHead(msgspec.Struct, frozen=True):
    """The part of a run's or comparison's verdict.json that a list shows; the rest is skipped."""

    verdict: str = ""
    word: str = ""  # for a comparison
    headline: str = ""
    exit_code: int | None = None

    @property
    def bare_headline(self) -> str:
        """The headline without its word."""
        return _bare(self.word or self.verdict, self.headline)


class MeasuredRate(msgspec.Struct, frozen=True):
    """A rate in a verdict.json; None for an end without a bound."""

    value: float | None = None
    lower: float | None = None
    upper: float | None = None


class MeasuredMetric(msgspec.Struct, frozen=True):
    """A gated metric in a verdict.json."""

    metric: str
    rate_per_hour: MeasuredRate | None = None


class MeasuredCost(MeasuredRate, frozen=True, kw_only=True):
    """A cost of work in a verdict.json, stored without its interval."""

    name: str


class MeasuredLevel(MeasuredRate, frozen=True, kw_only=True):
    """A level in a verdict.json."""

    metric: str
    stat: str


class FindingHead(msgspec.Struct, frozen=True):
    """A finding's effect on the run, in a verdict.json."""

    verdict: str = ""


class StoredFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding as stored in verdict.json."""

    kind: str
    verdict: VerdictKind
    subject: str
    title: str
    driver: str | None = None
    rates: tuple[Rate, ...] = ()
    cause: str = ""
    evidence: tuple[str, ...] = ()
    since_s: float | None = None
    data: dict[str, JsonValue] = {}
    exact: bool


class _Findings(msgspec.Struct, frozen=True):
    findings: tuple[StoredFinding, ...]


class VerdictValues(msgspec.Struct, frozen=True):
    """The values by which runs are compared; fits are skipped for speed."""

    verdict: str = ""
    findings: tuple[FindingHead, ...] = ()
    metrics: tuple[MeasuredMetric, ...] = ()
    decay: tuple[MeasuredCost, ...] = ()
    levels: tuple[MeasuredLevel, ...] = ()


def verdict_to_json(verdict: Verdict, run_id: str | None) -> dict[str, JsonValue]:
    """Convert ``verdict`` according to the schema ``hybridbench.verdict/1``."""
    fields = to_json(replace(verdict, findings=()))
    # A failure is also a finding; its traceback has a file of its own.
    del fields["failures"], fields["bounds"]
    metrics = [{**to_json(result), "unit": result.unit} for result in verdict.metrics]
    return {
        "schema": VERDICT_SCHEMA,
        "tool": {"name": "hybridbench", "version": __version__},
        "run_id": run_id,
        "verdict": fields.pop("kind"),
        "exit_code": int(verdict.exit_code),
        **fields,
        "findings": [_finding_to_json(finding) for finding in verdict.findings],
        "headline": verdict.full_headline,
        "metrics": metrics,
    }


def _finding_to_json(finding: Finding) -> dict[str, JsonValue]:
    return to_json(
        StoredFinding(
            kind=finding.kind,
            verdict=finding.verdict,
            subject=finding.subject,
            title=finding.title,
            driver=finding.driver,
            rates=finding.rates,
            cause=finding.cause,
            evidence=finding.evidence,
            since_s=finding.since_s,
            data=finding.data,
            exact=finding.exact,
        )
    )


def _finding_from_json(stored: StoredFinding) -> Finding:
    """Return the finding with its stored sentences, even if this version has other wording."""
    basis = Recorded(
        name=stored.kind,
        title=stored.title,
        cause=stored.cause,
        lines=stored.evidence,
        data=stored.data,
        exact=stored.exact,
    )
    return Finding(
        basis, stored.verdict, stored.subject, stored.driver, stored.rates, stored.since_s
    )


def verdict_text(verdict: Verdict, run_id: str | None) -> str:
    """Return the text of verdict.json."""
    return json_text(verdict_to_json(verdict, run_id))


def verdict_from_json(stored: Mapping[str, JsonValue]) -> Verdict:
    """Return the verdict that ``verdict_to_json`` wrote, equal to it except for failures.

    Raises:
        RunDirectoryError: a key is missing or of another type.
    """
    try:
        fields = {**stored, "kind": stored.get("verdict"), "findings": []}
        findings = from_json({"findings": stored.get("findings")}, _Findings).findings
        verdict = from_json(fields, Verdict)
    except msgspec.ValidationError as error:
        raise RunDirectoryError(
            f"verdict.json is damaged, or from before version 0.1.0 ({error}): {_REBUILD}",
            code=ErrorCode.DAMAGED,
        ) from error
    found = tuple(map(_finding_from_json, findings))
    bare = _bare(verdict.kind, verdict.headline)
    return replace(verdict, findings=found, headline=bare)


def read_verdict(path: Path) -> Verdict:
    """Return the verdict in the file at ``path``.

    Raises:
        RunDirectoryError: it is missing or damaged, or of another version.
    """
    return verdict_from_json(read_document(path, VERDICT_SCHEMA, remedy=_REBUILD))


def read_verdict_part(path: Path, kind: type[_Part]) -> _Part:
    """Return the ``kind`` from the file at ``path``; an empty one if missing or damaged."""
    try:
        return msgspec.json.decode(read_bytes(path, DOCUMENT_BYTES_MAX), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, ForeignDataError):
        return kind()


def _bare(word: str, headline: str) -> str:
    """Strip ``word``, which precedes headlines only in files."""
    return headline.removeprefix(f"{word}: ")
