"""Recorded healthy runs with growth added to their samples, judged at several lengths.

``recorded.json.gz`` has the first seven minutes of four recordings of ``python -m benchmarks
limits`` (seed 102, 2026-11-23, two cores busy with other work), reduced to what trends need.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.limits import PROFILES, beginning, shipped, with_growth
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import read_event
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import Manifest, ResolvedProfile

STORED = Path(__file__).with_name("recorded.json.gz")


@cache
def recording(profile: str) -> RunRecord:
    stored = json.loads(gzip.decompress(STORED.read_bytes()))[profile]
    series = {
        name: Series(name, np.array(t, np.float64), np.array(value, np.float64))
        for name, (t, value) in stored["series"].items()
    }
    events = [read_event(t, kind, data) for t, kind, data in stored["events"]]
    manifest = Manifest(profile=ResolvedProfile(name=profile), seed=102)
    return RunRecord(manifest, series, events)


slow = pytest.mark.slow
several_minutes = pytest.mark.parametrize(
    "minutes", [2, pytest.param(3, marks=slow), 5, pytest.param(7, marks=slow)]
)


def verdict(profile: str, minutes: float, gb_per_h: float) -> VerdictKind:
    first = beginning(recording(profile), 60.0 * minutes, shipped(profile))
    return judge(with_growth(first, gb_per_h)).kind


@pytest.mark.parametrize("profile", PROFILES)
@several_minutes
def test_a_healthy_run_is_no_leak_and_clean_from_five_minutes_on(
    profile: str, minutes: float
) -> None:
    kind = verdict(profile, minutes, 0.0)

    assert kind in (VerdictKind.CLEAN, VerdictKind.INCONCLUSIVE)
    if minutes >= 5:
        assert kind is VerdictKind.CLEAN


@pytest.mark.parametrize("profile", PROFILES)
@several_minutes
@pytest.mark.parametrize("gb_per_h", [1.0, 3.7, 10.0])
def test_a_gigabyte_an_hour_is_never_clean_and_a_leak_from_five_minutes_on(
    profile: str, minutes: float, gb_per_h: float
) -> None:
    kind = verdict(profile, minutes, gb_per_h)

    assert kind is (VerdictKind.LEAK if minutes >= 5 else VerdictKind.INCONCLUSIVE)
