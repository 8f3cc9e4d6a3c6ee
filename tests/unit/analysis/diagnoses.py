"""Made-up diagnosis records: memory readings in MiB, and surveys with planted findings."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import DiagnosisBaseline, DiagnosisStages
from hybridbench.records.heap import (
    Cycle,
    RetainedObjects,
    SiteRecord,
    StageReading,
    Survey,
    TypeCount,
)
from hybridbench.records.manifest import manifest_from_json

MIB = 2**20
_STAGES = ("rest", "trim", "collect", "flush")
_FROM_S, _TO_S = 100.0, 1900.0


def readings(private_mib: Sequence[int]) -> tuple[StageReading, ...]:
    return tuple(
        StageReading(name, mib * MIB) for name, mib in zip(_STAGES, private_mib, strict=False)
    )


def survey(
    garbage: int = 0,
    objects: int = 0,
    cycles: Sequence[Cycle] = (),
    rows: Sequence[RetainedObjects] = (),
) -> Survey:
    return Survey(
        garbage_bytes=garbage,
        garbage_objects=objects,
        garbage_types=[TypeCount("engine.cache.TreeNode", objects)],
        components=objects // 2,
        on_cycles=objects,
        cycle_types={"TreeNode": objects} if objects else {},
        cycles=list(cycles),
        retained=list(rows),
    )


def holding(
    type_name: str, count: int, size: int, chain: Sequence[str], entries: int = 0
) -> RetainedObjects:
    return RetainedObjects(
        type_name,
        count,
        size,
        path=" > ".join([*(edge.partition(".")[0] for edge in chain), type_name]),
        holder=chain[0],
        entries=entries or count,
        chain=tuple(chain),
        chain_share=1.0,
        item_type="tuple" if count == 0 else "",
    )


def dragged(count: int, size: int) -> RetainedObjects:
    chain = ["Cache.root", "TreeNode.children", "TreeNode.mamba_next"]
    row = holding("TreeNode", count, size, chain)
    return msgspec.structs.replace(row, path="Cache > TreeNode > ~TreeNode", dragged=True)


def ladder_record(base: Sequence[int], end: Sequence[int], now: Survey) -> RunRecord:
    """Return a run with half an hour between its baseline and its end, and 17,270 evictions.

    ``base`` and ``end`` are private memory when idle and after trim, collect and flush.  A ``base``
    of one value means that there was no rehearsal.
    """
    times = np.array([0.0, _FROM_S, _TO_S, _TO_S + 5])
    counts = np.array([0.0, 400.0, 17_670.0, 17_670.0])
    series = {
        "events.nodes_evicted": Series("events.nodes_evicted", times, counts),
        "instances.TreeNode.live": Series("instances.TreeNode.live", times, counts),
    }
    site = SiteRecord(
        "nodes_evicted", ["MambaRadixCache.evict_full", "MambaRadixCache.evict_mamba"], "TreeNode"
    )
    rehearsal = readings(base) if len(base) > 1 else ()
    events = (
        DiagnosisBaseline(
            stages=readings(base[:1]), rehearsal=rehearsal, survey=survey(), t_s=_FROM_S
        ),
        DiagnosisStages(stages=readings(end), survey=now, sites=(site,), t_s=_TO_S),
    )
    return RunRecord(manifest_from_json({"run_id": "made-up"}), series, events)
