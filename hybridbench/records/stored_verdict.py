"""verdict.json of a run: written by the published schema, and read back by whoever needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from hybridbench import __version__
from hybridbench.errors import ErrorCode, RunDirectoryError
from hybridbench.foreign import DOCUMENT_BYTES_MAX, ForeignDataError, read_bytes
from hybridbench.records.codec import from_json, to_json
from hybridbench.records.documents import read_document
from hybridbench.records.json_value import JsonValue, json_text
from hybridbench.records.verdict import NO_MODEL, Verdict

VERDICT_SCHEMA: Final = "hybridbench.verdict/1"
_REBUILD: Final = "rebuild it with 'hybridbench report'"
_Part = TypeVar("_Part", "VerdictHead", "VerdictValues")


class VerdictHead(msgspec.Struct, frozen=True):
    """What a list shows of any verdict.json, of a run or a comparison; the rest is skipped."""

    verdict: str = ""
    word: str = ""  # of a comparison
    headline: str = ""
    exit_code: int | None = None


class MeasuredRate(msgspec.Struct, frozen=True):
    """A rate in a verdict.json; None where an end has no bound."""

    value: float | None = None
    lower: float | None = None
    upper: float | None = None


class MeasuredMetric(msgspec.Struct, frozen=True):
    """A gated metric in a verdict.json."""

    metric: str
    rate_per_hour: MeasuredRate | None = None
    model: str = ""


class MeasuredCost(msgspec.Struct, frozen=True):
    """A cost of work in a verdict.json."""

    name: str
    value: float | None = None


class MeasuredLevel(MeasuredRate, frozen=True, kw_only=True):
    """A level in a verdict.json."""

    metric: str
    stat: str


class FindingHead(msgspec.Struct, frozen=True):
    """What a finding in a verdict.json makes of the run."""

    verdict: str = ""


class VerdictValues(msgspec.Struct, frozen=True):
    """What runs are compared by: read from a thousand files, so that fits are skipped unread."""

    verdict: str = ""
    findings: tuple[FindingHead, ...] = ()
    metrics: tuple[MeasuredMetric, ...] = ()
    decay: tuple[MeasuredCost, ...] = ()
    levels: tuple[MeasuredLevel, ...] = ()


def verdict_to_json(verdict: Verdict, run_id: str | None) -> dict[str, JsonValue]:
    """``verdict`` as schema ``hybridbench.verdict/1`` wants it."""
    fields = to_json(verdict)
    # A failure is a finding as well; its traceback has a file of its own.
    del fields["failures"], fields["unphrased"]
    metrics = [{**to_json(result), "unit": result.unit} for result in verdict.metrics]
    for metric in metrics:
        # An earlier version stored none.
        if metric["why"] is None:
            del metric["why"]
    return {
        "schema": VERDICT_SCHEMA,
        "tool": {"name": "hybridbench", "version": __version__},
        "run_id": run_id,
        "verdict": fields.pop("kind"),
        "exit_code": int(verdict.exit_code),
        **fields,
        "metrics": metrics,
    }


def verdict_text(verdict: Verdict, run_id: str | None) -> str:
    """The text of verdict.json."""
    return json_text(verdict_to_json(verdict, run_id))


def verdict_from_json(stored: Mapping[str, JsonValue]) -> Verdict:
    """The verdict that ``verdict_to_json`` wrote, equal to it but for its failures.

    Raises:
        RunDirectoryError: a key is missing or of another type.
    """
    try:
        verdict = from_json({**stored, "kind": stored.get("verdict")}, Verdict)
    except msgspec.ValidationError as error:
        raise RunDirectoryError(
            f"verdict.json is damaged ({error}): {_REBUILD}", code=ErrorCode.DAMAGED
        ) from error
    return _without_rates_of_too_few_samples(verdict)


def read_verdict(path: Path) -> Verdict:
    """The verdict in the file at ``path``.

    Raises:
        RunDirectoryError: it is missing or damaged, or of another version.
    """
    return verdict_from_json(read_document(path, VERDICT_SCHEMA, remedy=_REBUILD))


def read_verdict_part(path: Path, kind: type[_Part]) -> _Part:
    """The ``kind`` of the file at ``path``; an empty one where it is missing or damaged."""
    try:
        return msgspec.json.decode(read_bytes(path, DOCUMENT_BYTES_MAX), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, ForeignDataError):
        return kind()


def _without_rates_of_too_few_samples(verdict: Verdict) -> Verdict:
    """Until November 2026 the range of too few samples was stored as an interval."""
    metrics = tuple(
        msgspec.structs.replace(result, rate_per_hour=None) if result.model == NO_MODEL else result
        for result in verdict.metrics
    )
    unmeasured = {result.metric for result in metrics if result.rate_per_hour is None}
    findings = tuple(
        replace(finding, rates=())
        if finding.kind == "undecided" and finding.subject in unmeasured
        else finding
        for finding in verdict.findings
    )
    return replace(verdict, metrics=metrics, findings=findings)
