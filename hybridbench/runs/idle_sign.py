"""Whether a watched target is idle, as far as can be seen from outside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hybridbench.analysis.record import OF_EXPORTER, SCRAPED
from hybridbench.sampling.process import read_cpu_s
from hybridbench.sampling.scrape import Scraper
from hybridbench.sampling.scraped_page import Scrape

SIGN_EVERY_S: Final = 0.5
# Without a gauge, activity means that the processes use more than this share of a CPU.
_CPU_SHARE: Final = 0.05
# A tool that is stopped in the middle of a request leaves the server waiting for the rest.
_STUCK_S: Final = 5.0


@dataclass
class IdleSign:
    """Whether the target is idle, from its gauges if it has any, otherwise from its activity.

    Pages requested before ``forget`` are ignored: on a busy machine they may be seconds old, with
    requests served since.
    """

    scraper: Scraper | None
    since_s: float | None = None  # monotonic time since which no activity was seen
    _until_s: float = 0.0  # the last time that this was confirmed
    _forgot_s: float = -math.inf
    _next_s: float = 0.0
    _cpu_s: float | None = None
    _cpu_at_s: float = 0.0
    _work: Mapping[str, float] = field(default_factory=dict)
    _worked_s: float = 0.0

    def look(self, now_s: float, pids: Sequence[int]) -> None:
        """Check again if a check is due."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + SIGN_EVERY_S
        scrape = None if self.scraper is None else self.scraper.latest()
        if scrape is None or scrape.running is None:
            busy, seen_s = self._takes_cpu(now_s, pids), now_s
        elif scrape.asked_s < self._forgot_s:
            return
        else:
            busy, seen_s = scrape.running + (scrape.waiting or 0.0) > 0, scrape.asked_s
            self._watch_work(scrape, now_s)
        if busy:
            self.since_s = None
            return
        self.since_s = now_s if self.since_s is None else self.since_s
        self._until_s = seen_s

    def forget(self, now_s: float) -> None:
        """Discard earlier observations."""
        self.since_s = None
        self._forgot_s = self._worked_s = now_s

    def idle_for_s(self) -> float:
        """Return the seconds without activity."""
        return 0.0 if self.since_s is None else max(0.0, self._until_s - self.since_s)

    def stuck(self, now_s: float) -> bool:
        """Whether something is running but no work counter has moved for some time."""
        return self.since_s is None and now_s - self._worked_s > _STUCK_S

    def _watch_work(self, scrape: Scrape, now_s: float) -> None:
        own = {
            name: value
            for name, value in scrape.counters.items()
            if not name.removeprefix(SCRAPED).startswith(OF_EXPORTER)
        }
        if own != self._work:
            self._work, self._worked_s = own, now_s

    def _takes_cpu(self, now_s: float, pids: Sequence[int]) -> bool:
        self._worked_s = now_s
        spent = sum(cpu_s for pid in pids if (cpu_s := read_cpu_s(pid)) is not None)
        before, self._cpu_s = self._cpu_s, spent
        elapsed_s, self._cpu_at_s = now_s - self._cpu_at_s, now_s
        if before is None or elapsed_s <= 0:
            return True
        return (spent - before) / elapsed_s > _CPU_SHARE
