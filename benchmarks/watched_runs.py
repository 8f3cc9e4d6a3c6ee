"""Simulated runs of a watched server: traffic, the heaps of its processes, and the probe's data.

Every container is a mechanism driven by the same simulated traffic: requests in flight, caches with
and without a limit, caches of distinct keys, lists that are cleared at intervals, uncollected
garbage.  None follows a curve that the analysis fits.

A leak adds entries at one kind of event and never removes them.  Its size is known, so a run is
leaking or healthy by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hybridbench.analysis.record import FloatArray, RunRecord, Series, observed_drivers
from hybridbench.foundation.labels import labelled
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.events import Census, Event, IdleLook, Phase, ProcessStarted
from hybridbench.records.manifest import OBSERVED, Manifest, Options, TargetFacts

ROLES: Final = ("api_server", "engine_core", "worker", "detokenizer")
LOADS: Final = ("constant", "bursts", "on-off", "ramp", "poisson")
_STEP_S: Final = 0.5
_SCRAPE_S: Final = 2.0
_IDLE_S: Final = 6.0
_BLOCK_BYTES: Final = 96.0


@dataclass(frozen=True)
class Leak:
    """A leak of ``each`` entries of ``path`` in ``role`` for a ``share`` of the events ``event``.

    ``path`` is empty if no container holds the entries, ``objects`` if they are plain numbers.
    ``blocks`` and ``native_bytes`` are memory that no path or type accounts for.  Three settings
    make it healthy instead: a ``power`` below 1 (a cache that gets fewer and fewer new keys), a
    ``life_s`` after which each entry is removed, and a limit of ``most`` entries that is reached.
    """

    event: str = "finished"
    each: float = 1.0
    share: float = 1.0
    role: str = ROLES[0]
    path: str = "app.kept"
    objects: str = "app.Request"
    value_bytes: float = 9_800.0
    blocks: float = 0.0
    native_bytes: float = 0.0
    power: float = 1.0
    life_s: float = np.inf
    most: float = np.inf
    mixed: bool = False  # the container also holds the requests in flight


@dataclass(frozen=True)
class Watched:
    """One simulated run; ``names`` is the number of paths, and of types, in each process."""

    seed: int
    duration_s: float = 600.0
    load: str = "constant"
    requests_per_s: float = 20.0
    refused: float = 0.02
    aborted: float = 0.03
    census_s: float = 30.0
    idle_s: float = 0.0
    roles: Sequence[str] = ROLES
    names: int = 300
    tokens_vary: bool = True
    counts_refusals: bool = True
    restarts_s: Sequence[float] = ()
    leaks: Sequence[Leak] = ()
    budgets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Traffic:
    """Cumulative events and requests in flight at the times ``t_s``."""

    t_s: FloatArray
    so_far: Mapping[str, FloatArray]
    in_flight: FloatArray
    idle: Sequence[float]  # times of idle points

    def at(self, event: str, t_s: FloatArray) -> FloatArray:
        """Number of ``event`` up to each of ``t_s``."""
        count: FloatArray = np.floor(np.interp(t_s, self.t_s, self.so_far[event]))
        return count

    def flying(self, t_s: FloatArray) -> FloatArray:
        """Requests in flight at each of ``t_s``."""
        places = np.searchsorted(self.t_s, t_s).clip(0, self.t_s.size - 1)
        flying: FloatArray = self.in_flight[places]
        return flying


def watched_run(run: Watched) -> RunRecord:
    """Simulate ``run``; return its record."""
    rng = np.random.default_rng(run.seed)
    traffic = _traffic(run, rng)
    series = dict(_series(run, traffic, rng))
    events: list[Event] = []
    for role in run.roles:
        own = [leak for leak in run.leaks if leak.role == role]
        seen, memory = _process(run, role, traffic, own, rng)
        events += seen
        series[memory.name] = memory
    for at in traffic.idle:
        events.append(Phase(name="idle", phase="idle", t_s=at - 4.0))
        events.append(Phase(name="resume", phase="steady", t_s=at + 2.0))
    manifest = Manifest(
        planned_duration_s=run.duration_s,
        started_wall_s=1.79e9,
        target=TargetFacts(kind=OBSERVED),
        options=Options(cache_budgets=dict(run.budgets)),
    )
    ordered = sorted(events, key=lambda event: event.t_s)
    return RunRecord(manifest, series, ordered, drivers=observed_drivers(series))


def _traffic(run: Watched, rng: np.random.Generator) -> _Traffic:
    t = np.arange(0.0, run.duration_s + _STEP_S, _STEP_S)
    rate = np.full(t.size, run.requests_per_s)
    if run.load == "bursts":
        on = rng.random(t.size // 20 + 1) < 0.3
        rate *= np.where(np.repeat(on, 20)[: t.size], 2.6, 0.3)
    elif run.load == "on-off":
        period = rng.uniform(40.0, 150.0)
        rate *= np.where((t / period) % 1.0 < 0.6, 1.5, 0.05)
    elif run.load == "ramp":
        rate *= np.linspace(0.4, 1.6, t.size)
    elif run.load == "poisson":
        rate *= np.repeat(rng.lognormal(0.0, 0.4, t.size // 10 + 1), 10)[: t.size]
    idle = []
    if run.idle_s:
        idle = np.arange(run.idle_s, run.duration_s - 5.0, run.idle_s).tolist()
        for at in idle:
            rate[(t >= at - _IDLE_S) & (t <= at + 2.0)] = 0.0
    rate[t < 4.0] = 0.0  # start-up
    came = rng.poisson(rate * _STEP_S)
    refused = rng.binomial(came, run.refused)
    served = came - refused
    aborted = rng.binomial(served, run.aborted)
    lag = int(rng.integers(1, 5))
    ended = np.concatenate([np.zeros(lag, dtype=np.int64), served[:-lag]])
    tokens = ended * rng.integers(20, 60, t.size) if run.tokens_vary else ended * 16
    counts = {
        "came": came,
        "refused": refused,
        "finished": ended,
        "aborted": aborted,
        "tokens": tokens,
        "prompt": served * 32,
    }
    so_far = {name: np.cumsum(one).astype(np.float64) for name, one in counts.items()}
    flying = so_far["came"] - so_far["refused"] - so_far["finished"]
    return _Traffic(t, so_far, np.maximum(flying, 0.0), idle)


def _series(
    run: Watched, traffic: _Traffic, rng: np.random.Generator
) -> Sequence[tuple[str, Series]]:
    t = np.arange(1.0, run.duration_s, _SCRAPE_S)
    counters = {
        "scraped.requests_total": traffic.at("came", t),
        "scraped.request_success_total": traffic.at("finished", t),
        "scraped.generation_tokens_total": traffic.at("tokens", t),
        "scraped.prompt_tokens_total": traffic.at("prompt", t),
        "scraped.scrapes_total": np.arange(t.size, dtype=np.float64),
        "scraped.process_cpu_seconds_total": 0.5 * t + rng.random(t.size),
        "scraped.python_gc_collections_total": np.floor(t / 7.0),
        "scraped.request_success_total.abort": traffic.at("aborted", t),
    }
    if run.counts_refusals:
        counters["scraped.requests_total.refused"] = traffic.at("refused", t)
    levels = {
        "running_requests": np.minimum(traffic.flying(t), 16.0),
        "waiting_requests": np.maximum(traffic.flying(t) - 16.0, 0.0),
    }
    return [(name, Series(name, t, value)) for name, value in {**counters, **levels}.items()]


# Maps times, and the start time ``begun_s`` of the process, to numbers of entries.
_Mechanism = Callable[[FloatArray, float], FloatArray]


def _process(
    run: Watched, role: str, traffic: _Traffic, leaks: Sequence[Leak], rng: np.random.Generator
) -> tuple[list[Event], Series]:
    starts = [0.0, *(run.restarts_s if role == run.roles[-1] else ())]
    events: list[Event] = []
    bounds: dict[str, int] = {}
    paths = {
        f"{role}.state_{i}": _mechanism(rng, traffic, run, bounds, f"{role}.state_{i}")
        for i in range(run.names)
    }
    types = {f"{role}.Type{i}": _type(rng, traffic, run) for i in range(run.names)}
    holds = {}
    for leak in leaks:
        if leak.each:
            kept = _leaking(leak, traffic, rng)
            if leak.path:
                paths[leak.path], holds[leak.path] = kept, leak.objects or "int"
            if leak.objects:
                types[leak.objects] = kept
    times = np.arange(rng.uniform(8.0, 20.0), run.duration_s - 2.0, run.census_s)
    times = times + rng.uniform(-0.1, 0.1, times.size) * run.census_s
    for at in traffic.idle:  # one heap scan at each idle point, none shortly before or after it
        times = times[np.abs(times - at) > 9.0]
    times = np.sort(np.concatenate([times, np.array(traffic.idle) + 1.0]))
    for index, begun_s in enumerate(starts):
        pid = 100 + 10 * run.roles.index(role) + index
        until_s = starts[index + 1] if index + 1 < len(starts) else run.duration_s
        events.append(ProcessStarted(role=role, pid=pid, t_s=begun_s))
        own = times[(times > begun_s + 3.0) & (times < until_s)]
        counted = {name: one(own, begun_s) for name, one in paths.items()}
        typed = {name: one(own, begun_s) for name, one in types.items()}
        events += _censuses(role, pid, own, counted, typed, bounds, holds, traffic)
        looks = np.array([at for at in traffic.idle if begun_s < at < until_s])
        events += _looks(run, role, pid, looks, begun_s, paths, leaks, traffic, rng)
    t = np.arange(1.0, run.duration_s, 1.0)
    bytes_kept = sum((one(t, 0.0) * _bytes(leak) for leak, one in _made(leaks, traffic)), 0.0 * t)
    noise = np.convolve(rng.normal(0.0, 4e5, t.size + 20), np.ones(20) / 20.0, "valid")[: t.size]
    fill = 60e6 * (1.0 - np.exp(-t / 15.0))
    value = 4e8 + fill + 2e5 * traffic.flying(t) + noise + bytes_kept
    name = labelled(MEMORY, {"role": role})
    return events, Series(name, t, value)


def _bytes(leak: Leak) -> float:
    return leak.native_bytes + leak.each * leak.value_bytes


def _made(leaks: Sequence[Leak], traffic: _Traffic) -> Sequence[tuple[Leak, _Mechanism]]:
    return [(leak, _counted(traffic, leak.event)) for leak in leaks]


def _counted(traffic: _Traffic, event: str) -> _Mechanism:
    return lambda t_s, _: traffic.at(event, t_s)


def _leaking(leak: Leak, traffic: _Traffic, rng: np.random.Generator) -> _Mechanism:
    hit = traffic.so_far[leak.event]
    if leak.share < 1.0:
        steps = np.diff(np.floor(hit), prepend=0.0).astype(np.int64)
        hit = np.cumsum(rng.binomial(np.maximum(steps, 0), leak.share)).astype(np.float64)

    def entries(t_s: FloatArray, begun_s: float) -> FloatArray:
        at = np.floor(np.interp(t_s, traffic.t_s, hit))
        before = np.floor(np.interp(np.maximum(t_s - leak.life_s, begun_s), traffic.t_s, hit))
        kept: FloatArray = np.floor(leak.each * (at - before) ** leak.power)
        kept = np.minimum(kept, leak.most)
        return kept + traffic.flying(t_s) if leak.mixed else kept

    return entries


def _mechanism(  # noqa: PLR0911, C901  # a table of kinds, each a few lines
    rng: np.random.Generator, traffic: _Traffic, run: Watched, bounds: dict[str, int], path: str
) -> _Mechanism:
    """A container of a healthy process, of a random kind; most never change."""
    kind = rng.random()
    event = str(rng.choice(["finished", "came", "tokens", "refused", "aborted"]))
    base = float(rng.integers(0, 400))
    # A limit that is never reached has no effect: caches fill up within the shortest lifetime.
    lives = np.diff([0.0, *run.restarts_s, run.duration_s])
    total = float(traffic.so_far[event][-1]) * float(lives.min()) / run.duration_s

    def since(t_s: FloatArray, begun_s: float) -> FloatArray:
        count: FloatArray = traffic.at(event, t_s) - traffic.at(event, np.array([begun_s]))[0]
        return count

    if kind < 0.80:
        return lambda t_s, _: np.full(t_s.size, base)
    if kind < 0.84:
        per, off = float(rng.integers(1, 9)), rng.integers(0, 3, 4096)
        return lambda t_s, _: base + per * traffic.flying(t_s) + off[t_s.astype(int) % 4096]
    if kind < 0.86:  # full after a part of the run
        limit = np.floor(total * rng.uniform(0.02, 0.45)) + 1
        return lambda t_s, begun_s: np.minimum(since(t_s, begun_s), limit)
    if kind < 0.875:  # a declared bound, reached or not
        bounds[path] = int(total * rng.uniform(0.1, 4.0)) + 16
        return lambda t_s, begun_s: np.minimum(since(t_s, begun_s), bounds[path])
    if kind < 0.895:  # distinct keys, drawn uniformly from a limited number
        keys = max(total * rng.uniform(0.05, 1.0), 8.0)
        return lambda t_s, b: np.floor(keys * (1.0 - np.exp(-since(t_s, b) / keys)))
    if kind < 0.91:  # unlimited distinct keys: Heaps' law
        power = rng.uniform(0.4, 0.75)
        return lambda t_s, begun_s: np.floor(since(t_s, begun_s) ** power)
    if kind < 0.93:  # cleared at intervals
        every_s = rng.uniform(10.0, 120.0)

        def emptied(t_s: FloatArray, begun_s: float) -> FloatArray:
            last = np.maximum(np.floor(t_s / every_s) * every_s, begun_s)
            return traffic.at(event, t_s) - traffic.at(event, last)

        return emptied
    if kind < 0.95:  # each entry lives for a while
        ttl_s = rng.uniform(20.0, 0.4 * run.duration_s)
        return lambda t_s, b: traffic.at(event, t_s) - traffic.at(event, np.maximum(t_s - ttl_s, b))
    if kind < 0.97:  # sessions: a slowly mean-reverting walk
        life_s = rng.uniform(40.0, 400.0)
        grid = np.arange(0.0, run.duration_s + 1.0)
        level, levels = 0.0, []
        for came in rng.poisson(rng.uniform(0.2, 3.0), grid.size):
            level = level + came - rng.binomial(int(level), 1.0 / life_s)
            levels.append(level)
        return lambda t_s, _: np.interp(t_s, grid, np.array(levels)).round()
    if kind < 0.985:  # a registry of kinds, encountered one by one
        steps = np.sort(rng.exponential(0.3 * run.duration_s, int(rng.integers(1, 40))))
        return lambda t_s, _: base + np.searchsorted(steps, t_s).astype(np.float64)
    size = int(rng.integers(8, 400))  # a bounded history, filled at its own rate
    every_s = rng.uniform(0.05, 0.3) * run.duration_s / size
    bounds[path] = size
    return lambda t_s, b: np.minimum(np.floor((t_s - b) / every_s), size)


def _type(rng: np.random.Generator, traffic: _Traffic, run: Watched) -> _Mechanism:
    """Number of live objects of one type."""
    kind = rng.random()
    base = float(rng.integers(0, 4000))
    if kind < 0.85:
        return lambda t_s, _: np.full(t_s.size, base)
    per = float(rng.integers(1, 6))
    if kind < 0.93:
        return lambda t_s, _: base + per * traffic.flying(t_s)
    # Cycles wait for the collector, which runs at random times and at each idle point.
    own = np.cumsum(rng.exponential(rng.uniform(20.0, 900.0), 60))
    collected = np.sort(np.concatenate([[0.0], own, np.array(traffic.idle) - 0.5]))

    def waiting(t_s: FloatArray, begun_s: float) -> FloatArray:
        last = collected[np.searchsorted(collected, t_s, side="right") - 1]
        last = np.maximum(last, begun_s)
        return base + per * (traffic.at("finished", t_s) - traffic.at("finished", last))

    return waiting


def _censuses(
    role: str,
    pid: int,
    t_s: FloatArray,
    paths: Mapping[str, FloatArray],
    types: Mapping[str, FloatArray],
    bounds: Mapping[str, int],
    holds: Mapping[str, str],
    traffic: _Traffic,
) -> list[Event]:
    del traffic
    events: list[Event] = []
    said: dict[str, dict[str, int]] = {"paths": {}, "types": {}}
    for index, at in enumerate(t_s.tolist()):
        now = {}
        for sort, counts in (("paths", paths), ("types", types)):
            level = {name: int(value[index]) for name, value in counts.items()}
            known = said[sort]
            now[sort] = {n: v for n, v in level.items() if v != known.get(n, 0)}
            said[sort] = level
        events.append(
            Census(
                role=role,
                pid=pid,
                index=index,
                entries=now["paths"],
                types=now["types"],
                bounds=dict(bounds) if index == 0 else {},
                holds=dict(holds) if index == 0 else {},
                pause_s=0.02,
                cpu_s=0.3,
                t_s=at,
            )
        )
    return events


def _looks(
    run: Watched,
    role: str,
    pid: int,
    t_s: FloatArray,
    begun_s: float,
    paths: Mapping[str, _Mechanism],
    leaks: Sequence[Leak],
    traffic: _Traffic,
    rng: np.random.Generator,
) -> list[Event]:
    if not t_s.size:
        return []
    held = sum((one(t_s, begun_s) for one in paths.values()), 0.0 * t_s)
    native = sum(
        (
            leak.native_bytes * (one(t_s, 0.0) - one(np.array([begun_s]), 0.0))
            for leak, one in _made(leaks, traffic)
        ),
        0.0 * t_s,
    )
    own = sum((leak.blocks * one(t_s, 0.0) for leak, one in _made(leaks, traffic)), 0.0 * t_s)
    blocks = 4e5 + 3.0 * held + own + rng.integers(0, 120, t_s.size)
    malloc = 2e8 + _BLOCK_BYTES * held + native + rng.normal(0.0, 3e4, t_s.size)
    names = {
        "scraped.requests_total": ("came",),
        "scraped.request_success_total": ("finished",),
        "scraped.generation_tokens_total": ("tokens",),
        "scraped.prompt_tokens_total": ("prompt",),
        "scraped.request_success_total.abort": ("aborted",),
    }
    if run.counts_refusals:
        names["scraped.requests_total.refused"] = ("refused",)
    return [
        IdleLook(
            role=role,
            pid=pid,
            index=traffic.idle.index(at),
            blocks=int(blocks[i]),
            malloc_bytes=int(malloc[i]),
            unreachable=0,
            counters={
                name: float(sum(traffic.at(event, np.array([at]))[0] for event in of))
                for name, of in names.items()
            },
            pause_s=0.01,
            t_s=at,
        )
        for i, at in enumerate(t_s.tolist())
    ]
