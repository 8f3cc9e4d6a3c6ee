"""Impossible counts."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.sanity import sanity_findings
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import Series
from hybridbench.records.finding import VerdictKind
from tests.unit.analysis.records import Run, checkpoint, healthy_record, with_events, with_series

RUN = Run(duration_s=240.0, steady_s=60.0)
HEALTHY = healthy_record(RUN)
T = HEALTHY.series["events.finishes"].t_s


def test_a_sound_run_has_none() -> None:
    assert sanity_findings(Facts.of(HEALTHY)) == []


@pytest.mark.parametrize(
    ("name", "subject"),
    [("pool.kv.protected", "kv: KV tokens"), ("container.rids.len", "container: rids")],
)
def test_a_count_below_zero_in_one_sample_contradicts_itself(name: str, subject: str) -> None:
    record = with_series(HEALTHY, Series(name, T, np.where(T == 100.0, -2.0, 5.0)))

    (finding,) = sanity_findings(Facts.of(record))

    assert (finding.kind, finding.verdict) == ("negative-count", VerdictKind.INVARIANT)
    assert (finding.subject, finding.since_s) == (subject, 100.0)
    assert judge(record).kind is VerdictKind.INVARIANT


def test_more_free_slots_than_the_pool_has() -> None:
    free = Series("pool.mamba.available", T, np.where(T > 150.0, 65.0, 60.0))
    total = Series("pool.mamba.total", T, np.full(T.size, 64.0))

    (finding,) = sanity_findings(Facts.of(with_series(HEALTHY, free, total)))

    assert (finding.kind, finding.verdict) == ("more-free-than-exist", VerdictKind.INVARIANT)
    assert finding.data["most"] == 1.0


def test_a_checkpoint_is_a_look_too() -> None:
    record = with_events(HEALTHY, checkpoint(200.0, kv={"total": 64.0, "available": 70.0}))

    (finding,) = sanity_findings(Facts.of(record))

    assert finding.since_s == 200.0


@pytest.mark.parametrize(("forced", "undone"), [(0.0, 2.0), (1.0, 1.0), (2.0, None)])
def test_only_an_allocation_that_was_made_to_fail_may_undo_an_admission(
    forced: float, undone: float | None
) -> None:
    counts = {"rollbacks": 2.0, "forced_fail_allocation": forced, "prefill_steps": 900.0}
    series = [
        Series(f"events.{name}", T, np.where(T > 100.0, n, 0.0)) for name, n in counts.items()
    ]

    findings = sanity_findings(Facts.of(with_series(HEALTHY, *series)))

    assert [finding.data["undone"] for finding in findings] == [undone] * (undone is not None)
