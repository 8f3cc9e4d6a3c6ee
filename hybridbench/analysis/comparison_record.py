"""A comparison as the analysis sees it: its versions, their blocks, what each version's run says.

A *block* is a fixed piece of traffic that one version served from the first request to the last.
The blocks of one *round* carry the same requests from the same seed, so that they are pairs: their
quotient is free of what differs between rounds, the drift of the machine above all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hybridbench.analysis.findings import Verdict
from hybridbench.analysis.record import JsonValue, RunRecord


@dataclass(frozen=True)
class Block:
    """What one version did in its turn of a round.

    ``values`` are by name: quotients and quantiles of this block alone, units in the name or in
    ``metrics.py``.  A value that the block could not give (no second token, no hit) is absent.
    """

    version: int  # position in Comparison.versions
    round: int  # blocks of one round are pairs
    position: int  # turn within the round, from 0: ABBA swaps it from round to round
    started_s: float  # time of the comparison
    values: Mapping[str, float]


@dataclass(frozen=True)
class Version:
    """One side of a comparison.

    ``manifest`` is that of the version's run (engine hash, interpreter, malloc and gc mode,
    profile, pools, machine): what decides whether two sides can be compared at all.  ``record`` and
    ``verdict`` are of its own samples, in the version's own time: the turns of the others left out.
    """

    name: str  # as the user gave it: ".", "git:v1.2", "defect:lru-reference-cycle", a run directory
    kind: str  # "tree", "git", "python", "defect", "run"
    manifest: Mapping[str, JsonValue]
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
