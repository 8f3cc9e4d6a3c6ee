"""The plan of a comparison, from the command line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from hybridbench.analysis.comparison.records import ComparisonTerms
from hybridbench.compare.sides import Side
from hybridbench.foundation.thresholds import Stat, parse_thresholds
from hybridbench.records.manifest import Options
from hybridbench.runs.plan import SoakPlan
from hybridbench.workload.profile import Profile

BLOCK_S: Final = 15.0
MAX_TIME_S: Final = 1200.0
SLICE_S: Final = 0.05
# Time at the end of each version for recomputing its answers.
ANSWERS_S: Final = 10.0
# The shortest block still has enough requests for quantiles on a slow machine.
SHORTEST_BLOCK_S: Final = 2.0
_SAMPLES_PER_BLOCK = 15.0
_LEAST_SAMPLE_S = 0.5
_LONGEST_SETTLE_S = 0.3


@dataclass(frozen=True)
class ComparePlan:
    """One comparison of live versions.

    Args:
        sides: the versions; the first is the baseline.
        profile: the traffic, the same for all.
        store: where to make the comparison's directory.
        terms: margin, error probabilities, and the interim analyses ("looks") after which it may
            end; the last look is the maximum number of rounds.
        block_s: target duration of a block of the first version; fixes its number of requests.
        slice_s: duration of a version's turn within a block; 0 is the whole block.  The shorter it
            is, the less machine noise remains in the difference.
        max_time_s: no round begins that would end later than this after the first round began.
        renew_every: rounds after which each version gets a new process; 1: for each block, 0:
            never.
        thresholds: as written; for each version's run, and for ratios to the baseline.
        allowed: keys of the manifests that may differ.
        same_engine: whether to compare versions that turn out to run the same engine files.
        command: the arguments as the user gave them.
    """

    sides: tuple[Side, ...]
    profile: Profile
    model: str
    store: Path
    seed: int
    terms: ComparisonTerms = field(default_factory=ComparisonTerms)
    block_s: float = BLOCK_S
    slice_s: float = SLICE_S
    max_time_s: float = MAX_TIME_S
    renew_every: int = 0
    thresholds: tuple[str, ...] = ()
    allowed: frozenset[str] = frozenset()
    same_engine: bool = True
    profile_source: str | None = None
    ui: str = "plain"
    command: tuple[str, ...] = ()

    def of_side(self, side: Side, directory: Path) -> SoakPlan:
        """Return the plan of one version's soak; its actual duration is known only at the end."""
        return SoakPlan(
            profile=self._in_blocks(),
            model=self.model,
            store=directory,
            duration_s=self.terms.looks[0] * self.block_s,
            seed=self.seed,
            defects=side.defects,
            defects_as_of=side.releases,
            profile_source=self.profile_source,
            ui="none",
            thresholds=of_one_run(self.thresholds),
            options=Options(
                diagnose="never", answers_s=0.0 if side.program.released else ANSWERS_S
            ),
            program=side.program,
            command=self.command,
        )

    @property
    def is_closed_loop(self) -> bool:
        """Whether requests follow answers, and so wait while their version is frozen."""
        return self.profile.arrival.process == "closed"

    def settings_digest(self) -> str:
        """Return a hash of all settings except the versions.

        Repeating a comparison of the same versions with the same hash would add nothing.
        """
        return digest_of(
            profile=self.profile.resolved(),
            model=self.model,
            seed=self.seed,
            terms=asdict(self.terms),
            thresholds=self.thresholds,
            block_s=self.block_s,
            slice_s=self.slice_s,
            max_time_s=self.max_time_s,
            renew_every=self.renew_every,
        )

    def _in_blocks(self) -> Profile:
        """Return the profile with a sampling interval and a settle time for blocks.

        A soak's default interval is a share of its duration, which is not known yet.  The settle
        time must be short, because it passes after every block, not every ten minutes.
        """
        changes: dict[str, str] = {}
        if self.profile.probe.sample_every_s is None:
            every_s = max(_LEAST_SAMPLE_S, self.block_s / _SAMPLES_PER_BLOCK)
            changes["probe.sample_every"] = f"{every_s:g}s"
        if self.profile.checkpoint.settle_s > _LONGEST_SETTLE_S:
            changes["checkpoint.settle"] = f"{_LONGEST_SETTLE_S:g}s"
        return self.profile.with_overrides(changes) if changes else self.profile


def digest_of(**settings: object) -> str:
    """Return a hash of a comparison's settings, for ``ComparisonManifest.settings``."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def of_one_run(thresholds: Iterable[str]) -> tuple[str, ...]:
    """Return those of ``thresholds`` that apply to a single run: all but ratios."""
    return tuple(t.text for t in parse_thresholds(thresholds) if t.stat is not Stat.RATIO)


def order_of(round_index: int, sides: int) -> tuple[int, ...]:
    """Return the order of the sides in a round: ABBA, so that a linear drift favours no version."""
    there = tuple(range(sides))
    return there if round_index % 2 == 0 else there[::-1]
