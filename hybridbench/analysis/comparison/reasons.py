"""Reasons why a metric is undecided or a finding is judged as it is, as one record type each."""

from __future__ import annotations

from hybridbench.analysis.findings.growth import faster_than
from hybridbench.foundation.metrics import Unit
from hybridbench.foundation.units import format_percent
from hybridbench.records.finding import LowerEnd, Rate, UpperEnd
from hybridbench.records.verdict import Reason


class FewPairs(Reason, frozen=True, kw_only=True):
    """Too few ``pairs`` of blocks to estimate a spread."""

    code = "few-pairs"

    pairs: int

    def text(self) -> str:
        return f"{self.pairs} pairs are too few to estimate how much they vary"


class NotAlone(Reason, frozen=True, kw_only=True):
    """Other processes used the run's CPUs; ``shares`` gives the share of each run's time."""

    code = "not-alone"

    shares: tuple[float, ...]

    def text(self) -> str:
        shares = " and ".join(map(format_percent, self.shares))
        return f"other programs had the processors for {shares} of the time"


class LoadUnknown(Reason, frozen=True, kw_only=True):
    """Nothing recorded whether other load disturbed the runs."""

    code = "load-unknown"
    said = "it is not known whether each run had the machine to itself"


class NearMargin(Reason, frozen=True, kw_only=True):
    """A change that is certain but may be smaller than ``margin`` (a share)."""

    code = "near-margin"

    margin: float

    def text(self) -> str:
        return (
            "it differs, but its interval includes changes smaller than the margin of "
            f"{100.0 * self.margin:.3g}%"
        )


class AcrossMargin(Reason, frozen=True, kw_only=True):
    """A change that may be zero and may be larger than ``margin`` (a share)."""

    code = "across-margin"

    margin: float

    def text(self) -> str:
        return f"the interval crosses the margin of {100.0 * self.margin:.3g}%"


class OtherDriver(Reason, frozen=True, kw_only=True):
    """The same finding, driven by a different event in each run."""

    code = "other-driver"

    first: str | None
    second: str | None

    def text(self) -> str:
        return (
            f"explained by {self.first or 'no event'} in the first run, by "
            f"{self.second or 'no event'} in the second"
        )


class FewEvents(Reason, frozen=True, kw_only=True):
    """Too few ``events`` of the driver for the finding to be expected."""

    code = "few-events"

    events: float
    driver: str

    def text(self) -> str:
        return f"only {self.events:.0f} {self.driver} in the version without it"


class OneRunAlone(Reason, frozen=True, kw_only=True):
    """Growth that is a leak in one ``run``, and may be as fast in the other."""

    code = "one-run-alone"

    run: str

    def text(self) -> str:
        return f"found in the {self.run} run alone, but the rates may be the same"


class FasterThanMemory(Reason, frozen=True, kw_only=True):
    """Objects that grow by more bytes an hour than private memory can."""

    code = "faster-than-memory"

    value: float
    lower: LowerEnd
    upper: UpperEnd
    memory_upper: float

    def text(self) -> str:
        rate = Rate(self.value, self.lower, self.upper, Unit.BYTES.value, "h")
        return faster_than(rate, self.memory_upper).text


class ShorterRun(Reason, frozen=True, kw_only=True):
    """The version without the finding ran for too short a time to show it."""

    code = "shorter-run"
    said = "the version without it ran for a much shorter time"


class UnderATenth(Reason, frozen=True, kw_only=True):
    """Rates that differ by too little to matter."""

    code = "under-a-tenth"
    said = "the rates differ by less than a tenth"


class InvalidRun(Reason, frozen=True, kw_only=True):
    """Trends fitted in an INVALID run are meaningless."""

    code = "invalid-run"
    said = "one of the runs is INVALID"


class NoRate(Reason, frozen=True, kw_only=True):
    """A run without a rate, so there is no difference."""

    code = "no-rate"
    said = "one of the runs has no rate to compare"


class BelowLimit(Reason, frozen=True, kw_only=True):
    """Disjoint intervals, both below the limit."""

    code = "below-limit"
    said = "growth differs, and is below the limit in both versions"


class NoLeak(Reason, frozen=True, kw_only=True):
    """Disjoint intervals, and no leak in either run."""

    code = "no-leak"
    said = "growth differs, but is a leak in neither run alone"
