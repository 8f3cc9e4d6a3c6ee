"""Each awkward family of series gets the right answer, whatever the seed."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.analysis.trend.metric_trend import Effort, judge_trend
from hybridbench.foundation.metrics import MEMORY, declared
from hybridbench.records.manifest import Manifest
from tests.unit.analysis.families import FAMILIES, HEALTHY, LEAKS, UNDECIDED, draw

FEW, MANY = 2, 60
# These keep growing until the end, though ever more slowly.
NEVER_AT_REST = ("logarithmic fill", "hyperbolic settling")
# Minimum share of leaks that are found; the others stay undecided.
FOUND = 0.9


def outcomes(family: str, seeds: range) -> list[str]:
    return [outcome(family, seed) for seed in seeds]


def outcome(family: str, seed: int) -> str:
    drawn = draw(family, seed)
    columns = {MEMORY: drawn.value}
    if drawn.work is not None and drawn.load is not None:
        columns |= {"events.finishes": drawn.work, "running_requests": drawn.load}
    series = {name: Series(name, drawn.t_s, value) for name, value in columns.items()}
    facts = Facts.of(RunRecord(Manifest(), series, []))
    return judge_trend(facts, declared(MEMORY), Effort()).outcome


def test_there_are_thirty_two_families_and_each_has_one_answer() -> None:
    assert len(FAMILIES) == 32
    assert sorted(HEALTHY + UNDECIDED + LEAKS) == sorted(FAMILIES)
    assert np.array_equal(draw("line", 3).value, draw("line", 3).value)


@pytest.mark.parametrize("family", HEALTHY)
def test_a_healthy_family_is_never_a_leak(family: str) -> None:
    found = outcomes(family, range(FEW))

    assert "LEAK" not in found
    assert "CLEAN" in found or family in NEVER_AT_REST


@pytest.mark.parametrize("family", UNDECIDED)
def test_what_cannot_be_told_yet_is_left_open(family: str) -> None:
    assert set(outcomes(family, range(FEW))) == {"INCONCLUSIVE"}


@pytest.mark.parametrize("family", LEAKS)
def test_a_leaking_family_is_found(family: str) -> None:
    found = outcomes(family, range(FEW))

    assert "CLEAN" not in found
    assert found.count("LEAK") >= FEW - 1


@pytest.mark.parametrize("seed", [53, 209])
def test_a_swing_with_little_noise_is_no_shape_of_growth(seed: int) -> None:
    """A ramp and a late trend follow a part of two and a half cycles better than a level does."""
    assert outcome("swing", seed) == "CLEAN"


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_by_the_dozen_no_family_is_called_what_it_is_not(family: str) -> None:
    found = outcomes(family, range(FEW, MANY))

    wrong = "CLEAN" if family in LEAKS + UNDECIDED else "LEAK"
    assert wrong not in found
    if family in LEAKS:
        assert found.count("LEAK") >= FOUND * len(found)
