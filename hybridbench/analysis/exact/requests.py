"""Requests that hold what they should not: while they only wait, after their client has left, or
for ever because they never end.

None of this makes memory grow: each holds a row, a state slot and its tokens, so that less and less
is left for the others.  A machine may be slow without any of it, so nothing here is judged in
seconds alone: a request is too old when all others of its time have come and gone many times over.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.drivers.steps import StepDriver, find_rise_driver, find_step_driver
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.pools import pool_names, pool_unit, pool_values, pool_words
from hybridbench.analysis.record import FloatArray, Series
from hybridbench.records.codes import FindingCode
from hybridbench.records.events import Checkpoint, EngineViolation, Phase
from hybridbench.records.verdict import Finding, Rate, VerdictKind

WAITING_VIOLATION = "waiting-held"

# One sample may have been taken while an admission was being decided; two may not.
_MIN_SAMPLES = 2
_RATE_FROM = 0.05  # slots per event
# What makes a request wait with something in hand, likeliest first.
_CAUSES_OF_WAITING = ("refus", "reject", "retract", "abort")

_CLIENTS = "requests_without_client"
_CAUSES_OF_LEAVING = ("disconnect", "abort")
# One reading may fall between a client's leaving and the engine's hearing of it: two of them must
# be neighbours.
_FEWEST_READINGS = 3

# How often the engine's whole population must have been served while one request was not.
_TURNOVERS = {"oldest_silence_s": 10.0, "oldest_request_s": 50.0}
_TIMES_USUAL = 5.0  # the longest age at which any request before it ended
_LEAST_AGE_S = 10.0
# Transfers that requests wait for, and pauses of the machine, are shorter or have fewer steps.
_STALL_S = 30.0
_STALL_STEPS = 100.0
_GROWS_BY = 0.5  # of the time that passes: the same request is still the oldest


def violation_kind(violation: EngineViolation) -> str:
    """The kind of a violation, in one spelling."""
    return violation.kind.replace("_", "-")


def waiting_findings(facts: Facts) -> list[Finding]:
    """One finding for each pool of which waiting requests held slots."""
    found = (_waiting_finding(facts, pool) for pool in pool_names(facts.record))
    return [finding for finding in found if finding is not None]


def _waiting_finding(facts: Facts, pool: str) -> Finding | None:
    record, counters = facts.record, facts.counters
    t, held = pool_values(record, pool, "waiting_held")
    holding = held > 0
    resting = [at for at in record.all_events(Checkpoint) if at.pool(pool, "waiting_held") > 0]
    said = [e for e in record.all_events(EngineViolation) if _is_said(e, pool)]
    if int(holding.sum()) < _MIN_SAMPLES and not resting and not said:
        return None
    # A count after every step tells more than samples, between which every counter moves.
    driver = find_step_driver(record, pool, counters, _CAUSES_OF_WAITING)
    if driver is None and holding.any():
        driver = find_rise_driver(t, held, counters, _CAUSES_OF_WAITING)
    times = [float(t[holding][0])] if holding.any() else []
    since = min(times + [e.t_s for e in (*resting, *said)])
    # Of takings, not of what is held: what a request took it gives back when it is admitted.
    unit = f"{pool_unit(pool)} taken"
    most, mean = _most_and_mean(held, resting, pool)
    return Finding(
        kind=FindingCode.WAITING_HOLDS_SLOTS,
        verdict=VerdictKind.LEAK,
        subject=pool_words(pool),
        driver=driver.counter if driver else None,
        rates=_rates_of_waiting(driver, unit),
        since_s=since,
        data={
            "pool": pool,
            "most": most,
            "mean": mean,
            "samples": int(held.size),
            "samples_holding": int(holding.sum()),
            "checkpoints_holding": len(resting),
            "violations": len(said),
            **({"first_sample_s": times[0]} if times else {}),
            **({"violation": said[0].message} if said else {}),
            **({} if driver is None else driver.as_data()),
        },
    )


def _is_said(violation: EngineViolation, pool: str) -> bool:
    return violation_kind(violation) == WAITING_VIOLATION and violation.pool == pool


def _most_and_mean(held: FloatArray, resting: list[Checkpoint], pool: str) -> tuple[float, float]:
    """The most slots held, and the mean over all samples from the first that held any."""
    at_rest = [at.pool(pool, "waiting_held") for at in resting]
    if not np.any(held > 0):
        return max(at_rest, default=0.0), float(np.mean(at_rest)) if at_rest else 0.0
    since = held[int(np.argmax(held > 0)) :]
    return max([float(held.max()), *at_rest]), float(since.mean())


def _rates_of_waiting(driver: StepDriver | None, unit: str) -> tuple[Rate, ...]:
    """Slots per event, where there is such a rate.

    A request that is refused again takes no second slot: once all that wait hold one, further
    refusals cost nothing, and their number says nothing.
    """
    known = driver is not None and driver.per_event >= _RATE_FROM
    return (driver.rate(unit),) if known and driver is not None else ()


def liveness_findings(facts: Facts) -> list[Finding]:
    """Requests without a client, an engine that serves none or does not become idle, and at most
    one finding on a request that does not end.
    """
    findings = [*_without_client(facts), *(_stalled(facts) or _never_idle(facts))]
    for name in _TURNOVERS:
        if not any(finding.kind == FindingCode.REQUEST_TOO_OLD for finding in findings):
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
        kind=FindingCode.RUNNING_WITHOUT_CLIENT,
        verdict=VerdictKind.LEAK,
        subject="requests without a client",
        driver=driver.counter if driver is not None else None,
        # At least: some came and went between two samples.
        rates=() if driver is None else (driver.rate("requests"),),
        since_s=first,
        data={
            "most": float(count.max()),
            "mean": float(count[t >= first].mean()),
            "request_seconds": spent_s,
            "readings": int(t.size),
            "readings_with": int(seen.sum()),
            **({} if driver is None else driver.as_data()),
        },
    )


def _stalled(facts: Facts) -> list[Finding]:
    """The engine takes step after step, and none of its requests has a part in any.

    A slow machine serves somebody in each step, and a paused engine takes none, nor does an idle
    one: without a request it waits for a transfer that does not end.
    """
    idle, forward = (facts.record.series.get(name) for name in ("events.idle_steps", "forward_s"))
    if idle is None or forward is None or len(idle) < 2:
        return []
    t = idle.t_s
    requests = np.zeros(t.size)
    for load in facts.load:
        if len(load):
            requests += np.interp(t, load.t_s, load.value)
    computes = np.diff(np.interp(t, forward.t_s, forward.value)) > 0.0
    # A worker that was started again counts from 0.
    stuck = ~computes & (np.diff(idle.value) > 0.0)
    start, end = max(_runs(stuck), key=lambda run: t[run[1]] - t[run[0]], default=(0, 0))
    steps = float(idle.value[end] - idle.value[start])
    if t[end] - t[start] < _STALL_S or steps < _STALL_STEPS:
        return []
    found = Finding(
        kind=FindingCode.STALLED,
        verdict=VerdictKind.CRASHED,
        subject="scheduler",
        since_s=float(t[start]),
        data={
            "requests": float(requests[start : end + 1].min()),
            "stalled_s": float(t[end] - t[start]),
            "steps": steps,
        },
    )
    return [found]


def _never_idle(facts: Facts) -> list[Finding]:
    """Traffic has ended, and the last requests have not in the time that they were given."""
    phases = facts.last.all_events(Phase)
    if facts.ended_early or [phase.name for phase in phases[-2:]] != ["drain", "done"]:
        return []
    drain, done = phases[-2:]
    found = Finding(
        kind=FindingCode.NOT_IDLE,
        verdict=VerdictKind.INCONCLUSIVE,
        subject="scheduler",
        since_s=drain.t_s,
        data={
            "requests": sum(float(load.value[-1]) for load in facts.load if len(load)),
            "waited_s": done.t_s - drain.t_s,
        },
    )
    return [found]


def _runs(holds: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Between which samples ``holds``, which is of the intervals between them, is true."""
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
    # Of the same quantity, among requests that did end.
    usual_s = float(age[:start].max()) if start else 0.0
    served = float(np.diff(counters.at("finishes", np.array([born_s, float(t[end])])))[0])
    population = _population(facts, born_s, float(t[end]))
    turnovers = served / max(population, 1.0)
    if lived_s < max(_LEAST_AGE_S, _TIMES_USUAL * usual_s) or turnovers < _TURNOVERS[name]:
        return
    yield Finding(
        kind=FindingCode.REQUEST_TOO_OLD,
        verdict=VerdictKind.LEAK,
        subject="oldest request",
        since_s=max(0.0, born_s),
        data={
            "metric": name,
            "age_s": lived_s,
            "finished_meanwhile": served,
            "turnovers": turnovers,
            "usual_s": usual_s,
        },
    )


def _last_climb(series: Series) -> tuple[int, int]:
    """Where the oldest age last began to grow, and the last sample of that growth.

    Only a climb that lasts until the samples end is of interest: what came back was merely slow.
    """
    t, age = series.t_s, series.value
    steady = np.diff(age) >= _GROWS_BY * np.diff(t)
    breaks = np.flatnonzero(~steady)
    start = int(breaks[-1]) + 1 if breaks.size else 0
    return start, age.size - 1


def _population(facts: Facts, start_s: float, end_s: float) -> float:
    """The most requests that were in the engine at once."""
    most = 0.0
    for series in facts.load:
        if len(series):
            inside = series.between(start_s, end_s).value
            most += float(inside.max()) if inside.size else 0.0
    return most
