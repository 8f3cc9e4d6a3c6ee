"""Controls behave as described on a small engine, and change neither its tokens nor its pools."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import pairwise

import pytest

from hybridbench.defects.catalog import CONTROLS, find_defect
from hybridbench.defects.controls import healthy_sawtooth, sticky_burst
from hybridbench.defects.controls.arena_retention import OneBurst
from hybridbench.defects.controls.observer_growth import RECORD_BYTES, polled
from hybridbench.defects.controls.slot_fill_log import PAGE_BYTES, PAGES, PagesOnDemand
from hybridbench.defects.defect import Defect
from hybridbench.defects.inject import injected
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.workload.catalog import list_profiles, load_profile
from tests.builders import assert_idle_and_clean, make_engine

PROMPTS = [[1, 2, 3, 4, 5, n] for n in range(8)]


def served(engine: Engine) -> list[list[int]]:
    return engine.generate(PROMPTS, SamplingParams(max_new_tokens=4, temperature=0.0))


class Counted:
    """The part of an engine that side work uses."""

    def __init__(self) -> None:
        self.is_steady = True
        self.counters = make_engine().counters


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: c.slug)
def test_a_control_changes_neither_tokens_nor_pools(control: Defect) -> None:
    expected = served(make_engine())

    with injected(control):
        engine = make_engine()
        tokens = served(engine)

    assert tokens == expected
    assert_idle_and_clean(engine)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: c.slug)
def test_a_control_has_a_shipped_profile_that_takes_its_settings(control: Defect) -> None:
    assert control.profile in list_profiles()
    load_profile(control.profile).with_overrides(dict(control.overrides))


def test_expired_pairs_are_garbage_for_the_collector_and_the_kept_ones_are_not() -> None:
    work = healthy_sawtooth.PairsThatExpire()
    engine = Counted()
    gc.collect()
    gc.disable()
    try:
        engine.counters.finishes = healthy_sawtooth.PAIRS_KEPT // 20 + 100
        work.after_step(engine)  # type: ignore[arg-type]
        collected = gc.collect()
    finally:
        gc.enable()

    # The pairs of a hundred requests have expired: two objects each, and whatever those refer to.
    assert collected >= 2 * 100 * healthy_sawtooth.PAIRS_PER_REQUEST
    assert len(work._kept) == healthy_sawtooth.PAIRS_KEPT


def test_the_burst_comes_once_and_keeps_one_object_in_forty_eight() -> None:
    work = OneBurst()
    engine = Counted()

    work.after_step(engine)  # type: ignore[arg-type]
    engine.counters.finishes = 3_999
    work.after_step(engine)  # type: ignore[arg-type]
    assert not work._kept

    engine.counters.finishes = 4_000
    work.after_step(engine)  # type: ignore[arg-type]
    first = list(work._kept)
    engine.counters.finishes = 90_000
    work.after_step(engine)  # type: ignore[arg-type]

    assert len(first) == 500
    assert all(a is b for a, b in zip(first, work._kept, strict=True))


def test_sticky_slots_are_bounded_by_their_number_however_long_it_goes_on() -> None:
    work = sticky_burst.SlotsThatKeep()
    engine = Counted()
    work.after_step(engine)  # type: ignore[arg-type]
    held = []
    for finished in (2_999, 3_010, 3_600, 50_000):
        engine.counters.finishes = finished
        work.after_step(engine)  # type: ignore[arg-type]
        held.append(sum(slot is not None for slot in work._slots))

    assert held == [0, 10, sticky_burst.SLOTS, sticky_burst.SLOTS]


def test_first_touches_become_ever_rarer() -> None:
    work = PagesOnDemand()
    engine = Counted()
    touched = []
    for finished in (3_000, 6_000, 9_000, 12_000):
        engine.counters.finishes = finished
        work.after_step(engine)  # type: ignore[arg-type]
        assert work._table is not None
        touched.append(int((work._table[::PAGE_BYTES] != 0).sum()))

    fresh = [b - a for a, b in pairwise([0, *touched])]
    assert touched[-1] < PAGES
    for earlier, later in pairwise(fresh):
        assert 0.35 < later / earlier < 0.65


def test_each_poll_leaves_a_record_and_no_step_does() -> None:
    history: list[bytes] = []
    with injected(replace(find_defect("observer-growth"), patches=(polled(history),))):
        engine = make_engine()
        served(engine)
        after_steps = len(history)
        engine.containers()
        engine.containers()

    assert after_steps == 0
    assert [len(record) for record in history] == [RECORD_BYTES, RECORD_BYTES]
