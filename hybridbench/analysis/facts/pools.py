"""Pools of a record: their names, units and readings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.foundation.units import format_percent
from hybridbench.records.events import KV_SHARE, Checkpoint, EngineViolation

_WORDS: Mapping[str, str] = {
    "mamba": "state slots",
    "kv": "KV tokens",
    "kv_blocks": "KV blocks",
    KV_SHARE: "millionths of the KV cache",
    "swa": "KV tokens in sliding windows",
    "req": "request rows",
    "host_kv": "KV tokens on the host",
    "host_swa": "KV tokens in sliding windows on the host",
    "host_mamba": "state slots on the host",
    "tree": "tree nodes",
}
# The part of a pool that open sessions hold between their turns.
SESSION_HELD: Final = "session_held"
# How many of the last checkpoints a finding quotes.
CHECKPOINTS_NAMED: Final = 5


@dataclass(frozen=True)
class IdleReading:
    """A value read with nothing in flight, and the counters at that moment."""

    t_s: float
    value: float
    counts: Mapping[str, float]


def pool_words(pool: str) -> str:
    """Name the pool and its unit: ``mamba: state slots``."""
    return f"{pool}: {pool_unit(pool)}"


def pool_unit(pool: str) -> str:
    """Return the pool's unit, in the plural."""
    return _WORDS.get(pool, "slots")


def pool_count(count: float, pool: str) -> str:
    """Format an amount: ``1 state slot``, ``1,024 KV tokens``, ``4.00% of the KV cache``."""
    if pool == KV_SHARE:
        return f"{format_percent(1e-6 * count, 2)} of the KV cache"
    unit = pool_unit(pool)
    if count == 1:
        unit = re.sub(r"s\b", "", unit, count=1)
    return f"{count:,.0f} {unit}"


def pool_names(record: RunRecord) -> list[str]:
    """Return every pool that has a series or occurs in a checkpoint or an engine's check."""
    parts = (name.split(".") for name in record.series)
    names = {part[1] for part in parts if part[0] == "pool" and len(part) == 3}
    for checkpoint in record.all_events(Checkpoint):
        names.update(checkpoint.pools)
    names.update(violation.pool for violation in record.all_events(EngineViolation))
    return sorted(names - {""})


def pool_values(record: RunRecord, pool: str, field: str) -> tuple[FloatArray, FloatArray]:
    """Return times and finite values of one field of a pool; empty arrays if it was not sampled."""
    series = record.series.get(f"pool.{pool}.{field}")
    if series is None:
        return np.empty(0), np.empty(0)
    keep = np.isfinite(series.value)
    return series.t_s[keep], series.value[keep]


def idle_checkpoints(record: RunRecord) -> list[Checkpoint]:
    """Return the checkpoints with no request running or waiting: only these are exact."""
    return [at for at in record.all_events(Checkpoint) if at.running == 0 and at.waiting == 0]


def in_flight(record: RunRecord) -> list[Series]:
    """Return the series of requests in the engine, which move most levels."""
    return [record.series[name] for name in record.drivers.loads if name in record.series]


def all_readings(
    record: RunRecord, name: str, read: Callable[[Checkpoint], float | None]
) -> tuple[FloatArray, FloatArray]:
    """Return times and values of a count: the samples of ``name``, and ``read`` of checkpoints."""
    found: list[tuple[float, float]] = []
    series = record.series.get(name)
    if series is not None:
        keep = np.isfinite(series.value)
        found += zip(series.t_s[keep].tolist(), series.value[keep].tolist(), strict=True)
    seen = ((event.t_s, read(event)) for event in record.all_events(Checkpoint))
    found += [(t_s, value) for t_s, value in seen if value is not None]
    t, values = np.array(sorted(found)).reshape(-1, 2).T
    return t, values
