"""Made-up ladders: readings in MiB, surveys with what a test wants to be found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridbench.analysis.record import RunEvent, RunRecord, Series
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import manifest_from_json

MIB = 2**20
_RUNGS = ("rest", "trim", "collect", "flush")
_FROM_S, _TO_S = 100.0, 1900.0


def readings(private_mib: Sequence[int]) -> list[JsonValue]:
    return [
        {"name": name, "private_bytes": mib * MIB}
        for name, mib in zip(_RUNGS, private_mib, strict=False)
    ]


def survey(
    garbage: int = 0,
    objects: int = 0,
    cycles: Sequence[JsonValue] = (),
    rows: Sequence[JsonValue] = (),
) -> dict[str, JsonValue]:
    return {
        "error": "",
        "garbage_bytes": garbage,
        "garbage_objects": objects,
        "garbage_types": [{"type_name": "engine.cache.TreeNode", "count": objects}],
        "components": objects // 2,
        "on_cycles": objects,
        "cycle_types": {"TreeNode": objects} if objects else {},
        "cycles": list(cycles),
        "retained": list(rows),
    }


def holding(
    type_name: str, count: int, size: int, chain: Sequence[str], entries: int = 0
) -> dict[str, JsonValue]:
    return {
        "type_name": type_name,
        "count": count,
        "size_bytes": size,
        "path": " > ".join([*(edge.partition(".")[0] for edge in chain), type_name]),
        "holder": chain[0],
        "entries": entries or count,
        "chain": list(chain),
        "chain_share": 1.0,
        "dragged": False,
        "item_type": "tuple" if count == 0 else "",
    }


def dragged(count: int, size: int) -> dict[str, JsonValue]:
    chain = ["Cache.root", "TreeNode.children", "TreeNode.mamba_next"]
    row = holding("TreeNode", count, size, chain)
    return {**row, "path": "Cache > TreeNode > ~TreeNode", "dragged": True}


def ladder_record(base: Sequence[int], end: Sequence[int], now: dict[str, JsonValue]) -> RunRecord:
    """A run of half an hour between its baseline and its end, with 17,270 evictions.

    ``base`` and ``end`` are private memory at rest and after trim, collect, flush; of ``base`` the
    first alone means that there was no rehearsal.
    """
    times = np.array([0.0, _FROM_S, _TO_S, _TO_S + 5])
    counts = np.array([0.0, 400.0, 17_670.0, 17_670.0])
    series = {
        "events.nodes_evicted": Series("events.nodes_evicted", times, counts),
        "instances.TreeNode.live": Series("instances.TreeNode.live", times, counts),
    }
    site: JsonValue = {
        "counter": "nodes_evicted",
        "calls": ["MambaRadixCache.evict_full", "MambaRadixCache.evict_mamba"],
        "removes": "TreeNode",
    }
    rehearsal = readings(base) if len(base) > 1 else []
    events = (
        RunEvent(
            _FROM_S,
            "diagnosis_baseline",
            {"rungs": readings(base[:1]), "rehearsal": rehearsal, "survey": survey()},
        ),
        RunEvent(_TO_S, "diagnosis", {"rungs": readings(end), "survey": now, "sites": [site]}),
    )
    return RunRecord(manifest_from_json({"run_id": "made-up"}), series, events)
