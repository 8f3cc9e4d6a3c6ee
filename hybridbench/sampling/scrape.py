"""Read a server's metrics page, in Prometheus format: counters of work, and gauges.

This happens in a separate thread, so that a hung server blocks only that thread.  A page costs this
process a bounded amount: reading is limited in size and time, and only the first few hundred names
are kept.
"""

from __future__ import annotations

import http.client
import math
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from hybridbench.foundation.errors import UsageError
from hybridbench.foundation.foreign import MIB, is_http_address
from hybridbench.foundation.safe_output import visible
from hybridbench.records.events import KV_SHARE
from hybridbench.sampling.scraped_names import pools_of, series_names

PAGE_BYTES_MAX: Final = 8 * MIB
_NAMES_MAX: Final = 500
_VALUES_MAX: Final = 16  # values of a label by which counters are split
_REDIRECTS_MAX: Final = 3
_PATIENCE_S: Final = 5.0
_ACCEPT: Final = "text/plain; version=0.0.4"

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
# How often a counter must fall and return in one step: after a restart it does so once at most.
_RETURNS: Final = 5
_IN_TURN: Final = "several processes answer {address} in turn, each with counts of its own."
# Characters that end a metric's name on a line of the page.
_BARE: Final = re.compile(r"[{ \t]")
_NAME: Final = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]{0,150}")
_PATHS: Final = frozenset({"handler", "path", "endpoint", "route"})
# Requests for these pages come from this thread, or from a supervisor.
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


class Scraper:
    """Reads ``url`` every ``every_s`` seconds until ``close``.

    Raises:
        UsageError: ``url`` is not an HTTP address.
    """

    def __init__(self, url: str, every_s: float, patience_s: float = _PATIENCE_S) -> None:
        self._page = _Page(_parts(url), patience_s)
        self._every_s = every_s
        self._patience_s = patience_s
        self._counters = RisingCounters()
        self._latest: Scrape | None = None
        self._asked_s: float | None = None
        self._silent_since_s: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scraper", daemon=True)
        self._thread.start()

    def latest(self) -> Scrape | None:
        """Return the last answer; None before the first.

        After a failure it has no gauges, and the counters keep their values.
        """
        asked_s = self._asked_s
        if asked_s is not None and time.monotonic() - asked_s > 2 * self._patience_s:
            return self._failure(f"no answer for {2 * self._patience_s:.0f} s")
        return self._latest

    def silent_for_s(self) -> float:
        """Return for how many seconds requests have timed out; 0 if no page was ever read."""
        since_s = self._silent_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def scrape(self) -> Scrape:
        """Request the page now, and wait for the answer."""
        asked_s = time.monotonic()
        try:
            text, kind = self._page.read()
            found = read_page(text, open_metrics="openmetrics" in kind)
        except (OSError, http.client.HTTPException, NoMetricsError) as error:
            if not isinstance(error, TimeoutError):
                self._silent_since_s = None
            elif self._silent_since_s is None and self._counters.totals:
                self._silent_since_s = asked_s
            return self._failure(_reason(error))
        self._silent_since_s = None
        counters = self._counters.after(found.counters)
        if self._counters.taken_in_turn:
            return Scrape(failed=_IN_TURN.format(address=self._page.address), asked_s=asked_s)
        return replace(found, counters=counters, asked_s=asked_s)

    def close(self) -> None:
        """Stop reading, and cancel a pending request."""
        self._ended.set()
        self._page.give_up()
        self._thread.join(self._patience_s)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._asked_s = begun_s = time.monotonic()
            self._latest = self.scrape()
            self._asked_s = None
            self._ended.wait(max(0.0, self._every_s - (time.monotonic() - begun_s)))

    def _failure(self, reason: str) -> Scrape:
        return Scrape(
            self._counters.totals, failed=f"{self._page.address} gave no metrics: {reason}."
        )


class RisingCounters:
    """Totals of counters that restart at 0 with their server.

    A fall adds nothing, so neither a restart nor a vanished set of labels makes the total jump.  At
    most, the total lacks what a new server counted before its first reading.
    """

    def __init__(self) -> None:
        self.totals: Mapping[str, float] = {}
        self._last: dict[str, float] = {}
        # By name: the values before and after a fall, and how often a step made up for one.
        self._fallen: dict[str, tuple[float, float]] = {}
        self._returns: Counter[str] = Counter()

    @property
    def taken_in_turn(self) -> bool:
        """Whether several processes answer in turn, each with counts of its own.

        Then a counter falls, and returns to its earlier value in one step, again and again.
        """
        return max(self._returns.values(), default=0) >= _RETURNS

    def _watch_fall(self, name: str, last: float, value: float) -> None:
        before, low = self._fallen.get(name, (last, last))
        if value < last:
            self._fallen[name] = max(before, last), min(low, value)
        elif value >= before and self._fallen.pop(name, None) is not None:
            # A counter that restarted climbs back in many small steps.
            self._returns[name] += before - last > (before - low) / 2.0

    def after(self, now: Mapping[str, float]) -> Mapping[str, float]:
        """Return the totals after the readings ``now``; an absent counter does not change."""
        totals = dict(self.totals)
        for name, value in now.items():
            if name in totals:
                self._watch_fall(name, self._last[name], value)
                totals[name] += max(0.0, value - self._last[name])
            elif len(totals) < _NAMES_MAX:
                totals[name] = value
            else:
                continue
            self._last[name] = value
        self.totals = totals
        return totals


