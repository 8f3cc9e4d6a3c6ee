"""The cost of work from cumulative counters: milliseconds per call, step or token; hit rate.

Unlike throughput, a rate per unit of work does not move with the load, so it can be judged for
decay.  The parts of a step are measured in CPU time, which does not grow when a busy neighbour
takes the CPU; the whole step is measured in wall time, as users see it.  Legitimate influences
(batch size, prompt length, victims per eviction) are listed for each metric, and the judgement
removes their effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.foundation.metrics import COLLECTIONS, Unit, declared

_MS = 1000.0
_MOST_BLOCKS = 48
_SAMPLES_PER_BLOCK = 3
# The logarithm of a smaller count is biased downwards, by an amount that depends on the load.
_EVENTS_PER_BLOCK = 10.0


@dataclass(frozen=True)
class DerivedMetric:
    """One cost or rate: a sum of counters divided by another.

    Args:
        name: the declared metric, which is the subject of its findings.
        over, under: counters of the numerator and the denominator, with their signs.
        loads: ratios of counters that legitimately influence it.
        least_change: the smallest worsening over the window worth a finding, as a share.
        least_count: events in the denominator that a block must have.
        events: counter of the numerator's events; blocks are merged until each has
            ``_EVENTS_PER_BLOCK`` on average.  Empty for a time, to which every event in the
            denominator contributes.
        least_value: a value below this over the whole window does not matter.
        from_traffic: judged from the end of the warm-up requests, not from ``steady``, because the
            costs of a full pool begin before the engine is steady.
        judged: whether it can fail a run; if not, it is only shown.
    """

    name: str
    over: Mapping[str, float]
    under: Mapping[str, float]
    loads: tuple[Load, ...] = ()
    least_change: float = 0.5
    least_count: float = 3.0
    events: str = ""
    least_value: float = 0.0
    from_traffic: bool = False
    judged: bool = True

    @property
    def label(self) -> str:
        """Its name in sentences."""
        return declared(self.name).meaning

    @property
    def unit(self) -> str:
        return declared(self.name).unit.value

    @property
    def timed(self) -> bool:
        """Whether it is a time, which a slower machine lengthens."""
        return declared(self.name).unit is Unit.MILLISECONDS

    @property
    def higher_is_worse(self) -> bool:
        return declared(self.name).higher_is_worse

    @property
    def factor(self) -> float:
        """Conversion factor from the counters' seconds to the unit."""
        return _MS if self.timed else 1.0


@dataclass(frozen=True)
class Load:
    """A legitimate influence: one sum of counters per another."""

    over: tuple[str, ...]
    under: tuple[str, ...]


_HIT, _COMPUTED = "events.prefix_hit_tokens", "events.prompt_tokens"
_OUTPUT, _STEPS = "events.output_tokens", "events.steps"
_TOKENS = {_COMPUTED: 1.0, _OUTPUT: 1.0}
_TOKENS_PER_STEP = Load((_COMPUTED, _OUTPUT), (_STEPS,))
_SEQUENCES_PER_STEP = Load((_OUTPUT,), (_STEPS,))
_PREFILLS_PER_STEP = Load(("events.prefill_steps",), (_STEPS,))
_ADMISSIONS_PER_STEP = Load(("events.admissions",), (_STEPS,))
_PROMPT_LENGTH = Load((_HIT, _COMPUTED), ("events.admissions",))
_BATCH = (_TOKENS_PER_STEP, _SEQUENCES_PER_STEP, _PREFILLS_PER_STEP, _PROMPT_LENGTH)
_VICTIMS = Load(("events.nodes_evicted", "events.evict_internal_state"), ("events.evict_calls",))
# Waits for a CPU lengthen a step and a collection differently.
_CROWD = Load(("worker_cpu_wait_s",), ("worker_cpu_s",))
_INSERTS = {"events.admissions": 1.0, "events.finishes": 1.0, "events.prefill_chunks": 1.0}

# Thresholds are shares of the initial level.  The parts of a step are small, rise slightly as a
# tree outgrows the CPU caches, and suffer differently from a busy neighbour: only an increase by
# half counts.  A whole step relative to the model's part of it is steadier, and is what users wait
# for.
DERIVED_METRICS: tuple[DerivedMetric, ...] = (
    DerivedMetric("evict_ms", {"evict_s": 1.0}, {"events.evict_calls": 1.0}, (_VICTIMS,)),
    DerivedMetric(
        "evict_ms_per_node",
        {"evict_s": 1.0},
        {"events.nodes_evicted": 1.0, "events.evict_internal_state": 1.0},
        judged=False,
    ),
    DerivedMetric("match_ms", {"match_s": 1.0}, {"events.match_calls": 1.0}, (_PROMPT_LENGTH,)),
    DerivedMetric("insert_ms", {"insert_s": 1.0}, _INSERTS, (_PROMPT_LENGTH,)),
    DerivedMetric(
        "schedule_ms",
        {"schedule_s": 1.0, "match_s": -1.0, "insert_s": -1.0, "evict_s": -1.0},
        {_STEPS: 1.0, "events.idle_steps": -1.0},
        (_SEQUENCES_PER_STEP, _ADMISSIONS_PER_STEP),
    ),
    DerivedMetric("forward_cpu_ms", {"forward_cpu_s": 1.0}, _TOKENS, _BATCH),
    DerivedMetric("forward_ms", {"forward_s": 1.0}, _TOKENS, _BATCH, judged=False),
    DerivedMetric("check_ms", {"check_s": 1.0}, {_STEPS: 1.0}, judged=False),
    DerivedMetric(
        "token_ms", {"step_s": 1.0}, _TOKENS, _BATCH, least_change=0.15, from_traffic=True
    ),
    DerivedMetric(
        "gc_full_ms", {"gc_pause_s": 1.0}, {COLLECTIONS: 1.0}, least_count=1.0, judged=False
    ),
    DerivedMetric(
        "gc_share",
        {"gc_pause_s": 1.0},
        {"step_s": 1.0},
        (_CROWD,),
        least_change=1.0,
        least_count=0.01,
        least_value=0.02,
    ),
    DerivedMetric(
        "hit_rate",
        {_HIT: 1.0},
        {_HIT: 1.0, _COMPUTED: 1.0},
        least_change=0.1,
        least_count=100.0,
        events="events.prefix_hits",
    ),
)


