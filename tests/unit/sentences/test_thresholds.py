"""The words of each reason for which a threshold could not be checked."""

from __future__ import annotations

import pytest

from hybridbench.records.codes import UnmeasuredCode
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import ThresholdOutcome, ThresholdResult, Why
from hybridbench.sentences.thresholds import phrased_threshold

WORDS: dict[UnmeasuredCode, tuple[dict[str, JsonValue], str]] = {
    UnmeasuredCode.NEEDS_TWO_VERSIONS: (
        {},
        "a ratio needs two versions, and compare alone has them",
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
    result = ThresholdResult(
        "x<1", "x", "slope", ThresholdOutcome.UNDECIDED, 1.0, "B", unmeasured=Why(code, data)
    )

    assert phrased_threshold(result).said == f"x<1 was not checked: {words}"
