"""Memory at idle points is judged only where the cache was flushed at every one of them."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.foundation.metrics import AT_REST
from hybridbench.records.codec import by_name
from hybridbench.records.events import Phase
from hybridbench.records.finding import VerdictKind
from tests.unit.analysis.records import (
    MB,
    Run,
    healthy_record,
    with_events,
    with_manifest,
    with_series,
)

RUN = Run(duration_s=900.0, steady_s=60.0)


def rested(mb_per_rest: float, every_s: float = 12.0, *, flush: bool = True) -> RunRecord:
    """A run drained, flushed and read every ``every_s``, each time with 2 s without traffic."""
    record = healthy_record(RUN)
    rests = np.arange(65.0, 890.0, every_s)
    rng = np.random.default_rng(4)
    memory = (
        640 * MB + mb_per_rest * MB * np.arange(rests.size) + rng.normal(0, 0.2 * MB, rests.size)
    )
    phases = [
        Phase(name=name, t_s=float(t) + shift)
        for t in rests
        for shift, name in ((-1.0, "drain"), (0.0 - 0.5, "idle"), (1.0, "steady"))
    ]
    resolved = {"checkpoint": {"flush": flush}}
    with_flush = with_manifest(
        record, profile={**by_name(record.manifest.profile), "resolved": resolved}
    )
    return with_series(with_events(with_flush, *phases), Series(AT_REST, rests, memory))


def at_rest(record: RunRecord) -> list[str]:
    return [m.outcome for m in judge(record).metrics if m.metric == AT_REST]


@pytest.mark.parametrize(("mb_per_rest", "outcome"), [(0.0, "CLEAN"), (4.0, "LEAK")])
def test_growth_from_rest_to_rest_is_a_leak_and_a_level_is_not(
    mb_per_rest: float, outcome: str
) -> None:
    assert at_rest(rested(mb_per_rest)) == [outcome]


def test_the_finding_names_memory_at_rest() -> None:
    verdict = judge(rested(4.0))

    (finding,) = [f for f in verdict.findings if f.subject == AT_REST]
    assert finding.verdict is VerdictKind.LEAK
    assert finding.kind == "growth"


def test_too_few_rests_are_not_judged() -> None:
    assert at_rest(rested(4.0, every_s=60.0)) == ["INCONCLUSIVE"]


def test_rests_that_keep_a_cache_are_shown_only() -> None:
    assert at_rest(rested(4.0, flush=False)) == []
