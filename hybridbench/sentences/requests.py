"""Requests that hold what they should not, in words."""

from __future__ import annotations

from collections.abc import Iterable

from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.facts.pools import pool_unit
from hybridbench.analysis.reading import number, text
from hybridbench.records.verdict import Finding
from hybridbench.sentences.words import Words, times
from hybridbench.units import format_count, format_duration, format_percent


def waiting_holds_slots(found: Finding) -> Words:
    """Slots in the hands of requests that were not admitted."""
    data, unit = found.data, pool_unit(text(found.data, "pool"))
    most = number(data, "most")
    seen = (
        f"{number(data, 'mean'):.1f} on average, at most {most:,.0f} at once"
        if most
        else "reported by the engine"
    )
    taken = "" if found.driver is None else f"; each was allocated on a {singular(found.driver)}"
    return Words(
        f"waiting requests hold {unit} between steps ({seen}){taken}",
        cause="a slot taken during admission stays with the request after admission fails",
        evidence=tuple(_waiting_evidence(found)),
    )


def _waiting_evidence(found: Finding) -> Iterable[str]:
    data = found.data
    holding = number(data, "samples_holding")
    if holding:
        yield (
            f"waiting requests hold slots in {holding:,.0f} of {number(data, 'samples'):,.0f} "
            f"samples, first at {format_duration(number(data, 'first_sample_s'))}"
        )
    share = format_percent(number(data, "driver_share"))
    slots = number(data, "driver_rise")
    events = number(data, "driver_events")
    if "driver_of_steps" in data:
        of_steps = format_percent(number(data, "driver_of_steps"))
        yield (
            f"waiting requests took a slot {times(slots, 'time')}, {share} of these in a step with "
            f"{found.driver} ({events:,.0f} in all), although only {of_steps} of all steps have any"
        )
    elif found.driver is not None:
        yield (
            f"waiting requests were seen to take a slot {times(slots, 'time')}, {share} of these "
            f"in intervals in which {found.driver} rose ({times(events, 'event')})"
        )
    if number(data, "checkpoints_holding"):
        yield f"still held at {times(number(data, 'checkpoints_holding'), 'checkpoint')}"
    violations = number(data, "violations")
    if violations:
        message = text(data, "violation")
        yield f"reported by the engine's own check {times(violations, 'time')}: {message}"


def running_without_client(found: Finding) -> Words:
    """Requests that decode although their client has left."""
    data = found.data
    begun = "" if found.driver is None else f"; each began with a {singular(found.driver)}"
    return Words(
        f"up to {number(data, 'most'):,.0f} requests kept running after their client left "
        f"({number(data, 'mean'):.1f} on average){begun}",
        cause="the disconnect did not reach the request, which decodes to its limit",
        evidence=(
            f"in {number(data, 'readings_with'):,.0f} of {number(data, 'readings'):,.0f} readings, "
            f"first at {format_duration(found.since_s or 0.0)}",
            f"{format_count(number(data, 'request_seconds'))} request-seconds of rows, slots and "
            "steps were spent on them",
            *_begun(found),
        ),
    )


def _begun(found: Finding) -> Iterable[str]:
    if found.driver is not None:
        share = format_percent(number(found.data, "driver_share"))
        yield (
            f"{share} of them appeared in intervals in which "
            f"{found.driver} rose ({times(number(found.data, 'driver_events'), 'event')})"
        )


def stalled(found: Finding) -> Words:
    """An engine that steps and serves none of its requests, or has none."""
    data = found.data
    requests, lasted = number(data, "requests"), format_duration(number(data, "stalled_s"))
    title = f"no request was served for {lasted}, with {times(requests, 'request')} in the engine"
    cause = "the scheduler waits for something that never comes, or refuses every request"
    if requests < 1.0:
        title = f"the engine took steps for {lasted} without a request in it"
        cause = "a transfer does not end, or its answer is never taken"
    return Words(
        title,
        cause=cause,
        evidence=(
            f"{number(data, 'steps'):,.0f} steps without a forward pass, the first at "
            f"{format_duration(found.since_s or 0.0)}",
        ),
    )


def not_idle(found: Finding) -> Words:
    """An engine that was still busy when the run gave up waiting for its last requests."""
    requests, waited = number(found.data, "requests"), number(found.data, "waited_s")
    inside = f"with {times(requests, 'request')}" if requests else "without a request"
    return Words(
        f"the engine was not idle {format_duration(waited)} after its traffic had ended, {inside} "
        "in it",
        cause="a request or a transfer does not end, or the machine is far too slow",
    )


def request_too_old(found: Finding) -> Words:
    """A request that outlives all others."""
    data = found.data
    silent = text(data, "metric") == "oldest_silence_s"
    what = "has had no token for" if silent else "has been in the engine for"
    others = format_count(number(data, "finished_meanwhile"))
    return Words(
        f"a request {what} {format_duration(number(data, 'age_s'))}, while {others} others "
        "finished",
        cause="its completion was lost: what it holds stays taken" if silent else "",
        evidence=(
            f"requests served since then: {number(data, 'turnovers'):,.0f} times the number in the "
            "engine at once",
            f"the longest before it: {format_duration(number(data, 'usual_s'))}",
        ),
    )
