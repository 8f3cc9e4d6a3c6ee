"""How often a nightly run fails although nothing is wrong, which limits trust in the gate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hybridbench.analysis.findings.words import times
from hybridbench.foundation.metrics import METRICS, Check
from hybridbench.foundation.units import format_percent
from hybridbench.records.nightly import Cell, CellKind, Policy

# detection.md, "How well it does": 3 false alarms in 552 clean traces on one fresh seed, none
# in 552 on another.  The worse of the two is used; with none, up to 0.0054 could not be excluded.
ALARM_RATE: Final = 3 / 552
# A comparison is built to call identical versions different in at most one of twenty cases, half
# of them slower; comparison-statistics.md simulated it and saw none.
COMPARE_RATE: Final = 0.025
_GATED: Final = [spec for spec in METRICS if spec.check is Check.TREND and not spec.foreign]
GATED_METRICS: Final = sum(not spec.on_device for spec in _GATED)
"""The number of gated metrics of a soak on a CPU."""


@dataclass(frozen=True)
class FalseAlarms:
    """The expected share of failed runs for a plan in which nothing is wrong.

    One clean soak is called a leak with probability c = 1 - (1 - a)^m, for m gated metrics with an
    alarm rate of a each; with the rerun policy it fails only if a second seed agrees, c^2.  A
    nightly run fails unless every cell passes: 1 - product of (1 - probability).

    An extension counts as a second analysis, as if every soak were undecided and the two were
    independent: m is doubled.  The error rate of an extension's interim analyses, of which two must
    agree, has not been measured.
    """

    soaks: int
    compares: int
    extended: bool
    confirmed: bool
    gated_metrics: int = GATED_METRICS
    """The number for each soak; that of a soak on a GPU if any soak runs on one."""

    @property
    def share(self) -> float:
        """The probability as a share of all nightly runs."""
        power = 2 if self.confirmed else 1
        soak = (1.0 - (1.0 - ALARM_RATE) ** self._tries) ** power
        compare = COMPARE_RATE**power
        return 1.0 - (1.0 - soak) ** self.soaks * (1.0 - compare) ** self.compares

    @property
    def text(self) -> str:
        """The share in a sentence, with its basis."""
        parts = []
        if self.soaks:
            extended = ", the extension counted as a second analysis" if self.extended else ""
            soaks = times(self.soaks, "soak")
            parts.append(f"{soaks} of {self.gated_metrics} gated metrics{extended}")
        if self.compares:
            parts.append(times(self.compares, "comparison"))
        one_in = f", about one in {_rounded(1 / self.share)}" if self.share > 0 else ""
        confirmed = ", each confirmed by a second seed" if self.confirmed else ""
        of = f"{' and '.join(parts)}{confirmed}"
        return f"{format_percent(self.share, 2)} of nightly runs{one_in}: {of}"

    @property
    def formula(self) -> str:
        """The formula of the share."""
        squared = "^2" if self.confirmed else ""
        parts = []
        if self.soaks:
            parts.append(f"(1 - (1 - (1 - {ALARM_RATE:.4f})^{self._tries}){squared})^{self.soaks}")
        if self.compares:
            parts.append(f"(1 - {COMPARE_RATE:g}{squared})^{self.compares}")
        return (
            f"1 - {' x '.join(parts)}, with {ALARM_RATE:.4f} false alarms for each gated metric as "
            "measured (docs/explanation/detection.md); assumes independent runs; a noisy machine "
            "violates this"
        )

    @property
    def _tries(self) -> int:
        return self.gated_metrics * (2 if self.extended else 1)


def expected_false_alarms(cells: Sequence[Cell], policy: Policy) -> FalseAlarms:
    """Return the estimate for one nightly run of ``cells``."""
    soaks = sum(cell.kind is not CellKind.COMPARE for cell in cells)
    gated = len(_GATED) if any(cell.needs.gpu for cell in cells) else GATED_METRICS
    return FalseAlarms(
        soaks, len(cells) - soaks, policy.extend != 0, policy.rerun_statistical_leak, gated
    )


def _rounded(runs: float) -> str:
    digits = max(0, math.floor(math.log10(runs)) - 1)
    return f"{round(runs, -digits):.0f}"
