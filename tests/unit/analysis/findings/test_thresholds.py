"""The wording of each outcome of a threshold, and of each reason for which it was not checked."""

from __future__ import annotations

import pytest

from hybridbench.analysis.findings.thresholds import threshold_text
from hybridbench.analysis.levels import Measured
from hybridbench.analysis.thresholds import gate
from hybridbench.foundation.thresholds import parse_threshold
from hybridbench.records.codec import from_json, to_json
from hybridbench.records.json_value import JsonValue
from hybridbench.records.threshold_result import (
    ThresholdOutcome,
    ThresholdResult,
    Unmeasured,
    UnmeasuredCode,
)

WORDS: dict[UnmeasuredCode, tuple[dict[str, JsonValue], str]] = {
    UnmeasuredCode.NEEDS_TWO_VERSIONS: (
        {},
        "a ratio needs two versions: use it with `hybridbench compare`",
    ),
    UnmeasuredCode.NO_WINDOW: ({}, "the run ended before anything could be judged"),
    UnmeasuredCode.NEVER_SAMPLED: (
        {"metric": "events.retract", "near": ["events.retracts"]},
        "events.retract was never sampled in this run; did you mean events.retracts?",
    ),
    UnmeasuredCode.TOO_FEW_SAMPLES: ({}, "too few samples in the judged window"),
    UnmeasuredCode.NOT_COUNTED: (
        {"counter": "naps", "near": []},
        "the engine counts no naps",
    ),
    UnmeasuredCode.NO_EVENT: (
        {"counter": "refusals"},
        "no refusal happened in the judged window",
    ),
    UnmeasuredCode.TOO_LITTLE_WORK: ({}, "too little of that work in the judged window"),
}


@pytest.mark.parametrize("code", UnmeasuredCode)
def test_each_reason_not_to_check_has_its_words(code: UnmeasuredCode) -> None:
    data, words = WORDS[code]
    why = from_json({"code": code.value, "data": data}, Unmeasured)
    result = ThresholdResult(
        "x<1", "x", "slope", ThresholdOutcome.UNDECIDED, 1.0, "B", unmeasured=why
    )

    assert threshold_text(result) == f"x<1 was not checked: {words}"
    assert to_json(result)["unmeasured"] == {"code": code.value, "data": data}


@pytest.mark.parametrize(
    ("text", "value", "said"),
    [
        ("throughput.p50>900/s", 12345.6, "12,346/s"),
        ("throughput.p50>900/s", 9999.6, "10,000/s"),
        ("throughput.p50>900/s", 987.65, "987.6/s"),
        ("ttft.p50<1s", 12345.6, "12,346 ms"),
    ],
)
def test_a_large_value_has_no_exponent(text: str, value: float, said: str) -> None:
    result = gate(parse_threshold(text), Measured(value, value, value))

    assert result.said.endswith(f": {said}")


def test_a_reason_of_a_later_version_is_named_by_its_code() -> None:
    why = from_json({"code": "too-bright", "data": {"lamp": 3}}, Unmeasured)
    result = ThresholdResult(
        "x<1", "x", "slope", ThresholdOutcome.UNDECIDED, 1.0, "B", unmeasured=why
    )

    assert threshold_text(result) == "x<1 was not checked: too-bright"


@pytest.mark.parametrize(
    ("outcome", "needed_s", "words"),
    [
        (ThresholdOutcome.MET, None, "is met: 3.00 GiB/h (2.00 GiB/h to 4.00 GiB/h, 95%)"),
        (ThresholdOutcome.MISSED, None, "is missed: 3.00 GiB/h (2.00 GiB/h to 4.00 GiB/h, 95%)"),
        (
            ThresholdOutcome.NOT_GATED,
            None,
            "does not gate, rss is erratic: 3.00 GiB/h (2.00 GiB/h to 4.00 GiB/h, 95%)",
        ),
        (
            ThresholdOutcome.UNDECIDED,
            1200.0,
            "is undecided: 3.00 GiB/h (2.00 GiB/h to 4.00 GiB/h, 95%) includes 3GiB/h; a judged "
            "window of about 20m would decide",
        ),
    ],
)
def test_each_outcome_has_its_words(
    outcome: ThresholdOutcome, needed_s: float | None, words: str
) -> None:
    low, mid, high = (n * 2.0**30 for n in (2, 3, 4))
    result = ThresholdResult(
        "rss.slope<3GiB/h", "rss", "slope", outcome, mid, "B", "h", mid, low, high, needed_s
    )

    assert threshold_text(result) == f"rss.slope<3GiB/h {words}"
