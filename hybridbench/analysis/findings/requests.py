"""Requests that hold slots while waiting, after their client disconnected, or because they hang.

None of this grows memory, but each request holds a row, a state slot and its tokens, so less and
less remains for the others.  A slow machine can cause long times without a bug, so nothing here is
judged by seconds alone: a request is too old if the engine has since served its whole population
many times over.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.drivers.steps import StepDriver, find_rise_driver, find_step_driver
from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.pools import pool_names, pool_unit, pool_values, pool_words
from hybridbench.analysis.findings.words import times
from hybridbench.analysis.record import FloatArray, Series
from hybridbench.foundation.units import format_count, format_duration, format_percent
from hybridbench.records.events import Checkpoint, EngineViolation, Phase
from hybridbench.records.finding import Basis, Finding, Rate, VerdictKind, Words

WAITING_VIOLATION = "waiting-held"

# Counters of which at least one rises with each step that serves a request.
SERVING = ("events.prefill_steps", "events.decode_steps", "events.admissions")
# One sample may be taken during an admission decision; two may not.
_MIN_SAMPLES = 2
_RATE_FROM = 0.05  # slots per event
# Events that leave a waiting request holding something, likeliest first.
_CAUSES_OF_WAITING = ("refus", "reject", "retract", "abort")

_CLIENTS = "requests_without_client"
_CAUSES_OF_LEAVING = ("disconnect", "abort")
# One reading may fall between a client's disconnect and the engine's notice of it, so two
# neighbouring readings are needed.
_FEWEST_READINGS = 3

# How many times the engine's whole population must have been served while one request was not.
_TURNOVERS = {"oldest_silence_s": 10.0, "oldest_request_s": 50.0}
_TIMES_USUAL = 5.0  # times the longest age at which an earlier request ended
_LEAST_AGE_S = 10.0
# Transfers that requests wait for, and pauses of the machine, stay below one of these.
_STALL_S = 30.0
_STALL_STEPS = 100.0
_GROWS_BY = 0.5  # share of the elapsed time by which the age grows if the oldest is the same


class WaitingHoldsSlots(Basis, frozen=True, kw_only=True):
    """Slots of one pool held by requests that were not admitted.

    Attributes:
        most: the most slots at once; 0 if only the engine's own check reported any.
        mean: average over all samples since the first with such slots.
        checkpoints_holding: number of idle checkpoints at which some were still held.
        violations: number of reports by the engine's own check; ``violation`` is the first.
    """

    kind = "waiting-holds-slots"
    meaning = "Requests that only wait for admission hold slots between two steps."
    question = "no waiting request holds slots"
    names_mechanism = True

    pool: str
    most: float
    mean: float
    samples: int
    samples_holding: int
    checkpoints_holding: int
    violations: int
    first_sample_s: float | None = None
    violation: str | None = None

    def words(self, found: Finding) -> Words:
        held = f"{self.mean:.1f} on average, at most {self.most:,.0f} at once"
        taken = (
            "" if found.driver is None else f"; each was allocated on a {singular(found.driver)}"
        )
        return Words(
            f"waiting requests hold {pool_unit(self.pool)} between steps "
            f"({held if self.most else 'reported by the engine'}){taken}",
            cause="a slot taken during admission stays with the request after admission fails",
            evidence=tuple(self._evidence(found)),
        )

    def _evidence(self, found: Finding) -> Iterable[str]:
        if self.samples_holding:
            yield (
                f"waiting requests hold slots in {self.samples_holding:,.0f} of "
                f"{self.samples:,.0f} samples, first at "
                f"{format_duration(self.first_sample_s or 0.0)}"
            )
        yield from self._taken(found)
        if self.checkpoints_holding:
            yield f"still held at {times(self.checkpoints_holding, 'checkpoint')}"
        if self.violations:
            yield (
                f"reported by the engine's own check {times(self.violations, 'time')}: "
                f"{self.violation or ''}"
            )

    def _taken(self, found: Finding) -> Iterable[str]:
        how = found.driven
        if how is None:
            return
        slots, share = times(how.rise or 0.0, "time"), format_percent(how.share)
        if how.of_steps is not None:
            yield (
                f"waiting requests took a slot {slots}, {share} of these in a step with "
                f"{found.driver} ({how.events:,.0f} in all), although only "
                f"{format_percent(how.of_steps)} of all steps have any"
            )
        else:
            yield (
                f"waiting requests were seen to take a slot {slots}, {share} of these in intervals "
                f"in which {found.driver} rose ({times(how.events, 'event')})"
            )

    def advice(self, found: Finding) -> str:
        return (
            f"Find where {pool_unit(self.pool)} are allocated before the last admission check, and "
            "release them on every refusal; a waiting request must hold nothing."
        )


class RunningWithoutClient(Basis, frozen=True, kw_only=True):
    """Requests that continue decoding after their client has disconnected.

    Attributes:
        most: the most such requests at once.
        mean: average over all readings since the first with such a request.
        request_seconds: the number of such requests integrated over time.
    """

    kind = "running-without-client"
    meaning = "Requests keep running although their client has left."
    question = "no request keeps running after its client left"
    names_mechanism = True
    advised = (
        "Trace how a client's disconnect is handled: the request's entry must exist until its "
        "abort has been processed."
    )

    most: float
    mean: float
    request_seconds: float
    readings: int
    readings_with: int

    def words(self, found: Finding) -> Words:
        begun = "" if found.driver is None else f"; each began with a {singular(found.driver)}"
        how = found.driven
        appeared = (
            ()
            if how is None
            else (
                f"{format_percent(how.share)} of them appeared in intervals in which "
                f"{found.driver} rose ({times(how.events, 'event')})",
            )
        )
        return Words(
            f"up to {times(self.most, 'request')} kept running after their client left "
            f"({self.mean:.1f} on average){begun}",
            cause="the disconnect did not reach the request, which decodes to its limit",
            evidence=(
                f"in {self.readings_with:,.0f} of {self.readings:,.0f} readings, "
                f"first at {format_duration(found.since_s or 0.0)}",
                f"{format_count(self.request_seconds)} request-seconds of rows, slots and "
                "steps were spent on them",
                *appeared,
            ),
        )


class Stalled(Basis, frozen=True, kw_only=True):
    """The engine takes steps but serves none of its ``requests``, of which there may be none."""

    kind = "stalled"
    meaning = "The engine takes steps for a long time, and none serves a request."
    leads_to = "CRASHED"
    question = "the engine never stops serving its requests"
    advised = (
        "Check why the scheduler refuses its oldest request: a full pool, a lock, or a transfer "
        "that was never acknowledged."
    )

    requests: float
    stalled_s: float
    steps: float

    def words(self, found: Finding) -> Words:
        lasted = format_duration(self.stalled_s)
        first = format_duration(found.since_s or 0.0)
        evidence = (f"{self.steps:,.0f} steps without a forward pass, the first at {first}",)
        if self.requests < 1.0:
            return Words(
                f"the engine took steps for {lasted} without a request in it",
                "a transfer does not end, or its answer is never taken",
                evidence,
            )
        return Words(
            f"no request was served for {lasted}, with {times(self.requests, 'request')} in the "
            "engine",
            "the scheduler waits for something that never comes, or refuses every request",
            evidence,
        )


class NotIdle(Basis, frozen=True, kw_only=True):
    """The engine was still busy when the run stopped waiting for its last ``requests``."""

    kind = "not-idle"
    meaning = (
        "The engine did not become idle after its traffic had ended: a request or a transfer did "
        "not end."
    )
    leads_to = "INCONCLUSIVE"
    question = "the engine becomes idle when its traffic ends"
    decided_by_length = False
    advised = (
        "Find what the engine was still waiting for when the run ended: its oldest request, or a "
        "transfer that was never acknowledged."
    )

    requests: float
    waited_s: float

    def words(self, found: Finding) -> Words:
        inside = f"with {times(self.requests, 'request')}" if self.requests else "without a request"
        return Words(
            f"the engine was not idle {format_duration(self.waited_s)} after its traffic had "
            f"ended, {inside} in it",
            cause="a request or a transfer does not end, or the machine is far too slow",
        )


class RequestTooOld(Basis, frozen=True, kw_only=True):
    """A request that outlives all others.

    Attributes:
        metric: the series read: the age of the oldest request, or of a request's last token.
        finished_meanwhile: requests that ended since it arrived.
        turnovers: ``finished_meanwhile`` divided by the number of concurrent requests.
        usual_s: the longest age at which an earlier request ended.
    """

    kind = "request-too-old"
    meaning = "A request does not end while all others of its age have ended."
    question = "no request stays in the engine forever"
    advised = (
        "Inspect the oldest request in the engine: it waits for a completion that was lost, and "
        "holds its slots until then."
    )

    metric: str
    age_s: float
    finished_meanwhile: float
    turnovers: float
    usual_s: float

    def words(self, found: Finding) -> Words:
        silent = self.metric == "oldest_silence_s"
        what = "has had no token for" if silent else "has been in the engine for"
        return Words(
            f"a request {what} {format_duration(self.age_s)}, while "
            f"{format_count(self.finished_meanwhile)} others finished",
            cause="its completion was lost: what it holds stays taken" if silent else "",
            evidence=(
                f"requests served since then: {self.turnovers:,.0f} times the number in the engine "
                "at once",
                f"the longest before it: {format_duration(self.usual_s)}",
            ),
        )


def violation_kind(violation: EngineViolation) -> str:
    """Return the kind of a violation, in normalised spelling."""
    return violation.kind.replace("_", "-")


def waiting_findings(facts: Facts) -> list[Finding]:
    """Return one finding for each pool with slots held by waiting requests."""
    found = (_waiting_finding(facts, pool) for pool in pool_names(facts.record))
    return [finding for finding in found if finding is not None]


def _waiting_finding(facts: Facts, pool: str) -> Finding | None:
    record, counters = facts.record, facts.counters
    t, held = pool_values(record, pool, "waiting_held")
    holding = held > 0
    resting = [at for at in record.all_events(Checkpoint) if at.pool(pool, "waiting_held") > 0]
    reports = [e for e in record.all_events(EngineViolation) if _is_of(e, pool)]
    if int(holding.sum()) < _MIN_SAMPLES and not resting and not reports:
        return None
    # Counts after every step are more informative than samples, between which all counters move.
    driver = find_step_driver(record, pool, counters, _CAUSES_OF_WAITING)
    if driver is None and holding.any():
        driver = find_rise_driver(t, held, counters, _CAUSES_OF_WAITING)
    sampled = [float(t[holding][0])] if holding.any() else []
    since = min(sampled + [e.t_s for e in (*resting, *reports)])
    # Count slots taken, not slots held: a request frees what it took once it is admitted.
    unit = f"{pool_unit(pool)} taken"
    most, mean = _most_and_mean(held, resting, pool)
    return Finding(
        WaitingHoldsSlots(
            pool=pool,
            most=most,
            mean=mean,
            samples=int(held.size),
            samples_holding=int(holding.sum()),
            checkpoints_holding=len(resting),
            violations=len(reports),
            first_sample_s=sampled[0] if sampled else None,
            violation=reports[0].message if reports else None,
        ),
        VerdictKind.LEAK,
        pool_words(pool),
        driver=driver.counter if driver else None,
        rates=_rates_of_waiting(driver, unit),
        since_s=since,
        driven=driver.how if driver else None,
    )


def _is_of(violation: EngineViolation, pool: str) -> bool:
    return violation_kind(violation) == WAITING_VIOLATION and violation.pool == pool


def _most_and_mean(held: FloatArray, resting: list[Checkpoint], pool: str) -> tuple[float, float]:
    """Return the most slots held, and the mean over all samples since the first that held any."""
    at_rest = [at.pool(pool, "waiting_held") for at in resting]
    if not np.any(held > 0):
        return max(at_rest, default=0.0), float(np.mean(at_rest)) if at_rest else 0.0
    since = held[int(np.argmax(held > 0)) :]
    return max([float(held.max()), *at_rest]), float(since.mean())


def _rates_of_waiting(driver: StepDriver | None, unit: str) -> tuple[Rate, ...]:
    """Return slots per event, or nothing if the rate is too low to be meaningful.

    A request that is refused again takes no second slot: once all waiting requests hold one,
    further refusals take none, which lowers the rate.
    """
    known = driver is not None and driver.per_event >= _RATE_FROM
    return (driver.rate(unit),) if known and driver is not None else ()


def liveness_findings(facts: Facts) -> list[Finding]:
    """Return findings about requests without a client, a stalled or busy engine, and hung requests.

    At most one finding is about a request that does not end.
    """
    findings = [*_without_client(facts), *(_stalled(facts) or _never_idle(facts))]
    for name in _TURNOVERS:
        if not any(isinstance(finding.basis, RequestTooOld) for finding in findings):
            findings.extend(_too_old(facts, name))
    return findings


def _without_client(facts: Facts) -> Iterable[Finding]:
    series = facts.record.series.get(_CLIENTS)
    if series is None:
        return
    t, count = series.t_s, series.value
    seen = count > 0
    if int(seen.sum()) < _FEWEST_READINGS or not np.any(seen[1:] & seen[:-1]):
        return
    driver = find_rise_driver(t, count, facts.counters, _CAUSES_OF_LEAVING)
    first = float(t[seen][0])
    spent_s = float(np.trapezoid(count, t))
    yield Finding(
        RunningWithoutClient(
            most=float(count.max()),
            mean=float(count[t >= first].mean()),
            request_seconds=spent_s,
            readings=int(t.size),
            readings_with=int(seen.sum()),
        ),
        VerdictKind.LEAK,
        "requests without a client",
        driver=driver.counter if driver is not None else None,
        # A lower bound: some requests may have begun and ended between two samples.
        rates=() if driver is None else (driver.rate("requests"),),
        since_s=first,
        driven=None if driver is None else driver.how,
    )


def _serving(facts: Facts) -> list[Series]:
    """Return the series that grow with each step that serves a request.

    That is the time of the forward passes; a released engine without its model has only counts.
    """
    names = ("forward_s",), SERVING
    found = ([s for name in group if (s := facts.record.series.get(name))] for group in names)
    return next((group for group in found if group), [])


def _stalled(facts: Facts) -> list[Finding]:
    """Detect an engine that takes step after step without serving any of its requests.

    A slow machine serves some request in each step; a paused or idle engine takes no steps.  If
    there is no request at all, the engine is waiting for a transfer that does not end.
    """
    idle, served = facts.record.series.get("events.idle_steps"), _serving(facts)
    if idle is None or not served or len(idle) < 2:
        return []
    t = idle.t_s
    requests = facts.requests_at(t)
    done = np.sum([np.interp(t, one.t_s, one.value) for one in served], axis=0)
    computes = np.diff(done) > 0.0
    took_s, steps = np.diff(t), np.diff(idle.value)
    # A restarted worker counts from 0.  Time without steps (a heap scan, a pause) neither ends a
    # stall nor counts as part of it.
    steps_idly = ~computes & (steps > 0.0)
    stuck_s = np.concatenate(([0.0], np.cumsum(np.where(steps_idly, took_s, 0.0))))
    start, end = max(
        _runs(~computes), key=lambda run: stuck_s[run[1]] - stuck_s[run[0]], default=(0, 0)
    )
    stuck = start + np.flatnonzero(steps_idly[start:end])
    stalled_s, stalled_steps = float(took_s[stuck].sum()), float(steps[stuck].sum())
    if stalled_s < _STALL_S or stalled_steps < _STALL_STEPS:
        return []
    found = Finding(
        Stalled(
            requests=float(np.median(requests[stuck])), stalled_s=stalled_s, steps=stalled_steps
        ),
        VerdictKind.CRASHED,
        "scheduler",
        since_s=float(t[stuck[0]]),
    )
    return [found]


def _never_idle(facts: Facts) -> list[Finding]:
    """Detect that the last requests did not end in the time allowed after the traffic."""
    phases = facts.last.all_events(Phase)
    if facts.ended_early or [phase.name for phase in phases[-2:]] != ["drain", "done"]:
        return []
    drain, done = phases[-2:]
    # A server need not report its requests; the load client knows which have no answer.
    client = facts.record.series.get("client_in_flight")
    loads = [sum(float(load.value[-1]) for load in facts.load if len(load))]
    loads += [] if client is None else [float(client.value[-1])]
    found = Finding(
        NotIdle(requests=max(loads), waited_s=done.t_s - drain.t_s),
        VerdictKind.INCONCLUSIVE,
        "scheduler",
        since_s=drain.t_s,
    )
    return [found]


def _runs(holds: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the sample ranges in which ``holds``, given per interval between samples, is true."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], holds, [False]))))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _too_old(facts: Facts, name: str) -> Iterable[Finding]:
    series, counters = facts.record.series.get(name), facts.counters
    if series is None or len(series) < 2 or "finishes" not in counters.series:
        return
    start, end = _last_climb(series)
    t, age = series.t_s, series.value
    lived_s = float(age[end])
    born_s = float(t[end]) - lived_s
    # The highest age at which an earlier request ended.
    usual_s = float(age[:start].max()) if start else 0.0
    served = float(np.diff(counters.at("finishes", np.array([born_s, float(t[end])])))[0])
    population = _population(facts, born_s, float(t[end]))
    turnovers = served / max(population, 1.0)
    if lived_s < max(_LEAST_AGE_S, _TIMES_USUAL * usual_s) or turnovers < _TURNOVERS[name]:
        return
    yield Finding(
        RequestTooOld(
            metric=name,
            age_s=lived_s,
            finished_meanwhile=served,
            turnovers=turnovers,
            usual_s=usual_s,
        ),
        VerdictKind.LEAK,
        "oldest request",
        since_s=max(0.0, born_s),
    )


def _last_climb(series: Series) -> tuple[int, int]:
    """Return the indices at which the oldest age last began to grow, and of the last sample.

    Only growth that lasts until the end of the samples matters: a request that ended was merely
    slow.
    """
    t, age = series.t_s, series.value
    steady = np.diff(age) >= _GROWS_BY * np.diff(t)
    breaks = np.flatnonzero(~steady)
    start = int(breaks[-1]) + 1 if breaks.size else 0
    return start, age.size - 1


def _population(facts: Facts, start_s: float, end_s: float) -> float:
    """Return an upper bound on the number of requests in the engine at once."""
    most = 0.0
    for series in facts.load:
        if len(series):
            inside = series.between(start_s, end_s).value
            most += float(inside.max()) if inside.size else 0.0
    return most
