"""Memory growth explained by a cache: one whose size the user gave, or one with a bound.

Until such a cache is full, its growth is neither a leak nor CLEAN, and the reason gives the time
left.  Growth beyond the cache's size is judged as usual.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec
import numpy as np

from hybridbench.analysis.drivers.growing import Growing, GrowthKind, Sort
from hybridbench.analysis.facts.kv_cache import kv_caches
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.trend.reasons import CacheIsFilling, KvCacheIsFilling, WithinBudget
from hybridbench.foundation.labels import labelled, unlabelled
from hybridbench.foundation.metrics import MEMORY, SHARED
from hybridbench.records.verdict import MetricResult, Reason

# Number of samples whose median is the level of memory at either end of the run.
_SAMPLES = 5
_FILLING = (GrowthKind.FILLS, GrowthKind.OPEN)
# Ten years: the longest time until a cache is full that is reported.
_LONGEST_S = 3650 * 86_400.0


@dataclass(frozen=True)
class Allowance:
    """The allowed growth of memory.

    Attributes:
        budget: for all processes together; None if nothing is left.
        filling: the bounded container that is filling in a process, by the process's labels.
        kv_caches: the KV cache that may be filling, by the process's labels.
    """

    budget: WithinBudget | None = None
    filling: Mapping[str, CacheIsFilling] = field(default_factory=dict)
    kv_caches: Mapping[str, KvCacheIsFilling] = field(default_factory=dict)

    def applied(
        self, results: Sequence[MetricResult], labels: Mapping[str, str]
    ) -> list[MetricResult]:
        """Return one process's results, with memory undecided while a cache may explain it."""
        return [self._applied(result, labels) for result in results]

    def covers(self, name: str) -> bool:
        """Whether a cache name given by the user equals ``name`` or a component of its path."""
        caches = () if self.budget is None else self.budget.caches
        return any(cache == name or cache in name.split(".") for cache in caches)

    def _applied(self, result: MetricResult, labels: Mapping[str, str]) -> MetricResult:
        rate = result.rate_per_hour
        of_memory = result.metric in (MEMORY, SHARED)
        if not of_memory or rate is None or rate.lower <= 0 or result.outcome == "CLEAN":
            return result
        if self.budget is not None:
            return _undecided(result, self.budget, self.budget.full_in_s)
        own = labelled("", labels)
        filling = self.kv_caches.get(own) or self.filling.get(own)
        if result.outcome == "LEAK" and filling is not None:
            return _undecided(result, filling, filling.full_in_s)
        return result


def allowance_of(
    record: RunRecord,
    start_s: float,
    results: Iterable[Sequence[MetricResult]],
    growing: Sequence[Growing],
) -> Allowance:
    """Return how much memory may grow after ``start_s``, and until when at ``results``' rates."""
    filling = {
        labelled("", one.heap.labels): CacheIsFilling(
            path=one.name,
            size=one.last,
            bound=one.most,
            unit=one.unit,
            full_in_s=one.full_in_s,
        )
        for one in growing
        if one.sort is Sort.ENTRIES and one.kind in _FILLING and one.most is not None
    }
    kv_caches_filling = {
        text: KvCacheIsFilling(
            tokens=cache.tokens, computed=cache.computed, full_in_s=cache.full_in_s
        )
        for text, cache in kv_caches(record).items()
        if cache.full_s is None
    }
    return Allowance(_budget_left(record, start_s, chain(*results)), filling, kv_caches_filling)


def _budget_left(
    record: RunRecord, start_s: float, results: Iterable[MetricResult]
) -> WithinBudget | None:
    budgets = record.manifest.options.cache_budgets
    grown = sum(max(0.0, rise) for rise in _rises(record, start_s))
    left = sum(budgets.values()) - grown
    memory = [one.rate_per_hour for one in results if unlabelled(one.metric) == MEMORY]
    per_s = sum(max(0.0, rate.value) for rate in memory if rate is not None) / 3600.0
    if left <= 0 or per_s <= 0:
        return None
    full_in_s = min(left / per_s, _LONGEST_S)
    began_s = record.manifest.started_wall_s
    return WithinBudget(
        caches=tuple(sorted(budgets)),
        budget=sum(budgets.values()),
        grown=grown,
        per_s=per_s,
        full_in_s=full_in_s,
        full_wall_s=None if began_s is None else began_s + record.last_moment_s + full_in_s,
    )


def _rises(record: RunRecord, start_s: float) -> Iterable[float]:
    """Yield each process's memory gain since ``start_s``."""
    for name, series in record.series.items():
        value = series.value[(series.t_s >= start_s) & np.isfinite(series.value)]
        if unlabelled(name) == MEMORY and value.size:
            yield float(np.median(value[-_SAMPLES:]) - np.median(value[:_SAMPLES]))


def _undecided(result: MetricResult, reason: Reason, more_s: float | None) -> MetricResult:
    judged_s = result.window_s[1] - result.window_s[0]
    needed_s = None if more_s is None else judged_s + more_s
    return msgspec.structs.replace(
        result, outcome="INCONCLUSIVE", why=reason.why(), needed_s=needed_s
    )
