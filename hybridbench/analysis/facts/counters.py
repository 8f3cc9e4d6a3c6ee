"""Event counters: their values at any time, and the words for a single event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.record import SCRAPED, FloatArray, RunRecord, Series

_PREFIX = "events."
# The bundled engine's event counters on the metrics page of ``serve``.
_OURS_BEHIND_HTTP = "hybridbench_events_"

# Words for a single event.  Names that only lose a plural ending need no entry, nor do participles
# after a plural, such as ``nodes_evicted``.
_SINGULAR: Mapping[str, str] = {
    "finishes": "request",
    "finish_length": "request that reached its token limit",
    "finish_stop": "request that ended at a stop token",
    "request_success": "request",
    "requests_with": "request",
    "requests_of": "request",
    "evict_leaf": "evicted leaf",
    "evict_internal_state": "evicted internal state",
    "abort_queued": "abort while queued",
    "abort_prefill": "abort in prefill",
    "abort_decode": "abort in decode",
    "abort_no_room": "abort for lack of room",
    "session_abort_queued": "abort of a session's queued turn",
    "session_abort_prefill": "abort of a session's turn in prefill",
    "session_abort_decode": "abort of a session's turn in decode",
    "evict_cascade": "parent evicted with its last child",
    "cow_copies": "copy on write",
    "kv_blocks_stored": "stored KV block",
    "states_tracked": "saved state",
    "track_donations": "donated state",
    "retract_retries": "retry after a retract",
    "session_retries": "retry of a retracted turn",
    "session_tail_frees": "tail of a session",
    "prompt_tokens_cached": "cached prompt token",  # llama.cpp, vLLM
}


# Endings of plurals that lose "es" (misses, flushes, batches), and of words that are not plurals.
_WITH_ES = ("sses", "shes", "tches", "rches", "nches", "xes")
_WITHOUT_PLURAL = ("ss", "us", "series")
# Endings of histograms' names; their ``_count`` counts observations, such as engine steps.
_MEASURES = ("_seconds", "_bytes", "_tokens")

_CAPITALS: Mapping[str, str] = {"kv": "KV", "swa": "SWA"}

# A finding names the first of these among counters that moved together.
_TELLING = (
    "session_tail_frees",
    "finishes",
    "nodes_evicted",
    "requests_rejected",
    "disconnects",
    "refusals",
    "retracts",
    "abort_queued",
    "abort_prefill",
    "abort_decode",
    "requests_aborted",
    "node_splits",
    "requests_accepted",
    "requests_submitted",
    "admissions",
    "prefix_hits",
)


@dataclass(frozen=True)
class EventCounters:
    """All ``events.*`` series of a run and the counters of its target, by bare name, sorted.

    Each series only grows.  ``restarts_s`` has the time of the first sample after each worker
    restart.
    """

    series: Mapping[str, Series]
    restarts_s: FloatArray = field(default_factory=lambda: np.empty(0))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.series)

    @property
    def causes(self) -> list[str]:
        """The counters that may explain a growth.

        A call by itself changes nothing; what the engine's own checks found rises with every loss,
        and causes none.
        """
        return [
            name
            for name in self.series
            if not (name.endswith("_calls") or "invariant_violations" in name)
        ]

    def at(self, name: str, t_s: FloatArray) -> FloatArray:
        """Interpolate the counter at the times ``t_s``."""
        series = self.series[name]
        return np.interp(t_s, series.t_s, series.value)

    def total(self, name: str) -> float:
        """Return the counter's maximum, or 0 if it was never sampled."""
        series = self.series.get(name.removeprefix(_PREFIX))
        return float(np.nanmax(series.value)) if series is not None and len(series) else 0.0


def event_counters(record: RunRecord) -> EventCounters:
    """Return the event counters of ``record`` that have samples."""
    works = record.drivers.works
    prefixes = (_PREFIX, SCRAPED)
    counters = (n for n in record.series if n.startswith(prefixes) or n in works)
    names = sorted(n for n in counters if len(record.series[n]))
    fallen = [np.flatnonzero(np.diff(record.series[n].value) < 0) + 1 for n in names]
    restarts = [record.series[n].t_s[at] for n, at in zip(names, fallen, strict=True)]
    return EventCounters(
        {bare(n): _growing(record.series[n], at) for n, at in zip(names, fallen, strict=True)},
        np.unique(np.concatenate(restarts)) if restarts else np.empty(0),
    )


def bare(name: str) -> str:
    """Strip ``events.`` or ``scraped.`` from the name of a counter."""
    return name.removeprefix(_PREFIX).removeprefix(SCRAPED)


def _growing(series: Series, fallen: NDArray[np.int64]) -> Series:
    """Return the counter without the resets to 0 at worker restarts."""
    if not fallen.size:
        return series
    value = series.value.copy()
    for at in fallen.tolist():
        value[at:] += series.value[at - 1]
    return Series(series.name, series.t_s, value)


def expectation(name: str, expected: Sequence[str]) -> int | None:
    """Return the index of the first of ``expected`` that is a substring of ``name``, or None."""
    return next((rank for rank, part in enumerate(expected) if part in name), None)


def telling(name: str) -> int:
    """Return a counter's rank among those that moved together; the lowest rank is named."""
    known = name.removeprefix(_OURS_BEHIND_HTTP).removesuffix("_total")
    return _TELLING.index(known) if known in _TELLING else len(_TELLING)


def _words(name: str) -> str:
    return " ".join(_CAPITALS.get(word, word) for word in name.split("_"))


def singular(counter: str) -> str:
    """Return the words for one event of ``counter``: ``nodes_evicted`` is an evicted node.

    The exporter's prefix is dropped from a target's counters.
    """
    name, _, value = bare(counter).rpartition(":")[2].partition(".")
    if value:
        return f"{singular(name)} ({value})"  # ``value`` is that of a label of the counter
    name = name.removeprefix(_OURS_BEHIND_HTTP).removesuffix("_total")
    if name in _SINGULAR:
        return _SINGULAR[name]
    of, _, done = name.rpartition("_")
    if done.endswith("ed") and of.endswith("s") and not of.endswith(_WITHOUT_PLURAL):
        return f"{done} {singular(of)}"
    measured = name.removesuffix("_count").removesuffix("_total")
    if name.endswith("_count") and measured.endswith(_MEASURES):
        return f"observation of {_words(measured)}"
    words = _words(name)
    if words.endswith("ies") and not words.endswith("series"):
        return f"{words[:-3]}y"
    if words.endswith(_WITH_ES):
        return words[:-2]
    return words[:-1] if words.endswith("s") and not words.endswith(_WITHOUT_PLURAL) else words
