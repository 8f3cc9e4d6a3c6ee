"""Chart each pool as a stack of its slots by holder, with unaccounted slots at the bottom."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.report.document import Chart, Ink, Legend, Line

# Bottom to top: parts that must be zero are at the bottom, where a loss lifts everything above.
_PARTS: Final = (
    ("residual", "unaccounted", 1),
    ("waiting_held", "held by waiting requests", 3),
    ("session_held", "held by idle sessions", 4),
    ("in_flight", "held by admitted requests", 0),
    ("protected", "in the tree, locked", 5),
    ("evictable", "in the tree, evictable", 2),
    ("available", "free", 7),
)
_MUST_BE_ZERO: Final = ("residual", "waiting_held")

POOL_NAMES: Final = {
    "kv": "KV tokens",
    "swa": "KV tokens in sliding windows",
    "mamba": "Recurrent state slots",
    "req": "Request rows",
    "host_kv": "KV tokens on the host",
    "host_swa": "KV tokens in sliding windows on the host",
    "host_mamba": "Recurrent state slots on the host",
}


def pool_charts(record: RunRecord) -> tuple[Chart, ...]:
    """Return two charts per pool: the holders, and the slots that must be zero while idle."""
    pools = {
        match[1] for name in record.series if (match := re.fullmatch(r"pool\.(\w+)\.\w+", name))
    }
    # Known pools come in their usual order, others after them.
    known = [pool for pool in POOL_NAMES if pool in pools]
    charts = []
    for pool in [*known, *sorted(pools - set(known))]:
        charts += [*_ledger(record, pool), *_losses(record, pool)]
    return tuple(charts)


def _ledger(record: RunRecord, pool: str) -> tuple[Chart, ...]:
    """Stack the parts; those sampled at other times are interpolated onto common times."""
    parts = _series_of(record, pool)
    if len(parts) < 2:
        return ()
    # The part with the most samples provides the times.
    t_s = max((series.t_s for _, _, _, series in parts), key=lambda times: times.size)
    lines = [Line(label, t_s, _on(t_s, series), colour=c) for _, label, c, series in parts]
    total = record.series.get(f"pool.{pool}.total")
    if total is not None and len(total):
        lines.append(Line("size", t_s, _on(t_s, total), Ink.LIMIT))
    title = f"{POOL_NAMES.get(pool, pool)} by holder"
    return (Chart(f"pool-{pool}", title, "slots", tuple(lines), stacked=True, legend=Legend.MEAN),)


def _losses(record: RunRecord, pool: str) -> tuple[Chart, ...]:
    lines = tuple(
        Line(label, series.t_s, series.value, colour=colour)
        for part, label, colour, series in _series_of(record, pool)
        if part in _MUST_BE_ZERO
    )
    if not lines:
        return ()
    title = f"{POOL_NAMES.get(pool, pool)}, unaccounted or held by waiting requests"
    note = "Zero at every idle checkpoint of a healthy engine."
    return (Chart(f"pool-{pool}-losses", title, "slots", lines, note=note, min_span=4.0),)


def _series_of(record: RunRecord, pool: str) -> list[tuple[str, str, int, Series]]:
    found = (
        (part, label, c, record.series.get(f"pool.{pool}.{part}")) for part, label, c in _PARTS
    )
    return [(part, label, c, series) for part, label, c, series in found if series]


def _on(t_s: FloatArray, series: Series) -> FloatArray:
    if series.t_s.size == t_s.size and bool(np.all(series.t_s == t_s)):
        return series.value
    return np.interp(t_s, series.t_s, series.value)
