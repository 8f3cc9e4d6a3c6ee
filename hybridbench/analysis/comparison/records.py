"""A comparison as the analysis sees it: its versions, their blocks, what each version's run says.

A *block* is a fixed piece of traffic that one version served from the first request to the last.
The blocks of one *round* carry the same requests from the same seed, so that they are pairs: their
quotient is free of what differs between rounds, the drift of the machine above all.
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
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import Failure, Rate, Verdict, VerdictKind, Why

# An effect of the order is told when it is large and surely there.
_ORDER_LARGE, _ORDER_SURE = 0.02, 0.01

DEFAULT_LOOKS: tuple[int, ...] = (6, 12, 18, 24)


@dataclass(frozen=True)
class Block:
    """What one version did in its turn of a round.

    ``values`` are by name: quotients and quantiles of this block alone, units in the name or in
    ``metrics.py``.  A value that the block could not give (no second token, no hit) is absent.
    """

    version: Count  # position in Comparison.versions
    round: Count  # blocks of one round are pairs
    position: Count  # turn within the round, from 0: ABBA swaps it from round to round
    # Time of the comparison.
    started_s: Annotated[float, msgspec.Meta(ge=-TIME_S_MAX, le=TIME_S_MAX)] = 0.0
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Version:
    """One side of a comparison.

    ``manifest`` is that of the version's run (engine hash, interpreter, malloc and gc mode,
    profile, pools, machine): what decides whether two sides can be compared at all.  ``record`` and
    ``verdict`` are of its own samples, in the version's own time: the turns of the others left out.
    """

    name: str  # as the user gave it: ".", "git:v1.2", "defect:lru-reference-cycle", a run directory
    kind: str  # "tree", "git", "python", "defect", "target", "server", "run"
    manifest: Manifest
    record: RunRecord
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """Versions side by side; the first is what the others are held against.

    ``interleaved`` is False for stored runs: their blocks are windows of each run's own time and no
    pairs, and what the machine did in between is in the difference.  ``looks`` are the numbers of
    rounds after which the answer was looked at, planned before the first of them.  Each version
    got a new process after ``renew_every`` rounds, 0 never.
    """

    versions: tuple[Version, ...]
    blocks: tuple[Block, ...]
    interleaved: bool
    looks: tuple[int, ...] = ()
    allowed_mismatches: frozenset[str] = field(default_factory=frozenset)
    renew_every: int = 0


@dataclass(frozen=True)
class ComparisonTerms:
    """When two versions differ; fixed before the first block, applied once to the raw blocks.

    ``margin`` is the share within which a throughput or a cost per token counts as the same.
    ``alpha`` is the chance of a wrong call, over all looks and all gated metrics together: a
    FASTER or SLOWER for a ratio within the margin, a SAME for one beyond it.  ``leak_alpha`` is the
    chance that the interval of one difference of leak rates misses the truth.
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
    """What a metric may do to the answer."""

    PRIMARY = "primary"  # the answer rests on it: until it is decided the comparison is not
    GUARD = "guard"  # worse is a regression; undecided holds nothing up
    SHOWN = "shown"  # told, never gates


class Call(StrEnum):
    """Where the interval of a ratio lies against the margin."""

    BETTER = "BETTER"
    WORSE = "WORSE"
    SAME = "SAME"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class MetricComparison:
    """One metric of a version against the first version's, as the ratio of the two.

    ``base`` and ``other`` are geometric means over the blocks that were paired, in ``unit``.
    ``robust_ratio`` is the Hodges-Lehmann estimate beside the mean.  ``sd`` is that of one pair's
    log ratio.  ``position_effect`` is what the second turn of a round adds to the metric, as a
    share; it is taken out of ``ratio``.  ``pairs_needed`` are pairs beyond those there are, None
    where the call is made or no number of pairs would make it.
    """

    metric: str
    label: str
    unit: str
    role: Role
    call: Call
    word: str  # the call in the metric's own word: FASTER, SLOWER, MORE, LOWER, SAME, ...
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
    why: Why | None = None  # it is undecided
    reason: str = ""  # ``why`` in words

    @property
    def depends_on_order(self) -> bool:
        """Whether the second turn of a round surely differs, and by enough to matter."""
        effect, p = self.position_effect, self.position_p
        if effect is None or p is None:
            return False
        return abs(effect) >= _ORDER_LARGE and p < _ORDER_SURE

    @property
    def has_outliers(self) -> bool:
        """Whether the robust estimate lies outside the interval."""
        return not self.lower <= self.robust_ratio <= self.upper


