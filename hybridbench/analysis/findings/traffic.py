"""Whether the traffic matched the profile: required events, requests served, a client on time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hybridbench.analysis.facts.counters import bare
from hybridbench.analysis.facts.facts import Facts, Missed
from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.findings.invalid import InvalidBasis, invalid
from hybridbench.analysis.findings.words import listed, times
from hybridbench.analysis.record import BUNDLED_DRIVERS, LatencySeries, RunRecord, Series
from hybridbench.foundation.latency import E2E, TTFT
from hybridbench.foundation.units import format_duration, format_percent
from hybridbench.records.events import RequestRefused
from hybridbench.records.finding import Finding, VerdictKind, Words
from hybridbench.records.load import LATE
from hybridbench.records.manifest import OBSERVED

STEPS = "events.finishes"
_FAILED = "events.requests_failed."

# Limits for the load client: its lateness, relative to the time to first token (or the end) at the
# same quantile, and its CPU use.
_CLIENT_QUANTILE = 0.99
_CLIENT_LATE_S = 0.02
_CLIENT_LATE_OF = 0.2
_CLIENT_CPU_SHARE = 0.95

_COUNTERS_NAMED = 2


class NotCovered(InvalidBasis, frozen=True, kw_only=True):
    """The traffic missed the events that the profile is meant to test."""

    kind = "coverage"
    meaning = "Events that the profile requires did not occur often enough to test their path."

    missing: tuple[Missed, ...]

    def words(self, found: Finding) -> Words:
        each = [missed.text for missed in self.missing]
        return Words(
            f"the traffic did not cause the required events: {listed(each, _COUNTERS_NAMED)}",
            evidence=(", ".join(each),) if len(each) > _COUNTERS_NAMED else (),
        )


class ValidRefused(InvalidBasis, frozen=True, kw_only=True):
    """The engine refused requests that are valid by their profile.

    Attributes:
        refused: number of such requests in all segments; 0 if the run was cut off before they were
            counted.
        sent: requests sent, including refused ones; 0 in the same case.
        reason: the engine's message for the first.
    """

    kind = "valid-refused"
    meaning = "The engine refused requests that are valid by their profile."
    advised = (
        "Find the engine's check that gave the reason in the evidence. If it is right, change the "
        "settings, so that the engine can serve what the profile sends."
    )

    refused: int
    sent: int
    reason: str

    def words(self, found: Finding) -> Words:
        which = f"{self.refused:,} of {self.sent:,}" if self.refused else "some"
        were = "was" if self.refused == 1 else "were"
        return Words(
            f"{which} requests {were} refused although the profile makes them valid",
            evidence=(f"the first: {self.reason}",),
        )


class NothingServed(InvalidBasis, frozen=True, kw_only=True):
    """The target counts its requests, and the count did not rise."""

    kind = "nothing-served"
    meaning = "A watched target answered no request in the judged window."

    counter: str
    judged_s: float

    def words(self, found: Finding) -> Words:
        judged = format_duration(self.judged_s)
        return Words(
            f"the target answered no request in the judged {judged}",
            evidence=(f"{bare(self.counter)} did not rise",),
        )

    def advice(self, found: Finding) -> str:
        if self.counter == BUNDLED_DRIVERS.requests:
            return "Look at the counts of refused and failed requests, and at the server's log."
        return "Look at what the load tool says: run its command by hand while the target serves."


class MostlyFailed(InvalidBasis, frozen=True, kw_only=True):
    """The server failed more requests than it answered; refusals are not failures.

    Attributes:
        answered: requests answered to their end in the judged window.
        failed: requests that failed in it, by kind: a status, ``error-in-answer``, ``cut-off``.
    """

    kind = "mostly-failed"
    meaning = "More requests of the load client failed than were answered."
    advised = (
        "Read the server's log, and send it one such request by hand: the answer has its message. "
        "If only some requests fail, remove these from the profile."
    )

    answered: int
    failed: Mapping[str, int]

    def words(self, found: Finding) -> Words:
        were = "was" if self.answered == 1 else "were"
        failed = times(sum(self.failed.values()), "request")
        return Words(
            f"{failed} failed in the judged window, and only {self.answered:,} {were} answered",
            evidence=tuple(f"{kind}: {count:,}" for kind, count in self.failed.items()),
        )


class ClientLate(InvalidBasis, frozen=True, kw_only=True):
    """The load client was late or saturated, so latencies reflect it as much as the server."""

    kind = "client-late"
    meaning = (
        "The load client was late by more than a fifth of the time to first token, both at the "
        "99th percentile, or took all of a processor, so the measurements include the client's "
        "own delays."
    )
    advised = (
        "Send less, use more processors, or grant hybridbench CAP_SYS_NICE (Docker: --cap-add "
        "SYS_NICE), so that its load client has priority over the server."
    )

    late_s: float
    cpu_share: float

    def words(self, found: Finding) -> Words:
        share, late_ms = format_percent(self.cpu_share), 1000.0 * self.late_s
        return Words(
            f"the load client was {late_ms:,.0f} ms late at the 99th percentile and took {share} "
            "of a processor, so the load was not as requested"
        )


def coverage_findings(facts: Facts) -> list[Finding]:
    """Return a finding if the whole run's traffic missed required events; none if cut short."""
    missing = () if facts.ended_early else facts.coverage.missing
    return [invalid(NotCovered(missing=missing), "coverage")] if missing else []


