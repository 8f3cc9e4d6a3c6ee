"""The earliest time at which a stored run's verdict could have been reached."""

from __future__ import annotations

from hybridbench.analysis.record import RunRecord
from hybridbench.records.events import EngineViolation
from hybridbench.records.finding import VerdictKind
from hybridbench.selftest.detect import time_to_detect_s
from tests.unit.analysis.records import Run, healthy_record


def with_an_alias_from(record: RunRecord, start_s: float) -> RunRecord:
    """Add a violation at ``start_s``: the engine's check finds a slot with two owners."""
    alias = EngineViolation("alias", "mamba", "slot 7 has two owners", (7,), t_s=start_s)
    events = [*record.events, alias]
    return RunRecord(record.manifest, record.series, sorted(events, key=lambda e: e.t_s))


def test_a_record_cut_short_holds_nothing_later() -> None:
    record = healthy_record(Run(duration_s=300.0))

    early = record.until(100.0)

    assert max(float(s.t_s[-1]) for s in early.series.values()) <= 100.0
    assert all(event.t_s <= 100.0 for event in early.events)
    assert early.manifest == record.manifest


def test_detection_is_the_first_look_after_the_fault_showed() -> None:
    record = healthy_record(Run(duration_s=320.0))
    end_s = max(float(s.t_s[-1]) for s in record.series.values())

    found_s = time_to_detect_s(with_an_alias_from(record, 150.0), VerdictKind.INVARIANT)

    assert found_s is not None
    assert 150.0 <= found_s <= 150.0 + end_s / 16


def test_what_is_not_said_at_the_end_was_never_detected() -> None:
    assert time_to_detect_s(healthy_record(Run(duration_s=320.0)), VerdictKind.LEAK) is None
