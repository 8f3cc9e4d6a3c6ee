"""The judged window."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.facts.window import judged_window
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import Crash, Event, Interrupted, Phase, Steady
from hybridbench.records.manifest import Manifest


def record(*events: tuple[float, str] | Event) -> RunRecord:
    t = np.arange(0.0, 601.0)
    told = [e if isinstance(e, Event) else Phase(name=e[1], t_s=e[0]) for e in events]
    return RunRecord(Manifest(), {"x": Series("x", t, t)}, told)


def test_it_runs_from_steady_to_the_last_drain() -> None:
    window = judged_window(
        record((2, "warmup"), Steady(t_s=100.0), (590, "drain"), (592, "idle"), (599, "done"))
    )

    assert window is not None
    assert (window.start_s, window.end_s, window.steady) == (100.0, 590.0, True)


def test_pauses_inside_are_left_out() -> None:
    found = record(
        Steady(t_s=100.0), (300, "drain"), (303, "idle"), (310, "resume"), (310, "steady")
    )
    window = judged_window(found)

    assert window is not None
    assert window.pauses == ((300.0, 310.0),)
    t, _ = window.samples(found.series["x"])
    assert not np.any((t >= 300) & (t <= 310))
    assert t[-1] == 600.0


def test_of_a_pause_that_began_earlier_only_the_part_inside_counts() -> None:
    """A watched target may become steady while its client rests."""
    window = judged_window(
        record((80, "drain"), Steady(t_s=100.0), (150, "resume"), (150, "steady"))
    )

    assert window is not None
    assert window.pauses == ((100.0, 150.0),)
    assert window.stretches() == [(150.0, 600.0)]


@pytest.mark.parametrize("end", [Crash(t_s=400.0), Interrupted(t_s=400.0)])
def test_what_ends_the_run_ends_the_window(end: Event) -> None:
    window = judged_window(record(Steady(t_s=100.0), end))

    assert window is not None
    assert window.end_s == 400.0


def test_without_the_event_the_planned_phase_or_a_tenth_of_the_run_must_do() -> None:
    planned, unknown = judged_window(record((200, "steady"))), judged_window(record())

    assert planned is not None
    assert unknown is not None
    assert (planned.start_s, planned.steady) == (200.0, False)
    assert (unknown.start_s, unknown.steady) == (60.0, False)


def test_a_run_without_samples_has_none() -> None:
    assert judged_window(RunRecord(Manifest(), {}, [])) is None


def test_samples_that_are_no_numbers_are_left_out() -> None:
    t = np.arange(0.0, 10.0)
    series = Series("x", t, np.where(t == 5, np.nan, t))
    window = judged_window(RunRecord(Manifest(), {"x": series}, [Steady(t_s=0.0)]))

    assert window is not None
    assert 5.0 not in window.samples(series)[0]
