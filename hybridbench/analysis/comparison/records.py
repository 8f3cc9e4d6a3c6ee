"""A comparison's input and output records: versions, blocks, and the results for each version.

A *block* is a fixed piece of traffic that one version served from the first request to the last.
The blocks of one *round* carry the same requests from the same seed and form pairs.  The ratio of a
pair cancels whatever differs between rounds, above all machine drift.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import msgspec

from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.foreign import TIME_S_MAX
from hybridbench.records.comparison import Count
from hybridbench.records.finding import Rate, VerdictKind
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import Failure, Verdict, Why

# An order effect is reported if it is large and significant.
_ORDER_LARGE, _ORDER_SURE = 0.02, 0.01

DEFAULT_LOOKS: tuple[int, ...] = (6, 12, 18, 24)


@dataclass(frozen=True)
class Block:
    """One version's measurements in its turn of a round.

    ``values`` has ratios and quantiles of this block alone, by name; their units are in the name or
    in ``metrics.py``.  Values that the block could not supply (no second token, no hit) are absent.
    """

    version: Count  # position in Comparison.versions
    round: Count  # blocks of the same round form a pair
    position: Count  # turn within the round, from 0: ABBA swaps it from round to round
    # Seconds since the comparison started.
    started_s: Annotated[float, msgspec.Meta(ge=-TIME_S_MAX, le=TIME_S_MAX)] = 0.0
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Version:
    """One side of a comparison.

    ``manifest`` is from the version's run (engine hash, interpreter, malloc and gc mode, profile,
    pools, machine) and decides whether two sides can be compared at all.  ``record`` and
    ``verdict`` cover only the version's own samples and time: other versions' turns are left out.
    """

    name: str  # as the user gave it: ".", "git:v1.2", "defect:lru-reference-cycle", a run directory
    kind: str  # "tree", "git", "python", "defect", "target", "server", "run"
    manifest: Manifest
    record: RunRecord
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """Several versions; each of the others is compared with the first.

    ``interleaved`` is False for stored runs: their blocks are windows of each run's own time and
    not pairs, so the difference includes changes of the machine between the runs.  ``looks`` has
    the numbers of rounds after which the answer was checked, as planned before the first round.
    Each version got a new process after ``renew_every`` rounds; 0 means never.
    """

    versions: tuple[Version, ...]
    blocks: tuple[Block, ...]
    interleaved: bool
    looks: tuple[int, ...] = ()
    allowed_mismatches: frozenset[str] = field(default_factory=frozenset)
    renew_every: int = 0


@dataclass(frozen=True)
class ComparisonTerms:
    """Criteria for a difference; fixed before the first block, applied once to the raw blocks.

    ``margin`` is the share within which a throughput or a cost per token counts as the same.
    ``alpha`` is the probability of a wrong call over all looks and all gated metrics together: a
    FASTER or SLOWER for a ratio within the margin, or a SAME for one beyond it.  ``leak_alpha`` is
    the probability that the interval of one difference of leak rates misses the true value.
    """

    margin: float = 0.03
    alpha: float = 0.05
    looks: tuple[int, ...] = DEFAULT_LOOKS
    leak_alpha: float = 0.001

    def __post_init__(self) -> None:
        if not 0.0 < self.margin < 1.0:
            raise ValueError(f"a margin is a share between 0 and 1, not {self.margin}")
        if not 0.0 < self.alpha < 0.5 or not 0.0 < self.leak_alpha < 1.0:
            raise ValueError("alpha is a probability below 0.5, leak_alpha one below 1")
        if not self.looks or self.looks[0] < 1 or list(self.looks) != sorted(set(self.looks)):
            raise ValueError(f"looks are rounds in rising order, not {self.looks}")


class Role(StrEnum):
    """How a metric may affect the answer."""

    PRIMARY = "primary"  # decides the answer: while it is undecided, so is the comparison
    GUARD = "guard"  # a regression if it is worse; never delays the answer
    SHOWN = "shown"  # never affects the answer


class Call(StrEnum):
    """Where a ratio's interval lies relative to the margin."""

    BETTER = "BETTER"
    WORSE = "WORSE"
    SAME = "SAME"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class MetricComparison:
    """One metric of a version compared with the first version's, as a ratio.

    ``base`` and ``other`` are geometric means over the paired blocks, in ``unit``.
    ``robust_ratio`` is the Hodges-Lehmann estimate.  ``sd`` is the standard deviation of one pair's
    log ratio.  ``position_effect`` is how much running second in a round adds to the metric, as a
    share; it is removed from ``ratio``.  ``pairs_needed`` counts additional pairs; None if the
    metric is decided or no number of pairs would decide it.
    """

    metric: str
    label: str
    unit: str
    role: Role
    call: Call
    word: str  # the metric's word for the call: FASTER, SLOWER, MORE, LOWER, SAME, ...
    margin: float
    base: float
    other: float
    ratio: float
    lower: float
    upper: float
    confidence: float
    pairs: int
    sd: float
    robust_ratio: float
    pairs_needed: int | None = None
    position_effect: float | None = None
    position_p: float | None = None
    why: Why | None = None  # why it is undecided
    reason: str = ""  # text of ``why``

    @property
    def depends_on_order(self) -> bool:
        """Whether running second in a round has a significant effect that is large enough."""
        effect, p = self.position_effect, self.position_p
        if effect is None or p is None:
            return False
        return abs(effect) >= _ORDER_LARGE and p < _ORDER_SURE

    @property
    def has_outliers(self) -> bool:
        """Whether the robust estimate lies outside the interval."""
        return not self.lower <= self.robust_ratio <= self.upper