@dataclass(frozen=True)
class WorkBlocks:
    """A derived quantity in blocks of equal time; blocks with too few events are left out."""

    t_s: FloatArray  # middle of each block
    index: FloatArray  # number of the block, from the start; a jump is a gap
    over: FloatArray
    under: FloatArray
    loads: FloatArray  # [blocks, loads], logarithms less their means

    def __len__(self) -> int:
        return int(self.t_s.size)

    @property
    def value(self) -> FloatArray:
        return self.over / self.under

    @property
    def total(self) -> float:
        """The ratio over the whole stretch."""
        return float(self.over.sum() / self.under.sum())


def work_blocks(
    record: RunRecord, derived: DerivedMetric, start_s: float, end_s: float
) -> WorkBlocks | None:
    """Return ``derived`` between two times; None if its counters were not sampled."""
    clock = record.series.get([*derived.over, *derived.under][-1])
    edges = np.zeros(0) if clock is None else _edges(clock.t_s, start_s, end_s)
    events = None
    if edges.size > 1 and derived.events:
        events = summed(record, {derived.events: 1.0}, edges)
    if events is not None:
        edges = edges[:: _blocks_joined(events)]
        events = summed(record, {derived.events: 1.0}, edges)
    if edges.size < 2:
        return None
    over, under = summed(record, derived.over, edges), summed(record, derived.under, edges)
    if over is None or under is None:
        return None
    over = derived.factor * over
    if events is not None and events.sum() > 0:
        # A block without a hit shows that hits are rare.  Leaving it out would raise the rate of
        # its stretch.
        over = np.maximum(over, 0.5 * over.sum() / events.sum())
    loads = [_load(record, load, edges) for load in derived.loads]
    known = [load for load in loads if load is not None]
    table = np.column_stack(known) if known else np.zeros((under.size, 0))
    keep = (under >= derived.least_count) & (over > 0) & np.isfinite(table).all(axis=1)
    centred = table[keep] - table[keep].mean(axis=0) if keep.any() else table[keep]
    middle = 0.5 * (edges[:-1] + edges[1:])
    index = np.arange(under.size, dtype=np.float64)
    return WorkBlocks(middle[keep], index[keep], over[keep], under[keep], centred)


def _blocks_joined(events: FloatArray) -> int:
    """Return how many blocks to merge so that each has enough events on average."""
    if events.sum() <= 0:
        return 1
    return max(1, int(np.ceil(_EVENTS_PER_BLOCK * events.size / events.sum())))


def _edges(t_s: FloatArray, start_s: float, end_s: float) -> FloatArray:
    inside = t_s[(t_s >= start_s) & (t_s <= end_s)]
    blocks = min(_MOST_BLOCKS, inside.size // _SAMPLES_PER_BLOCK)
    if blocks < 1:
        return np.zeros(0)
    edges: FloatArray = np.linspace(float(inside[0]), float(inside[-1]), blocks + 1)
    return edges


def summed(record: RunRecord, terms: Mapping[str, float], edges: FloatArray) -> FloatArray | None:
    """Return the signed sum of the counters' rises between ``edges``; None if one is unsampled."""
    total = np.zeros(edges.size - 1)
    for name, sign in terms.items():
        series = record.series.get(name)
        if series is None or len(series) < 2:
            return None
        total += sign * np.diff(np.interp(edges, series.t_s, series.value))
    return total


def _load(record: RunRecord, load: Load, edges: FloatArray) -> FloatArray | None:
    """Logarithm of the load in each block; None if unsampled or absent from most blocks."""
    over = summed(record, dict.fromkeys(load.over, 1.0), edges)
    under = summed(record, dict.fromkeys(load.under, 1.0), edges)
    if over is None or under is None:
        return None
    some = (over > 0) & (under > 0)
    if some.sum() < over.size // 2:
        return None
    logs = np.full(over.size, np.nan)
    logs[some] = np.log(over[some] / under[some])
    return logs
