"""Events as records: one reader, and what older versions wrote is defaulted, never an error."""

from __future__ import annotations

import pytest

from hybridbench.analysis.record import RunEvent
from hybridbench.records.events import Crash, EngineLog, EngineViolation, Gap, Phase
from hybridbench.records.json_value import JsonValue


def test_a_missing_field_and_one_of_another_type_have_their_defaults() -> None:
    assert RunEvent(1.0, "crash").read(Crash) == Crash("exit", "", ())
    assert RunEvent(1.0, "gap", {"seconds": "long"}).read(Gap) == Gap(0.0)
    assert RunEvent(1.0, "phase", {"phase": "warmup"}).read(Phase) == Phase("", "warmup")


def test_a_field_of_a_later_version_is_passed_over() -> None:
    event = RunEvent(1.0, "engine_log", {"text": "leak!", "count": 3, "level": "error"})

    assert event.read(EngineLog) == EngineLog("leak!", 3)
    assert event.data["level"] == "error"


@pytest.mark.parametrize("tail", [["a", "b"], "a\nb\n"])
def test_the_last_words_of_a_worker_are_lines_or_one_text(tail: JsonValue) -> None:
    assert RunEvent(1.0, "crash", {"stderr_tail": tail}).read(Crash).stderr_lines == ["a", "b"]


@pytest.mark.parametrize(("slots", "named"), [([7, 9], 2), (5, 5), (None, 0)])
def test_a_violation_gives_its_slots_or_their_number(slots: JsonValue, named: int) -> None:
    violation = RunEvent(1.0, "engine_violation", {"slots": slots}).read(EngineViolation)

    assert violation.slots_named == named
    assert violation.kind == "unknown"
