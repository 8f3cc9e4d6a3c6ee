"""Locks on tree nodes at idle checkpoints."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.locks import lock_findings
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.finding import Finding, VerdictKind
from tests.unit.analysis.records import (
    Run,
    checkpoint,
    healthy_record,
    with_checkpoints,
    with_events,
    with_series,
)

RUN = Run(duration_s=240.0, steady_s=60.0)


def found(record: RunRecord) -> list[Finding]:
    return list(lock_findings(Facts.of(record)))


@pytest.mark.parametrize(("count", "verdict"), [(2, VerdictKind.LEAK), (-1, VerdictKind.INVARIANT)])
def test_locks_at_rest_have_no_holder(count: int, verdict: VerdictKind) -> None:
    rest = checkpoint(239.0)
    locked = msgspec.structs.replace(rest, locks={"full": count, "mamba": 0})

    (finding,) = found(with_events(healthy_record(RUN), locked))

    assert finding.verdict is verdict
    assert finding.subject == "locks: full"


def test_locks_are_counted_because_a_second_one_locks_no_more_tokens() -> None:
    timed_out = [7, 62, 112, 163, 209, 257]
    locked = [327, 1225, 1907, 2042, 2073, 2073]
    rests = [
        msgspec.structs.replace(
            checkpoint(30.0 * (i + 1)),
            locks={"full": tokens, "mamba": 0},
            counters={"session_timeouts": n, "lock_calls": 900 * i + n, "unlock_calls": 900 * i},
        )
        for i, (n, tokens) in enumerate(zip(timed_out, locked, strict=True))
    ]
    record = healthy_record(RUN)
    t = record.series["events.retracts"].t_s
    counts = {"session_timeouts": 1.1 * t, "lock_calls": 31.1 * t, "unlock_calls": 30.0 * t}
    series = [Series(f"events.{name}", t, np.floor(value)) for name, value in counts.items()]

    (finding,) = found(with_checkpoints(with_series(record, *series), rests))

    assert (finding.driver, finding.rates[0].value) == ("session_timeouts", 1.0)
    assert "2,073 KV tokens are locked" in finding.title
    assert finding.title.endswith(", by 257 locks, 1.00 per session timeout")


@pytest.mark.parametrize(
    ("locked", "driver"),
    [
        ([5000, 5550, 5760, 6210, 6700, 7050, 7241], "swa_tombstones"),
        ([6921, 7104, 7241, 7241, 7241, 7241, 7241], None),  # nearly the whole pool
    ],
)
def test_locked_tokens_name_no_event_once_all_tokens_are_locked(
    locked: list[int], driver: str | None
) -> None:
    tombstones = [203, 226, 234, 252, 272, 286, 295]
    times = [30.0 * (i + 1) for i in range(len(locked))]
    rests = [
        msgspec.structs.replace(
            checkpoint(at), locks={"swa": tokens}, counters={"swa_tombstones": count}
        )
        for at, tokens, count in zip(times, locked, tombstones, strict=True)
    ]
    record = healthy_record(RUN)
    t = record.series["events.retracts"].t_s
    levels = {"events.swa_tombstones": tombstones, "pool.swa.protected": locked}
    series = [
        Series(name, t, np.floor(np.interp(t, [0.0, *times], [0, *values])))
        for name, values in levels.items()
    ]

    (finding,) = found(with_checkpoints(with_series(record, *series), rests))

    assert (finding.subject, finding.driver) == ("locks: swa", driver)


def test_an_open_session_may_hold_its_lock() -> None:
    rest = checkpoint(100.0, kv={"session_held": 12.0})
    locked = msgspec.structs.replace(rest, locks={"full": 1, "mamba": 0})

    assert found(with_checkpoints(healthy_record(RUN), [locked])) == []


def test_a_lock_held_before_a_counter_fell_is_still_held() -> None:
    record = healthy_record(RUN)
    t = record.series["events.retracts"].t_s
    fallen = Series("events.retracts", t, np.where(t < 200.0, t, t - 200.0))
    locked = msgspec.structs.replace(checkpoint(100.0), locks={"full": 1})

    (finding,) = found(with_checkpoints(with_series(record, fallen), [locked]))

    assert (finding.kind, finding.subject) == ("locks-at-idle", "locks: full")
