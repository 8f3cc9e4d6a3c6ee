"""Read a server's metrics page, in Prometheus format: counters of work, and gauges.

This happens in a separate thread, so that a hung server blocks only that thread.  A page costs this
process a bounded amount: reading is limited in size and time, and only the first few hundred names
are kept.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from hybridbench.sampling.metrics_page import MetricsPage, reason_of
from hybridbench.sampling.scraped_page import NAMES_MAX, NoMetricsError, Scrape, read_page

_PATIENCE_S: Final = 5.0
# How often a counter must fall and return in one step: after a restart it does so once at most.
_RETURNS: Final = 5
_IN_TURN: Final = "several processes answer {address} in turn, each with counts of its own."


class Scraper:
    """Reads ``url`` every ``every_s`` seconds until ``close``.

    Raises:
        UsageError: ``url`` is not an HTTP address.
    """

    def __init__(self, url: str, every_s: float, patience_s: float = _PATIENCE_S) -> None:
        self._page = MetricsPage(url, patience_s)
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
            return self._failure(reason_of(error))
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
            elif len(totals) < NAMES_MAX:
                totals[name] = value
            else:
                continue
            self._last[name] = value
        self.totals = totals
        return totals
