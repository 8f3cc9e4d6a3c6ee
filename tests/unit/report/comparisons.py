"""Judged comparisons for the report's tests."""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.comparison.compare import compare
from hybridbench.analysis.comparison.metrics import COMPARED
from hybridbench.analysis.comparison.records import (
    Block,
    Comparison,
    ComparisonTerms,
    ComparisonVerdict,
    Version,
)
from hybridbench.analysis.comparison.words import phrased_comparison
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.comparison import ComparisonManifest
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import manifest_from_json
from hybridbench.report.comparison import comparison_document
from hybridbench.report.document import Document
from tests.unit.analysis.comparisons import (
    GIB,
    MEMORY,
    THROUGHPUT,
    growth,
    leak,
    rounds,
    verdict,
)
from tests.unit.report.synthetic import manifest

MANIFEST = ComparisonManifest(
    comparison_id="20261122-100000-compare",
    command=("hybridbench", "compare", ".", "defect:x"),
)


def record(slope_gib: float = 0.0) -> RunRecord:
    """Return ten minutes of memory, a pool, and traffic."""
    t = np.linspace(0.0, 600.0, 301)
    columns = {
        MEMORY: 0.7 * GIB + slope_gib * GIB / 3600.0 * t,
        "gc_collectible_bytes": np.full(t.size, 2e5),
        "pool.mamba.available": np.full(t.size, 40.0),
        "ttft_ms_p50": np.full(t.size, 35.0),
        "events.finishes": 10.0 * t,
    }
    series = {name: Series(name, t, value) for name, value in columns.items()}
    return RunRecord(manifest_from_json(manifest(engine_hash="ab" * 32)), series, ())


def comparison(
    ratio: float = 1.0, *, leaks: bool = False, count: int = 12, several: bool = False
) -> Comparison:
    """Return an interleaved comparison of a working tree with a defect."""
    ratios = {metric.name: 1.0 for metric in COMPARED} | {THROUGHPUT: ratio}
    blocks = list(rounds(count, ratios, noise=0.004, seed=1))
    clean = verdict(metrics=[growth(0.0, 0.1, "CLEAN")])
    own = verdict(VerdictKind.LEAK, [leak()], [growth(3.7, 0.1, "LEAK")]) if leaks else clean
    slope = 3.7 if leaks else 0.0
    first = record()
    versions = [
        Version(".", "tree", first.manifest, first, clean),
        Version("defect:x", "defect", first.manifest, record(slope), own),
    ]
    if several:
        versions.append(Version("git:HEAD~1", "git", first.manifest, first, clean))
        blocks += [Block(2, b.round, 2, b.started_s, b.values) for b in blocks if b.version == 0]
    return Comparison(tuple(versions), tuple(blocks), True, (6, 12, 18, 24))


def judged(made: Comparison) -> ComparisonVerdict:
    return phrased_comparison(made, compare(made, ComparisonTerms()))


def document(made: Comparison) -> Document:
    return comparison_document(made, judged(made), MANIFEST)
