"""Hand-made comparisons: versions with chosen verdicts, rounds with planted ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hybridbench.analysis.comparison.records import Block, Comparison, Version
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.finding import Finding, Rate, VerdictKind
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import DecayResult, MetricResult, Verdict
from tests.unit.made_findings import a_finding

THROUGHPUT = "throughput_tokens_per_s"
MEMORY = "rss_anon_swap_bytes"
GIB = 2.0**30


def rounds(
    count: int,
    ratios: Mapping[str, float],
    *,
    noise: float = 0.0,
    seed: int = 0,
    second_turn: float = 0.0,
) -> tuple[Block, ...]:
    """Return ``count`` ABBA rounds of two versions.

    Each metric is around 100 (0.5 for the hit rate), times its ratio for the second version.  Both
    blocks of a round share a drift; ``second_turn`` is the share by which the later one gains.
    """
    rng = np.random.default_rng(seed)
    blocks = []
    for index in range(count):
        drift = 0.1 * rng.normal()
        for position in range(2):
            version = position if index % 2 == 0 else 1 - position
            values = {
                name: (0.5 if name == "hit_rate" else 100.0)
                * math.exp(drift + noise * rng.normal())
                * (ratio if version else 1.0)
                * (1.0 + second_turn * position)
                for name, ratio in ratios.items()
            }
            blocks.append(Block(version, index, position, 10.0 * index + 5.0 * position, values))
    return tuple(blocks)


def run_record(events: Mapping[str, float] | None = None, duration_s: float = 600.0) -> RunRecord:
    """Return a run whose ``events`` counters rise evenly."""
    t = np.linspace(0.0, duration_s, 61)
    totals = {"finishes": 6000.0, **(events or {})}
    series = {
        f"events.{name}": Series(f"events.{name}", t, np.linspace(0.0, total, t.size))
        for name, total in totals.items()
    }
    return RunRecord(Manifest(), series, ())


def verdict(
    kind: VerdictKind = VerdictKind.CLEAN,
    findings: Sequence[Finding] = (),
    metrics: Sequence[MetricResult] = (),
    decay: Sequence[DecayResult] = (),
) -> Verdict:
    """The verdict of a run."""
    return Verdict(kind, "made up", tuple(findings), tuple(metrics), None, "", decay=tuple(decay))


def version(
    name: str,
    own: Verdict | None = None,
    record: RunRecord | None = None,
    manifest: Manifest | None = None,
) -> Version:
    """Return one side of a comparison; clean by default."""
    kind = "defect" if name.startswith("defect:") else "tree"
    return Version(name, kind, manifest or Manifest(), record or run_record(), own or verdict())


def pair(
    blocks: Sequence[Block], base: Version | None = None, other: Version | None = None
) -> Comparison:
    """Return a comparison of two interleaved versions."""
    versions = (base or version("."), other or version("defect:made-up"))
    return Comparison(versions, tuple(blocks), True, (6, 12, 18, 24))


def growth(
    rate_gib: float, half_gib: float, outcome: str, metric: str = MEMORY, model: str = "trend"
) -> MetricResult:
    """The growth of ``metric`` in GiB an hour with its 95% interval."""
    value, half = GIB * rate_gib, GIB * half_gib
    rate = Rate(value, value - half, value + half, "B", "h")
    return MetricResult(metric, outcome, (0.0, 600.0), rate, None, 1e6, None, model)


def leak(metric: str = MEMORY) -> Finding:
    """Return the finding for a growth."""
    return a_finding("growth", VerdictKind.LEAK, metric, f"{metric} grows")


def strays(per_event: float, driver: str = "nodes_evicted", half: float = 0.01) -> Finding:
    """Return an exact finding: uncollected nodes, ``per_event`` for each event."""
    rate = Rate(per_event, per_event - half, per_event + half, "nodes", "evicted node")
    return a_finding(
        "instances-wait-for-collector",
        VerdictKind.LEAK,
        "TreeNode",
        "nodes wait for the collector",
        driver,
        (rate,),
    )