def refused_findings(record: RunRecord) -> Iterable[Finding]:
    """Yield a finding if the engine refused requests that the profile makes valid."""
    for first in record.all_events(RequestRefused)[:1]:
        counts = record.manifest.workload_counts
        refused, sent = counts.get("valid_refused", 0), counts.get("submitted", 0)
        basis = ValidRefused(refused=refused, sent=sent, reason=first.text)
        yield Finding(basis, VerdictKind.INVALID, "traffic", since_s=first.t_s)


def nothing_served(record: RunRecord, window: Window) -> Iterable[Finding]:
    """Yield a finding if a watched target answered nothing; our profiles require events instead."""
    name = record.drivers.requests
    series = record.series.get(name)
    if record.manifest.target.kind != OBSERVED or series is None:
        return
    inside = series.between(window.start_s, window.end_s).value
    if inside.size > 1 and inside[-1] <= inside[0]:
        basis = NothingServed(counter=name, judged_s=window.duration_s)
        yield invalid(basis, "traffic")


def mostly_failed(record: RunRecord, window: Window) -> Iterable[Finding]:
    """Yield a finding if more requests of our load client failed than were answered."""
    rises = {
        name: _rise(one, window) for name, one in record.series.items() if name.startswith(_FAILED)
    }
    failed = {name.removeprefix(_FAILED): rise for name, rise in rises.items() if rise}
    answered = _rise(record.series[STEPS], window) if STEPS in record.series else 0
    if sum(failed.values()) > answered:
        yield invalid(MostlyFailed(answered=answered, failed=failed), "traffic")


def _rise(counter: Series, window: Window) -> int:
    inside = counter.between(window.start_s, window.end_s).value
    return int(inside[-1] - inside[0]) if inside.size else 0


def client_findings(record: RunRecord, window: Window) -> Iterable[Finding]:
    """Yield at most one finding, only for a run that sends its own requests over HTTP."""
    late, share = record.latencies.get(LATE), record.series.get("client_cpu_share")
    if late is None or share is None:
        return
    late_s = _quantile_s(late, window)
    answered = record.latencies.get(TTFT) or record.latencies.get(E2E)
    of_server_s = 0.0 if answered is None else _quantile_s(answered, window)
    taken = share.between(window.start_s, window.end_s).value
    cpu_share = float(np.median(taken)) if taken.size else 0.0
    if late_s > max(_CLIENT_LATE_S, _CLIENT_LATE_OF * of_server_s) or cpu_share > _CLIENT_CPU_SHARE:
        yield invalid(ClientLate(late_s=late_s, cpu_share=cpu_share), "client")


def _quantile_s(latencies: LatencySeries, window: Window) -> float:
    inside = (latencies.t_s >= window.start_s) & (latencies.t_s <= window.end_s)
    return latencies.where(inside).histogram().quantile_s(_CLIENT_QUANTILE) or 0.0
