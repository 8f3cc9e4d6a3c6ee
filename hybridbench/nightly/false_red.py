"""How often a night is red though nothing is wrong: told before anybody trusts the gate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hybridbench.metrics import METRICS, Check
from hybridbench.nightly.cells import Cell, CellKind
from hybridbench.nightly.plan import Policy

# docs/detection.md, "How well it does": 3 false alarms in 552 clean traces on one fresh seed, none
# in 552 on another.  The worse of the two is used; with none, up to 0.0054 could not be excluded.
ALARM_RATE: Final = 3 / 552
# A comparison is built to call identical versions different in one of twenty at most, half of them
# slower; docs/comparison-statistics.md simulated it and saw none.
COMPARE_RATE: Final = 0.025
GATED_METRICS: Final = sum(spec.check is Check.TREND for spec in METRICS)


@dataclass(frozen=True)
class FalseRed:
    """The expected share of false red nights, and the sentence that says how it was reckoned."""

    share: float
    text: str
    formula: str


def expected_false_red(cells: Sequence[Cell], policy: Policy) -> FalseRed:
    """For one night of ``cells``.

    One clean soak is called a leak with chance c = 1 - (1 - a)^m, for m gated metrics with an alarm
    rate of a each; with the rerun policy it turns red only if a second seed agrees, c^2.  A night
    is red unless every cell is green: 1 - product of (1 - chance).

    An extension is counted as a second look of its own, as if every soak were undecided and the
    two were independent: m is doubled.  How often the looks of an extension, of which two must
    agree, are wrong has not been measured.
    """
    soaks = sum(cell.kind is CellKind.SOAK for cell in cells)
    compares = len(cells) - soaks
    power = 2 if policy.rerun_statistical_leak else 1
    looks = 1 if policy.extend == 0 else 2
    soak_chance = (1.0 - (1.0 - ALARM_RATE) ** (GATED_METRICS * looks)) ** power
    compare_chance = COMPARE_RATE**power
    share = 1.0 - (1.0 - soak_chance) ** soaks * (1.0 - compare_chance) ** compares
    text = _text(share, (soaks, looks), compares, power)
    return FalseRed(share, text, _formula((soaks, looks), compares, power))


def _text(share: float, of_soaks: tuple[int, int], compares: int, power: int) -> str:
    soaks, looks = of_soaks
    nights = f", about one in {_rounded(1 / share)}" if share > 0 else ""
    parts = []
    if soaks:
        extended = ", the extension counted as a second look" if looks > 1 else ""
        parts.append(f"{soaks} soak{'s' * (soaks > 1)} of {GATED_METRICS} gated metrics{extended}")
    if compares:
        parts.append(f"{compares} comparison{'s' * (compares > 1)}")
    confirmed = ", each red confirmed by a second seed" if power == 2 else ""
    return f"{share:.2%} of nights{nights}: {' and '.join(parts)}{confirmed}"


def _formula(of_soaks: tuple[int, int], compares: int, power: int) -> str:
    soaks, looks = of_soaks
    tries = GATED_METRICS * looks
    squared = "^2" if power == 2 else ""
    parts = []
    if soaks:
        parts.append(f"(1 - (1 - (1 - {ALARM_RATE:.4f})^{tries}){squared})^{soaks}")
    if compares:
        parts.append(f"(1 - {COMPARE_RATE:g}{squared})^{compares}")
    return (
        f"1 - {' x '.join(parts)}, with {ALARM_RATE:.4f} false alarms for each gated metric as "
        "measured (docs/detection.md); runs are taken as independent, which a bad machine makes "
        "untrue"
    )


def _rounded(nights: float) -> str:
    digits = max(0, math.floor(math.log10(nights)) - 1)
    return f"{round(nights, -digits):.0f}"
