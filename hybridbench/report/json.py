"""verdict.json: the verdict for machines, by the published schema, and back again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hybridbench import __version__
from hybridbench.errors import RunDirectoryError
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import (
    NO_MODEL,
    DecayResult,
    Finding,
    LevelResult,
    MetricResult,
    Rate,
    ThresholdResult,
    Verdict,
    VerdictKind,
)
from hybridbench.report.thresholds import results_from_json, results_to_json
from hybridbench.rundir.layout import VERDICT, VERDICT_SCHEMA
from hybridbench.rundir.manifest import as_mapping, plain_mapping


def verdict_to_json(verdict: Verdict, run_id: str | None) -> dict[str, JsonValue]:
    """``verdict`` as schema ``hybridbench.verdict/1`` wants it; without NaN and infinities."""
    return {
        "schema": VERDICT_SCHEMA,
        "tool": {"name": "hybridbench", "version": __version__},
        "run_id": run_id,
        "verdict": verdict.kind.value,
        "exit_code": int(verdict.exit_code),
        "headline": verdict.headline,
        "window_s": None if verdict.window_s is None else list(verdict.window_s),
        "can_rule_out": verdict.can_rule_out,
        "findings": [_finding_to_json(finding) for finding in verdict.findings],
        "metrics": [_metric_to_json(result) for result in verdict.metrics],
        "decay": [_decay_to_json(result) for result in verdict.decay],
        "thresholds": results_to_json(verdict.thresholds),
        "levels": results_to_json(verdict.levels),
        "coverage": plain_mapping(verdict.coverage),
        "not_seen": list(verdict.not_seen),
        "notes": list(verdict.notes),
    }


def render_json(verdict: Verdict, run_id: str | None) -> str:
    """The text of verdict.json."""
    stored = verdict_to_json(verdict, run_id)
    return json.dumps(stored, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def verdict_from_json(stored: Mapping[str, JsonValue]) -> Verdict:
    """The verdict that ``verdict_to_json`` wrote, equal to it where its numbers were finite.

    Raises:
        RunDirectoryError: for another schema, or when a key is missing or of another type.
    """
    if stored.get("schema") != VERDICT_SCHEMA:
        raise RunDirectoryError(
            f"{VERDICT} has schema {stored.get('schema')!r}, and this hybridbench reads "
            f"{VERDICT_SCHEMA!r} only: rebuild it with 'hybridbench report'"
        )
    try:
        return _verdict(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise RunDirectoryError(
            f"{VERDICT} is damaged ({error}): rebuild it with 'hybridbench report'"
        ) from error


def _verdict(stored: Mapping[str, JsonValue]) -> Verdict:
    window = stored["window_s"]
    metrics = tuple(_metric(_object(item)) for item in _list(stored["metrics"]))
    findings = (_finding(_object(item)) for item in _list(stored["findings"]))
    unmeasured = {result.metric for result in metrics if result.rate_per_hour is None}
    return Verdict(
        kind=VerdictKind(_text(stored["verdict"])),
        headline=_text(stored["headline"]),
        findings=tuple(
            replace(finding, rates=())
            if finding.kind == "undecided" and finding.subject in unmeasured
            else finding
            for finding in findings
        ),
        metrics=metrics,
        window_s=None if window is None else _window(window),
        can_rule_out=_text(stored["can_rule_out"]),
        coverage=dict(_object(stored["coverage"])),
        not_seen=_texts(stored["not_seen"]),
        notes=_texts(stored["notes"]),
        decay=tuple(_decay(_object(item)) for item in _list(stored.get("decay", ()))),
        thresholds=results_from_json(stored.get("thresholds"), ThresholdResult),
        levels=results_from_json(stored.get("levels"), LevelResult),
    )


def _finding_to_json(finding: Finding) -> dict[str, JsonValue]:
    return {
        "kind": finding.kind,
        "verdict": finding.verdict.value,
        "subject": finding.subject,
        "title": finding.title,
        "driver": finding.driver,
        "rates": [_rate_to_json(rate) for rate in finding.rates],
        "cause": finding.cause,
        "evidence": list(finding.evidence),
        "since_s": None if finding.since_s is None else _finite(finding.since_s),
        "data": plain_mapping(finding.data),
    }


def _finding(stored: Mapping[str, JsonValue]) -> Finding:
    since = stored["since_s"]
    driver = stored["driver"]
    return Finding(
        kind=_text(stored["kind"]),
        verdict=VerdictKind(_text(stored["verdict"])),
        subject=_text(stored["subject"]),
        title=_text(stored["title"]),
        driver=None if driver is None else _text(driver),
        rates=tuple(_rate(_object(item)) for item in _list(stored["rates"])),
        cause=_text(stored["cause"]),
        evidence=_texts(stored["evidence"]),
        since_s=None if since is None else _number(since),
        data=dict(_object(stored["data"])),
    )


def _metric_to_json(result: MetricResult) -> dict[str, JsonValue]:
    hour, work = result.rate_per_hour, result.rate_per_request
    promise, needed = result.promise_per_hour, result.needed_s
    return {
        "metric": result.metric,
        "unit": result.unit,
        "outcome": result.outcome,
        "reason": result.reason,
        "window_s": list(result.window_s),
        "rate_per_hour": None if hour is None else _rate_to_json(hour),
        "rate_per_request": None if work is None else _rate_to_json(work),
        "floor_per_hour": _finite(result.floor_per_hour),
        "promise_per_hour": None if promise is None else _finite(promise),
        "model": result.model,
        "fit_t_s": _numbers_to_json(result.fit_t_s),
        "fit_value": _numbers_to_json(result.fit_value),
        "band_lower": _numbers_to_json(result.band_lower),
        "band_upper": _numbers_to_json(result.band_upper),
        "needed_s": None if needed is None else _finite(needed),
        "p_value": _optional(result.p_value),
        "q_value": _optional(result.q_value),
    }


def _metric(stored: Mapping[str, JsonValue]) -> MetricResult:
    hour, work = stored["rate_per_hour"], stored["rate_per_request"]
    promise, needed = stored["promise_per_hour"], stored["needed_s"]
    if stored["model"] == NO_MODEL:
        # Until November 2026 the range of too few samples was stored as an interval.
        hour = None
    return MetricResult(
        metric=_text(stored["metric"]),
        outcome=_text(stored["outcome"]),
        reason=_text(stored["reason"]),
        window_s=_window(stored["window_s"]),
        rate_per_hour=None if hour is None else _rate(_object(hour)),
        rate_per_request=None if work is None else _rate(_object(work)),
        floor_per_hour=_number(stored["floor_per_hour"]),
        promise_per_hour=None if promise is None else _number(promise),
        model=_text(stored["model"]),
        fit_t_s=_numbers(stored["fit_t_s"]),
        fit_value=_numbers(stored["fit_value"]),
        band_lower=_numbers(stored["band_lower"]),
        band_upper=_numbers(stored["band_upper"]),
        needed_s=None if needed is None else _number(needed),
        p_value=_stored_number(stored, "p_value"),
        q_value=_stored_number(stored, "q_value"),
    )


def _stored_number(stored: Mapping[str, JsonValue], key: str) -> float | None:
    """None too where an older version stored nothing of the kind."""
    value = stored.get(key)
    return None if value is None else _number(value)


def _decay_to_json(result: DecayResult) -> dict[str, JsonValue]:
    return {
        "name": result.name,
        "label": result.label,
        "unit": result.unit,
        "value": _finite(result.value),
        "outcome": result.outcome,
        "least_change": _finite(result.least_change),
        "change": _optional(result.change),
        "change_lower": _optional(result.change_lower),
        "change_upper": _optional(result.change_upper),
    }


def _decay(stored: Mapping[str, JsonValue]) -> DecayResult:
    def known(key: str) -> float | None:
        value = stored[key]
        return None if value is None else _number(value)

    return DecayResult(
        name=_text(stored["name"]),
        label=_text(stored["label"]),
        unit=_text(stored["unit"]),
        value=_number(stored["value"]),
        outcome=_text(stored["outcome"]),
        least_change=_number(stored["least_change"]),
        change=known("change"),
        change_lower=known("change_lower"),
        change_upper=known("change_upper"),
    )


def _optional(value: float | None) -> float | None:
    return None if value is None else _finite(value)


def _rate_to_json(rate: Rate) -> dict[str, JsonValue]:
    return {
        "value": _finite(rate.value),
        "lower": _finite(rate.lower),
        "upper": _finite(rate.upper),
        "unit": rate.unit,
        "per": rate.per,
        "confidence": rate.confidence,
    }


def _rate(stored: Mapping[str, JsonValue]) -> Rate:
    return Rate(
        value=_number(stored["value"]),
        lower=_number(stored["lower"], absent=-math.inf),
        upper=_number(stored["upper"], absent=math.inf),
        unit=_text(stored["unit"]),
        per=_text(stored["per"]),
        confidence=_number(stored["confidence"]),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _numbers_to_json(values: Iterable[float]) -> list[JsonValue]:
    return [_finite(float(value)) for value in values]


def _text(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} should be a text")
    return value


def _number(value: JsonValue, absent: float = math.nan) -> float:
    if value is None:
        return absent
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} should be a number")
    return float(value)


def _object(value: JsonValue) -> Mapping[str, JsonValue]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} should be an object")
    return as_mapping(value)


def _list(value: JsonValue) -> Sequence[JsonValue]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{value!r} should be a list")
    return value


def _texts(value: JsonValue) -> tuple[str, ...]:
    return tuple(_text(item) for item in _list(value))


def _numbers(value: JsonValue) -> tuple[float, ...]:
    return tuple(_number(item) for item in _list(value))


def _window(value: JsonValue) -> tuple[float, float]:
    start_s, end_s = _numbers(value)
    return start_s, end_s
