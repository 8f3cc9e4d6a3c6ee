"""Parse a metrics page in Prometheus format: counters, gauges, requests and pools."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from hybridbench.records.events import KV_SHARE
from hybridbench.sampling.scraped_names import pools_of, series_names

NAMES_MAX: Final = 500
_VALUES_MAX: Final = 16  # values of a label by which counters are split
# Running and waiting requests, by the names in vLLM (also LMDeploy, Aphrodite, TensorRT-LLM and Ray
# Serve), SGLang, llama.cpp, TGI and LightLLM.  Dynamo's frontend counts both as running.
_RUNNING: Final = re.compile(
    r"\w+[:_]num_requests_running|sglang:num_running_reqs|llamacpp:requests_processing|"
    r"(tgi|lightllm)_batch_current_size|dynamo_frontend_inflight_requests"
)
_WAITING: Final = re.compile(
    r"\w+[:_]num_requests_(waiting|swapped)|sglang:num_(\w+_)?queue_reqs|"
    r"llamacpp:requests_deferred|(tgi|lightllm)_queue_size"
)
# Shares of a pool: with several engines use the largest, not the sum.
_SHARE: Final = re.compile(r"(_perc|_percent|_ratio|_usage|_usage_rate|_utilization|_rate)$")
# Labels whose values are kinds of work.
_SPLIT: Final = frozenset(
    {"finished_reason", "finish_reason", "status", "status_code", "code", "reason"}
)
_VALUE: Final = re.compile(r"[A-Za-z0-9_.-]{1,40}")
# Timestamps, texts as numbers, and the client library's metrics about its own process.
_NO_METRIC: Final = re.compile(r"_(created|info|timestamp|timestamp_seconds)$|^(process|python)_")
# vLLM's page has its configuration in labels.
_CONFIGURED: Final = re.compile(r"(\w+):cache_config_info")
_USED: Final = re.compile(r"(\w+):(?:kv|gpu)_cache_usage_perc|(trtllm)_kv_cache_utilization")
# Characters that end a metric's name on a line of the page.
_BARE: Final = re.compile(r"[{ \t]")
_NAME: Final = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]{0,150}")
_PATHS: Final = frozenset({"handler", "path", "endpoint", "route"})
# Requests for these pages come from our own scraper, or from a supervisor.
_PAGES: Final = re.compile(r"/(metrics|health\w*|ping|readyz?|livez?)/?$")


class NoMetricsError(Exception):
    """The text is not a metrics page; the message says why, without quoting the page."""


@dataclass(frozen=True)
class Scrape:
    """One page, or why there is none.

    Attributes:
        counters: ``scraped.NAME``; these never fall: after a server restart they continue.
        gauges: ``gauge.NAME``.  In both, the bundled engine's metrics have their soak names.
        running, waiting: requests; None if no gauge of that meaning is known.
        pools: slots of the engine's pools, by pool and part, as far as known.
        by_name: number of series on the page by metric name; names that appear late are
            combined under "".
        failed: why there is no page now, or what was left out of it; one sentence.  If there are no
            counters either, the page says nothing about the target as a whole.
        asked_s: monotonic time of the request; the page is not older.
    """

    counters: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    running: float | None = None
    waiting: float | None = None
    pools: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    by_name: Mapping[str, int] = field(default_factory=dict)
    failed: str = ""
    asked_s: float = 0.0

    @property
    def series(self) -> int:
        """Number of series on the page."""
        return sum(self.by_name.values())


def read_page(text: str, *, open_metrics: bool = False) -> Scrape:
    """Parse the counters and gauges of one page.

    Raises:
        NoMetricsError: it is not a metrics page.
    """
    # Split at newlines only: label values may contain other line separators, such as U+2028.
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    named = Counter(_BARE.split(line, 1)[0] for line in lines if not line.startswith("#"))
    if open_metrics:
        families: Iterable[Metric] = open_metrics_families(text)  # type: ignore[no-untyped-call]
    else:
        # Most lines of a page are histogram buckets, which are not used here.
        kept = "\n".join(line for line in lines if "_bucket{" not in line)
        families = text_string_to_metric_families(f"{kept}\n")
    found = _Found()
    try:
        for family in families:
            for sample in family.samples:
                found.add(family.type, sample)
    except Exception as error:
        # On unexpected input the parser raises various exceptions.
        raise NoMetricsError("it is not in the format of Prometheus") from error
    if not named:
        raise NoMetricsError("it is empty")
    more = len(found.left_out)
    left_out = f"{more} more names on the metrics page were left out" if more else ""
    running, waiting = (_matching(found.gauges, known) for known in (_RUNNING, _WAITING))
    ours = series_names([*found.gauges, *found.counters])
    levels = {ours.get(name, name): value for name, value in found.gauges.items()}
    gauges = {ours.get(name, f"gauge.{name}"): value for name, value in found.gauges.items()}
    counters = {ours.get(name, f"scraped.{name}"): n for name, n in found.counters.items()}
    pools = pools_of(levels, found.in_use)
    return Scrape(counters, gauges, running, waiting, pools, _bounded(named), left_out)


class _Found:
    """Samples summed over their labels."""

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}
        self.gauges: dict[str, float] = {}
        self.left_out: set[str] = set()
        self._values: dict[str, set[str]] = {}
        # For vLLM and its derivatives: each engine's share of blocks in use, and number of blocks.
        self._shares: dict[tuple[str, str], float] = {}
        self._blocks: dict[tuple[str, str], float] = {}

    @property
    def in_use(self) -> dict[str, float]:
        """Blocks in use in all engines' KV caches, or if the page gives no number of blocks, the
        share of the fullest in millionths.
        """
        if self._blocks.keys() >= self._shares.keys():
            # Each engine never hands out one of its blocks.
            used = (round(of * (self._blocks[one] - 1)) for one, of in self._shares.items())
            return {"kv_blocks": float(sum(used))} if self._shares else {}
        return {KV_SHARE: round(1e6 * max(self._shares.values()))}

    def add(self, kind: str, sample: Sample) -> None:
        name, value = sample.name, sample.value
        configured = _CONFIGURED.fullmatch(name)
        if configured is not None:
            for gauge, size in _cache_sizes(sample).items():
                self._put(self.gauges, f"{configured[1]}:{gauge}", size)
                if gauge == "num_gpu_blocks":
                    self._blocks[configured[1], sample.labels.get("engine", "")] = size
        if not math.isfinite(value) or _NO_METRIC.search(name) or not _NAME.fullmatch(name):
            return
        if _counts(kind, name):
            if not any(_PAGES.search(sample.labels.get(label, "")) for label in _PATHS):
                self._put(self.counters, name, value)
                self._split(sample)
        elif kind in ("gauge", "unknown", "untyped"):
            if used := _USED.fullmatch(name):
                self._shares[used[1] or used[2], sample.labels.get("engine", "")] = value
            fullest = max(value, self.gauges.get(name, value))
            self._put(self.gauges, name, value, fullest if _SHARE.search(name) else None)

    def _split(self, sample: Sample) -> None:
        for label in sorted(_SPLIT & sample.labels.keys()):
            value = sample.labels[label]
            known = self._values.setdefault(sample.name, set())
            if _VALUE.fullmatch(value) and (value in known or len(known) < _VALUES_MAX):
                known.add(value)
                self._put(self.counters, f"{sample.name}.{value}", sample.value)

    def _put(
        self, into: dict[str, float], name: str, value: float, instead: float | None = None
    ) -> None:
        if name in into:
            into[name] = into[name] + value if instead is None else instead
        elif len(self.counters) + len(self.gauges) < NAMES_MAX:
            into[name] = value
        else:
            self.left_out.add(name)


def _bounded(named: Counter[str]) -> Mapping[str, int]:
    kept = {name: count for name, count in list(named.items())[:NAMES_MAX] if _NAME.fullmatch(name)}
    others = named.total() - sum(kept.values())
    return {**kept, "": others} if others else kept


def _cache_sizes(sample: Sample) -> dict[str, float]:
    """Return a KV cache's capacity in tokens and blocks, if the labels give it."""
    texts = sample.labels.items()
    known = {label: float(text) for label, text in texts if text.isdecimal() and int(text)}
    blocks, block_tokens = known.get("num_gpu_blocks"), known.get("block_size")
    if blocks is None or block_tokens is None:
        return {}
    # If layers of several kinds share the blocks, there is room for fewer tokens than this.
    tokens = known.get("kv_cache_size_tokens", blocks * block_tokens)
    return {"kv_cache_size_tokens": tokens, "num_gpu_blocks": blocks}


def _counts(kind: str, name: str) -> bool:
    """Whether a sample is a counter; of a histogram or summary, its count and sum are."""
    if kind in ("histogram", "summary"):
        return name.endswith(("_count", "_sum"))
    return kind == "counter" or (kind in ("unknown", "untyped") and name.endswith("_total"))


def _matching(gauges: Mapping[str, float], known: re.Pattern[str]) -> float | None:
    found = [value for name, value in gauges.items() if known.fullmatch(name)]
    return sum(found) if found else None
