"""Restarts of a server by its own supervisor during our traffic.

systemd, Docker and gunicorn restart a crashed server or worker within seconds.  A worker that is
replaced on purpose loses no requests, so only restarts at which connections broke are reported.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hybridbench.analysis.findings.words import times
from hybridbench.analysis.record import OF_EXPORTER, SCRAPED, RunRecord
from hybridbench.foundation.labels import whose
from hybridbench.foundation.units import format_duration
from hybridbench.records.events import ProcessEnded, ProcessStarted, Segment
from hybridbench.records.finding import Basis, Finding, VerdictKind, Words
from hybridbench.records.manifest import OBSERVED
from hybridbench.records.processes import signal_name

# Failures that a restart causes, at the server or at a proxy in front of it.
_BROKEN: Final = ("connect", "disconnected", "cut-off", "502", "504")
_FAILED: Final = "events.requests_failed."
# Requests may fail this long before and after the restart is sampled.
_AROUND_S: Final = 10.0
# Multiple of the failures that happen anyway, such as large requests that a server closes.
_MORE: Final = 3.0
# If each scrape reaches another of several workers, counters fall at more than this share of them.
_ALTERNATES: Final = 0.2
# Processes that end within this time restart together.
_TOGETHER_S: Final = 2.0
_TIMES_SHOWN: Final = 6


class Restarted(Basis, frozen=True, kw_only=True):
    """The server, or one of its processes, restarted while our requests failed.

    Attributes:
        server: the server's name.
        at_s: the times of the restarts.
        processes: a description of each replaced process and how it ended; empty if only the
            counters of the metrics page show the restarts.
        failed: requests whose connections broke around these times.
    """

    kind = "restarted"
    meaning = "Something else restarted the server during the run's traffic."
    leads_to = "CRASHED"
    question = "the server ran without a restart"
    advised = (
        "Read the logs of the server, and of what restarts it, at these times; start it without a "
        "supervisor, so that its crash ends the run."
    )

    server: str
    at_s: tuple[float, ...]
    processes: tuple[str, ...]
    failed: int

    def words(self, found: Finding) -> Words:
        shown = [format_duration(at_s) for at_s in self.at_s[:_TIMES_SHOWN]]
        more = ", ..." if len(self.at_s) > _TIMES_SHOWN else ""
        how = "; ".join(self.processes) or "counters on its metrics page restarted from zero"
        often = "once" if len(self.at_s) == 1 else f"{len(self.at_s)} times"
        return Words(
            f"{self.server or 'the server'} was restarted {often} by something other than this "
            f"run, after {', '.join(shown)}{more}",
            evidence=(
                how,
                f"connections of {times(self.failed, 'request')} broke around these times",
            ),
        )


@dataclass(frozen=True)
class _Restart:
    """A restart between ``from_s`` and ``to_s``; ``who`` says which process ended how, if known."""

    from_s: float
    to_s: float
    who: str = ""
    has_crashed: bool = False


@dataclass
class _Group:
    """A period in which requests may fail because of one restart, or of several close ones."""

    start_s: float
    end_s: float
    at_s: list[float]
    who: list[str]
    has_crashed: bool

    def explains(self, failed: float, usual_per_s: float) -> bool:
        """Whether ``failed`` requests are many enough for crashes.

        Of workers that are replaced all the time and end with code 0, some may lose a request.
        """
        fewest = 0 if self.has_crashed else len(self.at_s)
        return failed > _MORE * usual_per_s * self.length_s and failed >= fewest

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


def restart_findings(record: RunRecord) -> list[Finding]:
    """Return at most one finding, which covers all restarts at which connections broke."""
    if record.manifest.target.kind != OBSERVED or not record.manifest.workload:
        return []
    apart = _apart(_replaced(record) or _counted_anew(record))
    usual_per_s = _usual_per_s(record, apart)
    broke = [group for group in apart if group.explains(_failed(record, group), usual_per_s)]
    if not broke:
        return []
    at_s = [at_s for group in broke for at_s in group.at_s]
    failed = sum(_failed(record, group) for group in broke)
    basis = Restarted(
        server=record.manifest.model.name,
        at_s=tuple(at_s),
        processes=tuple(dict.fromkeys(who for group in broke for who in group.who if who)),
        failed=round(failed),
    )
    return [Finding(basis, VerdictKind.CRASHED, "server", since_s=at_s[0])]


def _replaced(record: RunRecord) -> list[_Restart]:
    """Return every replacement of a process, except those made by this run."""
    found: list[_Restart] = []
    started: set[str] = set()
    ended: dict[str, ProcessEnded] = {}
    for event in record.events:
        if isinstance(event, Segment):
            started.clear()
            ended.clear()
        elif isinstance(event, ProcessEnded):
            ended[event.process] = event
        elif isinstance(event, ProcessStarted):
            before = ended.pop(event.process, None)
            if event.process in started:
                from_s = event.t_s if before is None else before.t_s
                how = f"{whose(event.process)} {_how(before)}"
                found.append(_Restart(from_s, event.t_s, how, _has_crashed(before)))
            started.add(event.process)
    return found


def _has_crashed(ended: ProcessEnded | None) -> bool:
    # A master ends the workers that it replaces with SIGTERM.
    signals = (0, None, signal.SIGTERM)
    return ended is not None and (bool(ended.code) or ended.signal not in signals)


def _how(ended: ProcessEnded | None) -> str:
    if ended is not None and ended.signal:
        return f"was killed by {signal_name(ended.signal)}"
    if ended is not None and ended.code is not None:
        return f"ended with exit code {ended.code}"
    return "ended"


def _counted_anew(record: RunRecord) -> Iterator[_Restart]:
    """Yield a restart for every fall of one of the server's counters."""
    borders: Sequence[float] = [event.t_s for event in record.all_events(Segment)]
    for name, series in record.series.items():
        if not name.startswith(SCRAPED) or name.removeprefix(SCRAPED).startswith(OF_EXPORTER):
            continue
        falls = np.flatnonzero(np.diff(series.value) < 0)
        if falls.size > _ALTERNATES * len(series):
            continue
        for index in falls:
            fall = _Restart(float(series.t_s[index]), float(series.t_s[index + 1]))
            if not any(fall.from_s < border <= fall.to_s for border in borders):
                yield fall


