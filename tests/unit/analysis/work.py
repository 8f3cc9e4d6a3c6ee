"""Made-up runs with noisy timings of a step's parts, on a machine of varying speed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.records.events import Phase, Steady
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import manifest_from_json
from tests.unit.analysis.traces import ar1

STEPS_PER_S = 40.0
HIT_SHARE = 0.6


@dataclass(frozen=True)
class Work:
    """Parameters of an engine's run; the defaults are a healthy run on a steady machine.

    Args:
        noise: spread of each part's cost between two samples, as a logarithm.
        drift: change of the machine's speed over the run, as a logarithm.
        stolen: stretches (from, to, factor) of the run in which everything takes longer.
        preempted: stretches (from, to, factor) in which only wall time is longer.
        worse: for each part, the factor by which it is slower at the end of the run.
        step_at: share of the run at which the slowdown occurs at once instead of gradually.
        unlike: spread (around 1) of how strongly a slow machine affects each part.
        hit_lost: share of the hits that is lost by the end.
    """

    seed: int = 0
    duration_s: float = 300.0
    sample_s: float = 1.25
    steady_s: float = 20.0
    noise: float = 0.25
    drift: float = 0.0
    stolen: tuple[tuple[float, float, float], ...] = ()
    preempted: tuple[tuple[float, float, float], ...] = ()
    worse: dict[str, float] = field(default_factory=dict)
    step_at: float | None = None
    unlike: float = 0.15
    hit_lost: float = 0.0
    load_ramp: float = 1.0
    limits: dict[str, JsonValue] = field(default_factory=dict)


def uneven(seed: int, **changes: object) -> Work:
    """Return a healthy run on a shared machine: drift up to 30%, up to three slow stretches."""
    rng = np.random.default_rng([seed, 77])
    stolen = []
    for _ in range(int(rng.integers(0, 4))):
        start = float(rng.uniform(0, 0.9))
        length = float(rng.uniform(0.05, 0.4))
        stolen.append((start, start + length, float(rng.uniform(1.2, 2.2))))
    drift = float(rng.uniform(-0.3, 0.3))
    noise = float(rng.uniform(0.1, 0.4))
    made = Work(seed=seed, noise=noise, drift=drift, stolen=tuple(stolen))
    return Work(**{**vars(made), **changes})


def working_record(work: Work) -> RunRecord:
    """Return the run's record, with the series by which decay is judged."""
    rng = np.random.default_rng(work.seed)
    t = np.arange(1.0, work.duration_s, work.sample_s)
    x = t / work.duration_s
    slow = np.exp(work.drift * x + ar1(rng, t, 0.08, 8.0))
    for start, end, factor in work.stolen:
        slow[(x >= start) & (x < end)] *= factor
    # The loop is closed, so a slower machine does fewer steps.
    batch = 16.0 * (1.0 + (work.load_ramp - 1.0) * x) * np.exp(ar1(rng, t, 0.1, 5.0))
    steps = rng.poisson(STEPS_PER_S * work.sample_s / slow).astype(np.float64) + 1.0
    requests = steps * 0.8
    prompt = requests * 60.0 * np.exp(rng.normal(0, 0.1, t.size))
    hits = prompt * HIT_SHARE * (1.0 - work.hit_lost * x)
    tokens = prompt - hits + steps * batch
    victims = np.maximum(rng.poisson(requests * 1.5), 1).astype(np.float64)
    calls = np.maximum(rng.binomial(steps.astype(np.int64), 0.7), 1).astype(np.float64)
    base = {
        "match_s": 40e-6 * requests * 1.3,
        "insert_s": 60e-6 * requests * 2.0,
        "evict_s": 15e-6 * calls + 6e-6 * victims,
        "own_s": 300e-6 * steps + 8e-6 * steps * batch,
        "forward_cpu_s": 6e-3 * steps + 40e-6 * tokens,
    }
    spent = {}
    for name, cost in base.items():
        noise = np.exp(rng.normal(0, work.noise, t.size) + ar1(rng, t, 0.03, 20.0))
        # A busy neighbour does not slow all work equally.
        felt = slow ** float(np.clip(rng.normal(1.0, work.unlike), 0.5, 1.5))
        spent[name] = cost * felt * noise * _worse(work, name, x)
    own = spent.pop("own_s")
    spent["schedule_s"] = own + spent["match_s"] + spent["insert_s"] + spent["evict_s"]
    wall = np.ones_like(x)
    for start, end, factor in work.preempted:
        wall[(x >= start) & (x < end)] *= factor
    spent["forward_s"] = wall * spent["forward_cpu_s"]
    spent["step_s"] = wall * (spent["schedule_s"] + spent["forward_cpu_s"] + 100e-6 * steps * slow)
    spent["gc_pause_s"] = 0.005 * spent["step_s"] * np.exp(rng.normal(0, 0.5, t.size))
    counts = {
        "match_calls": requests * 1.3,
        "evict_calls": calls,
        "nodes_evicted": 0.6 * victims,
        "evict_internal_state": 0.4 * victims,
        "prefix_hit_tokens": hits,
        "prompt_tokens": prompt - hits,
        "output_tokens": steps * batch,
        "admissions": requests,
        "finishes": requests,
        "prefill_chunks": requests * 0.05,
        "prefill_steps": requests * 0.6,
        "steps": steps,
        "idle_steps": 0.0 * steps,
    }
    columns = {**spent, **{f"events.{name}": count for name, count in counts.items()}}
    series = {name: Series(name, t, np.cumsum(value)) for name, value in columns.items()}
    profile: dict[str, JsonValue] = {
        "promise": work.limits,
        "resolved": {"warmup": {"requests": 100}},
    }
    return RunRecord(
        manifest_from_json({"planned_duration_s": work.duration_s, "profile": profile}),
        series,
        [
            Steady(t_s=work.steady_s),
            Phase(name="done", t_s=work.duration_s - 2),
        ],
    )


def _worse(work: Work, part: str, x: FloatArray) -> FloatArray:
    factor = work.worse.get(part, 1.0)
    if work.step_at is not None:
        return np.where(x >= work.step_at, factor, 1.0)
    return 1.0 + (factor - 1.0) * x