class Change(StrEnum):
    """How a finding changed between two versions."""

    INTRODUCED = "INTRODUCED"
    WORSE = "WORSE"  # in both, faster in the second
    FIXED = "FIXED"
    LESS = "LESS"  # in both, slower in the second
    # Growth that differs significantly but is a leak in neither version.
    GROWS_FASTER = "GROWS FASTER"
    GROWS_SLOWER = "GROWS SLOWER"
    UNCHANGED = "UNCHANGED"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True)
class LeakComparison:
    """One finding, or the growth of one gated metric, in two versions.

    ``difference`` is the second rate less the first, at the confidence of the terms; None if a side
    has no usable rate.  ``bytes_per_hour`` is the same in bytes per hour, if both sides have such a
    rate.  ``exact`` findings are counts and need no test.
    """

    kind: str
    subject: str
    driver: str | None
    title: str
    verdict: VerdictKind
    change: Change
    exact: bool
    base: Rate | None = None
    other: Rate | None = None
    difference: Rate | None = None
    bytes_per_hour: Rate | None = None
    why: tuple[Why, ...] = ()
    reason: str = ""  # text of ``why``; ``words.py`` writes it, and the headlines and notes below


class Outcome(StrEnum):
    """The outcome of a comparison."""

    REGRESSION = "REGRESSION"
    INCONCLUSIVE = "INCONCLUSIVE"
    SAME = "SAME"
    BETTER = "BETTER"


# Across several versions, the first of these that occurs is the answer.
OUTCOME_PRECEDENCE: tuple[Outcome, ...] = (
    Outcome.REGRESSION,
    Outcome.INCONCLUSIVE,
    Outcome.BETTER,
    Outcome.SAME,
)

EXIT_OF_OUTCOME = {
    Outcome.REGRESSION: ExitCode.REGRESSION,
    Outcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    Outcome.SAME: ExitCode.CLEAN,
    Outcome.BETTER: ExitCode.CLEAN,
}


@dataclass(frozen=True)
class SideComparison:
    """One version compared with the first."""

    version: int  # position in Comparison.versions
    name: str
    outcome: Outcome
    word: str  # leads the headline: LEAK INTRODUCED, SLOWER, CRASHED, SAME, ...
    metrics: tuple[MetricComparison, ...]
    leaks: tuple[LeakComparison, ...]
    headline: str = ""
    notes: tuple[str, ...] = ()

    @property
    def full_headline(self) -> str:
        """The headline with its word, for places that do not print the word separately."""
        return f"{self.word}: {self.headline}"

    def primary(self) -> MetricComparison | None:
        """Return the metric that decides the answer; None if no block had one."""
        return next((m for m in self.metrics if m.role is Role.PRIMARY), None)


@dataclass(frozen=True)
class ComparisonVerdict:
    """The answer and everything it is based on; one side for each version after the first."""

    outcome: Outcome
    word: str
    sides: tuple[SideComparison, ...]
    rounds: int  # complete rounds
    terms: ComparisonTerms
    interleaved: bool
    headline: str = ""
    names_version: bool = False  # the headline starts with the worst version and its word
    notes: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()  # of the comparison's analysis and of the runs'

    @property
    def exit_code(self) -> ExitCode:
        return EXIT_OF_OUTCOME[self.outcome]

    @property
    def full_headline(self) -> str:
        """The headline as a sentence on its own."""
        return self.headline if self.names_version else f"{self.word}: {self.headline}"

    def worst(self) -> SideComparison:
        """Return the side with the worst outcome, which decides the answer."""
        return min(self.sides, key=lambda side: OUTCOME_PRECEDENCE.index(side.outcome))


@dataclass(frozen=True)
class InterimAnalysis:
    """An interim analysis: whether to stop, and the rounds still needed if not.

    ``metrics`` holds the primary metrics; empty while fewer than two rounds are complete, or if the
    analysis failed.
    """

    decided: bool
    metrics: tuple[MetricComparison, ...] = ()
    rounds_needed: int | None = None  # additional rounds, estimated; None if decided or unknown
    failure: Failure | None = None
