"""Defects seen only in private memory keep what their truth says; their twins keep nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hybridbench.defects.catalog import CONTROLS, DEFECTS, find_defect
from hybridbench.defects.defect import BYTES_KEPT, MILLISECONDS, Defect
from hybridbench.defects.inject import injected
from hybridbench.defects.paced import BLOCK_BYTES, PacedWork
from hybridbench.defects.truth import Truth
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.units import parse_byte_rate
from hybridbench.sampling.malloc import PINNED_ENVIRONMENT, malloc_reader
from hybridbench.workload.catalog import load_profile
from tests.builders import assert_idle_and_clean, make_engine
from tests.defects.private_growth import WORKS

# Defects with selectable rates; the traffic decides how much hicache-view-retention keeps.
ALONE = tuple(defect for defect in DEFECTS if defect.rates)
PROMPTS = [[1, 2, 3, 4, 5, n] for n in range(8)]


class Served:
    """The part of an engine that paced work uses."""

    def __init__(self) -> None:
        self.counters = make_engine().counters

    def finish(self, work: PacedWork, requests: int) -> None:
        self.counters.finishes += requests
        work.after_step(self)  # type: ignore[arg-type]


def served(engine: Engine) -> list[list[int]]:
    return engine.generate(PROMPTS, SamplingParams(max_new_tokens=4, temperature=0.0))


@pytest.mark.skipif(malloc_reader() is None, reason="another C library")
def test_private_memory_grows_by_what_the_truth_says_and_not_at_all_with_the_twin() -> None:
    environment = {**os.environ, **PINNED_ENVIRONMENT}
    words = [sys.executable, "-m", "tests.defects.private_growth"]
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, list[int]]] = json.loads(said.stdout)

    assert found.keys() == WORKS.keys()
    for slug, grown in found.items():
        assert_as_the_truth_says(slug, grown["twin"], grown["defect"])


def assert_as_the_truth_says(slug: str, twin: list[int], defect: list[int]) -> None:
    twin_kept, twin_grew = twin
    kept, grew = defect
    assert twin_kept == 0, slug
    assert twin_grew < BLOCK_BYTES, slug
    # How much a message pins depends on the heap layout: now and then a buffer fits into a hole
    # with some free bytes beside it.  That is why the signature says "at most".
    least = 75 if find_defect(f"{slug}@1GiB/h").signature.at_most else 99
    assert kept > least * BLOCK_BYTES, slug
    # Allow one block of slack, because the heap grows in steps.
    assert abs(grew - kept) < 0.01 * kept + BLOCK_BYTES, slug


@pytest.mark.parametrize("rate", ["200MiB/h", "1GiB/h", "4GiB/h"])
def test_work_keeps_the_rate_however_the_requests_come(rate: str) -> None:
    clock, truth, engine = FakeClock(), Truth(), Served()
    work = PacedWork(parse_byte_rate(rate), lambda: BLOCK_BYTES, truth, clock)

    engine.finish(work, 0)
    for requests in (3, 0, 900, 1, 50) * 60:
        clock.advance(1.3)
        engine.finish(work, requests)

    counts = truth.counts()
    per_hour = counts[BYTES_KEPT] / counts[MILLISECONDS] * 3_600_000
    assert per_hour == pytest.approx(parse_byte_rate(rate), rel=0.02)


def test_no_block_is_worked_without_a_request_that_finished() -> None:
    clock, truth, engine = FakeClock(), Truth(), Served()
    work = PacedWork(1e12, lambda: BLOCK_BYTES, truth, clock)

    engine.finish(work, 0)
    clock.advance(60.0)
    engine.finish(work, 0)
    assert truth.counts() == {}

    engine.finish(work, 5)
    assert truth.counts() == {BYTES_KEPT: 5 * BLOCK_BYTES, MILLISECONDS: 60_000}


@pytest.mark.parametrize("defect", ALONE, ids=lambda d: d.slug)
def test_no_counter_of_the_engine_shows_the_defect(
    defect: Defect,
) -> None:
    healthy = make_engine()
    tokens = served(healthy)
    # So fast that every request triggers a block.
    fast = find_defect(f"{defect.slug}@100TiB/s")

    with injected(fast):
        engine = make_engine()
        assert served(engine) == tokens

    assert fast.truth.counts()[MILLISECONDS] > 0
    assert engine.containers() == healthy.containers()
    assert {name: live for name, (_, live) in engine.reference_counted_classes().items()} == {
        name: live for name, (_, live) in healthy.reference_counted_classes().items()
    }
    assert_idle_and_clean(engine)


@pytest.mark.parametrize("defect", ALONE, ids=lambda d: d.slug)
def test_after_the_defect_an_engine_keeps_nothing(
    defect: Defect,
) -> None:
    fast = find_defect(f"{defect.slug}@100TiB/s")
    with injected(fast):
        served(make_engine())
    counted = fast.truth.counts()
    assert counted
    served(make_engine())

    assert fast.truth.counts() == counted


@pytest.mark.parametrize("defect", ALONE, ids=lambda d: d.slug)
def test_each_has_a_twin_that_must_be_clean_and_counts_nothing_kept(defect: Defect) -> None:
    (twin,) = (control for control in CONTROLS if control.slug == defect.healthy_twin)

    assert twin.signature.verdicts == ("CLEAN",)
    assert (twin.profile, twin.source) == (defect.profile, defect.source)
    assert twin.truth.counts().get(BYTES_KEPT, 0) == 0


@pytest.mark.parametrize("defect", ALONE, ids=lambda d: d.slug)
def test_every_rate_is_above_the_limit_that_its_profile_sets_for_that_length(
    defect: Defect,
) -> None:
    profile = load_profile(defect.profile)
    limit = profile.limits_as_planned(defect.signature.duration_s).rss_bytes_per_h

    assert limit is not None
    assert len(defect.rates) == 3
    assert all(parse_byte_rate(rate) > limit for rate in defect.rates)
    if not defect.signature.at_most:
        assert parse_byte_rate(defect.rates[0]) < 2 * limit


def test_there_are_three_of_them() -> None:
    assert {defect.slug for defect in ALONE} == set(WORKS)
    assert all(defect.signature.alone for defect in ALONE)
    assert sum(defect.quick for defect in ALONE) >= 1