def _bounded(named: Counter[str]) -> Mapping[str, int]:
    kept = {
        name: count for name, count in list(named.items())[:_NAMES_MAX] if _NAME.fullmatch(name)
    }
    others = named.total() - sum(kept.values())
    return {**kept, "": others} if others else kept


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
        elif len(self.counters) + len(self.gauges) < _NAMES_MAX:
            into[name] = value
        else:
            self.left_out.add(name)


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


class _Page:
    """Reads one address within limits of time and size, and never through a proxy."""

    def __init__(self, parts: SplitResult, patience_s: float) -> None:
        self._parts = parts
        self._patience_s = patience_s
        self._socket: socket.socket | None = None
        self._given_up = False
        self._one_at_a_time = threading.Lock()

    @property
    def address(self) -> str:
        """The address without user name and password."""
        host = self._parts.netloc.rpartition("@")[2]
        return visible(f"{self._parts.scheme}://{host}{self._parts.path}")

    def read(self) -> tuple[str, str]:
        """Return the text and its content type.

        Raises:
            OSError, http.client.HTTPException, NoMetricsError: there is no such page.
        """
        with self._one_at_a_time:
            self._given_up = False
            # A socket's timeout restarts with every byte; this one does not.
            alarm = threading.Timer(self._patience_s, self.give_up)
            alarm.daemon = True
            alarm.start()
            try:
                found = self._follow()
            except (OSError, http.client.HTTPException, ValueError) as error:
                if self._given_up or isinstance(error, TimeoutError):
                    raise self._too_late() from error
                if isinstance(error, ValueError):
                    raise NoMetricsError("its answer is not HTTP") from error
                raise
            finally:
                alarm.cancel()
            if self._given_up:  # a truncated answer may look like a whole one
                raise self._too_late()
            return found

    def give_up(self) -> None:
        """Cancel the pending request, from another thread."""
        self._given_up = True
        waiting = self._socket
        if waiting is not None:
            with suppress(OSError):
                waiting.shutdown(socket.SHUT_RDWR)

    def _too_late(self) -> TimeoutError:
        return TimeoutError(f"no whole answer in {self._patience_s:g} s")

    def _follow(self) -> tuple[str, str]:
        parts = self._parts
        for _ in range(_REDIRECTS_MAX):
            answer = self._ask(parts)
            if not isinstance(answer, str):
                return answer
            parts = urlsplit(urljoin(parts.geturl(), answer))
            if parts.hostname != self._parts.hostname:
                raise NoMetricsError("it redirects to another host")
        raise NoMetricsError("too many redirects")

    def _ask(self, parts: SplitResult) -> tuple[str, str] | str:
        """Return the text and its content type, or the address that it redirects to."""
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection = kind(parts.hostname or "", parts.port, timeout=self._patience_s)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.connect()
            self._socket = connection.sock
            if self._given_up:  # cancelled before there was a socket to shut down
                raise self._too_late()
            connection.request("GET", path, headers={"Accept": _ACCEPT, "Connection": "close"})
            response = connection.getresponse()
            if response.status in (301, 302, 303, 307, 308):
                return response.getheader("Location") or ""
            if response.status != http.client.OK:
                raise NoMetricsError(f"it answered {response.status}")
            content = response.read(PAGE_BYTES_MAX + 1)
            content_type = response.getheader("Content-Type") or ""
        finally:
            self._socket = None
            connection.close()
        if len(content) > PAGE_BYTES_MAX:
            raise NoMetricsError(f"it is longer than {PAGE_BYTES_MAX // MIB} MiB")
        if response.length:
            # A read of limited size does not raise this, and half a number still parses as one.
            raise http.client.IncompleteRead(content, response.length)
        if "html" in content_type or content.lstrip()[:1] == b"<":
            raise NoMetricsError("it is an HTML page")
        return content.decode("utf-8", "replace"), content_type


def _parts(url: str) -> SplitResult:
    if not is_http_address(url):
        raise UsageError("is not an HTTP URL; write http://HOST:PORT/metrics.", option="--metrics")
    return urlsplit(url)


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "its answer was cut off"
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        # Its text may be what the server wrote.
        return "its answer is not HTTP"
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(visible(words or type(error).__name__).split())[:160].rstrip(".")
