"""Compare stored runs, with windows of each run's steady phase as blocks.

The windows of the two runs are not paired: changes of the machine between the runs are part of the
difference, but no window shows them.  A fixed spread allows for them, so two stored runs are never
called the same within a few percent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hybridbench.analysis.comparison.metrics import (
    CPU_PER_REQUEST,
    CPU_PER_TOKEN,
    MEMORY_AT_REST,
    PEAK_MEMORY,
    REQUESTS,
    STEP_PER_TOKEN,
    THROUGHPUT,
)
from hybridbench.analysis.comparison.pairs import PairedMean, widening
from hybridbench.analysis.comparison.reasons import LoadUnknown, NotAlone
from hybridbench.analysis.comparison.records import Block
from hybridbench.analysis.facts.window import Window, judged_window
from hybridbench.analysis.findings.validity import share_of_time
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.analysis.trend.work_cost import summed
from hybridbench.foundation.labels import unlabelled
from hybridbench.records.manifest import OBSERVED
from hybridbench.records.verdict import Why

MOST_WINDOWS = 24
# Standard deviation, on the log scale, of a shared machine's speed from one run to the next
# (comparison-statistics.md gives the source).
BETWEEN_RUNS = 0.03

# A run that shared its processors for more than this part of its time cannot be compared for speed,
# because the cost of sharing cannot be subtracted.
_WAITED = 0.05

# CPU waits of our worker, and the CPU time of other programs beside a watched target, which has too
# many threads to read their waits.
_OF_OTHERS = ("worker_cpu_wait_s", "host_steal_s", "others_cpu_s")

# Idle points of a server take many seconds, so some windows have hardly any traffic.
_LEAST_ACTIVE = 0.5

_SAMPLES_PER_WINDOW = 3
_MS = 1000.0
_TOKENS = ("events.prompt_tokens", "events.output_tokens")
_HITS = "events.prefix_hit_tokens"
# Statistics of the interval since the last sample, of which a window takes the median.
_MEDIANS = ("ttft_ms_p50", "ttft_ms_p99", "itl_ms_p50", "itl_ms_p99")


def stored_blocks(record: RunRecord, version: int) -> tuple[Block, ...]:
    """Return a run's steady phase in at most 24 windows of equal length, as blocks of ``version``.

    Checkpoint pauses are excluded from a window's time.  Empty if the steady phase was too short
    for two windows.
    """
    window = judged_window(record)
    clock = record.series.get("events.output_tokens") or record.series.get(record.drivers.requests)
    if window is None or clock is None:
        return ()
    t, _ = window.samples(clock)
    count = min(MOST_WINDOWS, t.size // _SAMPLES_PER_WINDOW)
    if count < 2:
        return ()
    edges = np.linspace(float(t[0]), float(t[-1]), count + 1)
    columns = _columns(record, window, edges)
    return tuple(
        Block(version, i, 0, float(edges[i]), _finite({n: c[i] for n, c in columns.items()}))
        for i in range(count)
    )


def not_alone(records: Sequence[RunRecord]) -> Why | None:
    """Return why the speeds of these runs cannot be compared; None if each had the machine alone.

    Other programs used the CPUs, or nothing recorded whether they did.
    """
    shares: list[float] = []
    most = 0.0
    for record in records:
        window = judged_window(record)
        series = [record.series.get(name) for name in _OF_OTHERS]
        if record.manifest.target.kind == OBSERVED and series[-1] is None:
            return LoadUnknown().why()
        share = 0.0 if window is None else sum(share_of_time(s, window) for s in series)
        shares.append(share)
        most = max(most, share)
    return NotAlone(shares=tuple(shares)).why() if most > _WAITED else None


def unpaired_mean(base: FloatArray, other: FloatArray, *, between: float) -> PairedMean | None:
    """Return the mean log ratio of two runs' windows, widened for each run's autocorrelation.

    ``between`` is the spread between runs, which is added once for each side.
    """
    if base.size < 2 or other.size < 2:
        return None
    parts = []
    for logs in (base, other):
        left = logs - logs.mean()
        error = math.sqrt(float(left @ left) / (logs.size - 1) / logs.size) * widening(left)
        parts.append((error**2, logs.size - 1))
    own = sum(variance for variance, _ in parts)
    # Welch and Satterthwaite for the measured part; the allowance is fixed, not estimated.
    spent = sum(variance**2 / df for variance, df in parts)
    df = own**2 / spent if spent > 0 else float(sum(df for _, df in parts))
    mean = float(other.mean() - base.mean())
    sd = math.sqrt(own * min(base.size, other.size))
    # Of Hodges and Lehmann: the median difference of all pairs of windows.
    shift = float(np.median(other[:, None] - base[None, :]))
    return PairedMean(mean, math.sqrt(own + 2.0 * between**2), max(1, int(df)), sd, shift)


def _columns(record: RunRecord, window: Window, edges: FloatArray) -> dict[str, FloatArray]:
    active = _active_s(window, edges)
    busy = np.isfinite(active)

    def rose(*names: str) -> FloatArray | None:
        return summed(record, dict.fromkeys(names, 1.0), edges)

    # All tokens served, cached or not: a lost hit costs time but does not add tokens.
    tokens = rose(*_TOKENS, _HITS)
    out: dict[str, FloatArray] = {}
    with np.errstate(divide="ignore", invalid="ignore"):
        if tokens is not None:
            out[THROUGHPUT] = tokens / active
            for name, counter in ((STEP_PER_TOKEN, "step_s"), (CPU_PER_TOKEN, "worker_cpu_s")):
                spent = rose(counter)
                if spent is not None:
                    out[name] = _MS * spent / np.where(busy, tokens, np.nan)
        finished = rose(record.drivers.requests)
        if finished is not None:
            out[REQUESTS] = finished / active
            if tokens is None and (spent := _cpu_of_all(record, edges)) is not None:
                out[CPU_PER_REQUEST] = _MS * spent / np.where(busy, finished, np.nan)
        hits, computed = rose(_HITS), rose(_TOKENS[0])
        if hits is not None and computed is not None:
            out["hit_rate"] = hits / (hits + computed)
    for name in _MEDIANS:
        out.update(_per_window(record, window, edges, (name, name), np.median))
    rest = (MEMORY_AT_REST, MEMORY_AT_REST)
    out.update(_per_window(record, window, edges, rest, np.median))
    out.update(_per_window(record, window, edges, ("rss_bytes", PEAK_MEMORY), np.max))
    return out


def _cpu_of_all(record: RunRecord, edges: FloatArray) -> FloatArray | None:
    """CPU time of all processes in each window, counted across restarts of a process."""
    spent = [
        np.interp(
            edges, one.t_s, np.concatenate([[0.0], np.maximum(np.diff(one.value), 0.0).cumsum()])
        )
        for name, one in record.series.items()
        if unlabelled(name) == "worker_cpu_s" and len(one) > 1
    ]
    return np.diff(np.sum(spent, axis=0)) if spent else None


def _active_s(window: Window, edges: FloatArray) -> FloatArray:
    """The length of each window less its pauses; NaN if pauses take more than half of it."""
    active = np.diff(edges)
    for start, end in window.pauses:
        overlap = np.minimum(edges[1:], end) - np.maximum(edges[:-1], start)
        active -= np.maximum(overlap, 0.0)
    return np.where(active >= _LEAST_ACTIVE * np.diff(edges), active, np.nan)


def _per_window(
    record: RunRecord,
    window: Window,
    edges: FloatArray,
    names: tuple[str, str],
    statistic: Callable[[FloatArray], float],
) -> dict[str, FloatArray]:
    """``statistic`` of a series' samples in each window; NaN for a window without samples."""
    source, name = names
    series = record.series.get(source)
    if series is None or not len(series):
        return {}
    # Idle memory is measured during the pauses of traffic.
    at_rest = source == MEMORY_AT_REST
    inside = series.between(window.start_s, window.end_s)
    t, value = (inside.t_s, inside.value) if at_rest else window.samples(series)
    out = np.full(edges.size - 1, np.nan)
    which = np.clip(np.searchsorted(edges, t, side="right") - 1, 0, out.size - 1)
    for i in range(out.size):
        inside_window = value[which == i]
        if inside_window.size:
            out[i] = statistic(inside_window)
    return {name: out}


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}