def _apart(restarts: Iterable[_Restart]) -> list[_Group]:
    """Group restarts that are so close that the same failures may belong to them."""
    groups: list[_Group] = []
    for one in sorted(restarts, key=lambda one: (one.from_s, one.to_s)):
        start_s, end_s = one.from_s - _AROUND_S, one.to_s + _AROUND_S
        if not groups or start_s > groups[-1].end_s:
            groups.append(_Group(start_s, end_s, [one.from_s], [one.who], one.has_crashed))
            continue
        group = groups[-1]
        group.end_s = max(group.end_s, end_s)
        group.who.append(one.who)
        group.has_crashed |= one.has_crashed
        if one.from_s - group.at_s[-1] > _TOGETHER_S:
            group.at_s.append(one.from_s)
    return groups


def _usual_per_s(record: RunRecord, groups: Sequence[_Group]) -> float:
    """Return the rate of such failures outside ``groups``, in requests per second."""
    first_s, last_s = record.span_s
    rest_s = last_s - first_s - sum(group.length_s for group in groups)
    rest = _failed(record, _Group(first_s, last_s, [], [], has_crashed=False))
    rest -= sum(_failed(record, group) for group in groups)
    return rest / rest_s if rest_s > 0 else 0.0


def _failed(record: RunRecord, group: _Group) -> float:
    """Return how many requests failed within ``group`` because their connection broke."""
    failed = 0.0
    for kind in _BROKEN:
        series = record.series.get(f"{_FAILED}{kind}")
        if series is not None and len(series):
            ends_s = (group.start_s, group.end_s)
            before, after = np.searchsorted(series.t_s, ends_s, side="right")
            failed += float(series.value[after - 1]) if after else 0.0
            failed -= float(series.value[before - 1]) if before else 0.0
    return failed