class Change(StrEnum):
    """What became of a finding between two versions."""

    INTRODUCED = "INTRODUCED"
    WORSE = "WORSE"  # in both, faster in the second
    FIXED = "FIXED"
    LESS = "LESS"  # in both, slower in the second
    # Growth of a metric that differs beyond doubt and is a leak in neither version.
    GROWS_FASTER = "GROWS FASTER"
    GROWS_SLOWER = "GROWS SLOWER"
    UNCHANGED = "UNCHANGED"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True)
class LeakComparison:
    """One finding, or the growth of one gated metric, in two versions.

    ``difference`` is second less first, at the confidence of the terms; None where one side has no
    rate to take a difference of.  ``bytes_per_hour`` is the same in bytes an hour, where both sides
    say so much.  ``exact`` findings are counts and need no test.
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
    reason: str = ""  # ``why`` in words, made by ``words.py`` as the texts below are


class Outcome(StrEnum):
    """The answer of a comparison."""

    REGRESSION = "REGRESSION"
    INCONCLUSIVE = "INCONCLUSIVE"
    SAME = "SAME"
    BETTER = "BETTER"


# Of several versions the first of these is the answer.
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
    """One version against the first."""

    version: int  # position in Comparison.versions
    name: str
    outcome: Outcome
    word: str  # what leads the headline: LEAK INTRODUCED, SLOWER, CRASHED, SAME, ...
    metrics: tuple[MetricComparison, ...]
    leaks: tuple[LeakComparison, ...]
    headline: str = ""
    notes: tuple[str, ...] = ()

    @property
    def full_headline(self) -> str:
        """The headline with its word, for where that does not stand before it."""
        return f"{self.word}: {self.headline}"

    def primary(self) -> MetricComparison | None:
        """The metric that the answer rests on; None where no block had one."""
        return next((m for m in self.metrics if m.role is Role.PRIMARY), None)


@dataclass(frozen=True)
class ComparisonVerdict:
    """The answer with everything it rests on; one side for each version after the first."""

    outcome: Outcome
    word: str
    sides: tuple[SideComparison, ...]
    rounds: int  # complete ones
    terms: ComparisonTerms
    interleaved: bool
    headline: str = ""
    names_version: bool = False  # the headline begins with the gravest version and its own word
    notes: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()  # of the comparison's own analysis and of its runs'

    @property
    def exit_code(self) -> ExitCode:
        return EXIT_OF_OUTCOME[self.outcome]

    @property
    def full_headline(self) -> str:
        """The headline as it is read alone."""
        return self.headline if self.names_version else f"{self.word}: {self.headline}"

    def worst(self) -> SideComparison:
        """The side with the gravest outcome: the answer is its answer."""
        return min(self.sides, key=lambda side: OUTCOME_PRECEDENCE.index(side.outcome))


@dataclass(frozen=True)
class Look:
    """An interim analysis: whether to stop, and how far it is if not.

    ``metrics`` are the primary ones; none while no two rounds are complete, or where the analysis
    failed.
    """

    decided: bool
    metrics: tuple[MetricComparison, ...] = ()
    rounds_needed: int | None = None  # more rounds, estimated; None where decided or unknown
    failure: Failure | None = None
