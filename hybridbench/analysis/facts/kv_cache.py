"""The KV cache of a watched server, and the time at which it was full.

Until then its pages are used for the first time, and the prefix tree over them grows by the same
amount for each request, so growth is not evidence of a leak.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from hybridbench.analysis.record import SCRAPED, RunRecord, Series
from hybridbench.foundation.labels import labels_of, unlabelled
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.events import ProcessStarted

# The cache is full once this multiple of its tokens has been computed: the last page of a request
# may be almost empty, and two concurrent requests may compute the same prefix.
_TIMES: Final = 2.0


@dataclass(frozen=True)
class _Names:
    """An engine's metric names for its cache, and the processes that hold the cache.

    Attributes:
        size: capacity in tokens.
        pages: number of pages.
        tokens: computed tokens.
        reused: tokens taken from the cache.
        holders: pattern of the roles of these processes.
    """

    size: str
    pages: str
    tokens: tuple[str, ...]
    reused: str
    holders: re.Pattern[str]


_ENGINES: Final = (
    _Names(
        "gauge.vllm:kv_cache_size_tokens",
        "gauge.vllm:num_gpu_blocks",
        ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
        "vllm:prefix_cache_hits_total",
        re.compile(r"VLLM::(EngineCore|Worker)"),
    ),
    _Names(
        "gauge.sglang:max_total_num_tokens",
        "gauge.sglang:num_pages",
        ("sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
        "sglang:cached_tokens_total",
        re.compile(r"sglang::scheduler"),
    ),
)


@dataclass(frozen=True)
class KvCache:
    """The cache that one process holds.

    Attributes:
        tokens: capacity; None if the server's metrics do not report it.
        most: maximum number of entries in a structure with an entry per page or tree node.
        computed: tokens added to the cache since the process started.
        full_s: when the cache was full; None if it is not full yet.
        full_in_s: seconds until it is full, at the pace of the second half; None if it is full, or
            if no tokens are being computed.
    """

    tokens: float | None
    most: float
    computed: float
    full_s: float | None
    full_in_s: float | None


def kv_caches(record: RunRecord) -> Mapping[str, KvCache]:
    """Return the caches by process, keyed by the labels at the end of the series names.

    Empty for a program whose roles and metrics show no such cache.
    """
    every = [name[len(MEMORY) :] for name in record.series if unlabelled(name) == MEMORY]
    for names in _ENGINES:
        held = [text for text in every if names.holders.match(labels_of(text).get("role", ""))]
        tokens, computed = _gauge(record, names.size), _computed(record, names)
        if tokens and computed is not None:
            # A tree has fewer inner nodes than leaves, and every leaf has at least one page.
            most = 2.0 * (_gauge(record, names.pages) or tokens)
            begun = {text: _begun_s(record, text) for text in held or every}  # all if no role fits
            return {
                text: _cache(tokens, most, computed, begun_s) for text, begun_s in begun.items()
            }
        if held:
            return dict.fromkeys(held, KvCache(None, math.inf, 0.0, None, None))
    return {}


def _gauge(record: RunRecord, name: str) -> float:
    """Return the highest reading; 0 if there is none."""
    series = record.series.get(name)
    return 0.0 if series is None or not len(series) else float(np.nanmax(series.value))


def _computed(record: RunRecord, names: _Names) -> Series | None:
    """Return the number of tokens computed, excluding those taken from the cache."""
    known = [record.series.get(f"{SCRAPED}{name}") for name in (*names.tokens, names.reused)]
    *counted, reused = (one if one is not None and len(one) else None for one in known)
    first = next((one for one in counted if one is not None), None)
    if first is None:
        return None
    total = np.zeros(len(first))
    for one, sign in [*((one, 1.0) for one in counted), (reused, -1.0)]:
        if one is not None:
            total += sign * np.interp(first.t_s, one.t_s, one.value)
    return Series("computed tokens", first.t_s, total)


def _begun_s(record: RunRecord, text: str) -> float:
    """Return when the last process with these labels started; -inf if it is the first one."""
    starts = [e.t_s for e in record.all_events(ProcessStarted) if e.process == text]
    return starts[-1] if len(starts) > 1 else -math.inf


def _cache(tokens: float, most: float, computed: Series, begun_s: float) -> KvCache:
    t_s = computed.t_s
    # The counters include the tokens that a server computed before it was watched.
    before = float(np.interp(begun_s, t_s, computed.value)) if begun_s > t_s[0] else 0.0
    own = np.where(t_s >= begun_s, computed.value - before, 0.0)
    left = _TIMES * tokens - own[-1]
    if left <= 0:
        return KvCache(tokens, most, float(own[-1]), float(t_s[own >= _TIMES * tokens][0]), None)
    middle_s = (max(begun_s, float(t_s[0])) + float(t_s[-1])) / 2.0
    gained = float(own[-1] - np.interp(middle_s, t_s, own))
    full_in_s = float(left * (t_s[-1] - middle_s) / gained) if gained > 0 else None
    return KvCache(tokens, most, float(own[-1]), None, full_in_s)
