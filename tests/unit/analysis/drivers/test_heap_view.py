"""What is compared with the counts of a heap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hybridbench.analysis.drivers.heap_view import HeapView
from hybridbench.analysis.facts.censuses import heaps_of
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import Census, Event, IdleLook
from hybridbench.records.manifest import Manifest

LOOK = IdleLook(role="server", pid=7, t_s=60.0)
CENSUSES = [Census(role="server", pid=7, t_s=t_s) for t_s in (0.0, 50.0)]


@pytest.mark.parametrize(
    ("events", "running", "load"),
    [
        (CENSUSES, (0.0, 4.0), [[0.0], [4.0]]),
        (CENSUSES, (4.0, 4.0), [[], []]),
        ([LOOK], (0.0, 4.0), []),
    ],
    ids=["moving", "constant", "without a scan"],
)
def test_requests_in_flight_stand_beside_the_counts_if_they_vary(
    events: Sequence[Event], running: tuple[float, float], load: list[list[float]]
) -> None:
    t_s = np.array([0.0, 50.0])
    series = {"running_requests": Series("running_requests", t_s, np.array(running))}
    facts = Facts.of(RunRecord(Manifest(), series, events))
    (heap,) = heaps_of(facts.record, facts.counters)

    assert HeapView(facts, heap, None).load.tolist() == load
