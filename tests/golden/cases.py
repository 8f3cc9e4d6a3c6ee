"""Records with one fault each, which together yield nearly every kind of finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from benchmarks.watched_runs import Leak, Watched, watched_run
from hybridbench.analysis.findings.growth import HELD_BY_PROBES
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.records.events import (
    AnswersCompared,
    AnswersRepeated,
    BenchFailed,
    ClockJump,
    Crash,
    DiskFull,
    EngineLog,
    EngineViolation,
    IdleLook,
    Interrupted,
    Phase,
    RequestRefused,
    Segment,
    StoppedEarly,
    WorkloadFailed,
    WrongAnswer,
)
from hybridbench.records.load import Differing, Repeated
from tests.unit.analysis.records import (
    MB,
    RESTART,
    Run,
    checkpoint,
    healthy_record,
    late_client,
    reference_cycles,
    refused_and_holding,
    restarted,
    with_checkpoints,
    with_events,
    with_manifest,
    with_series,
)
from tests.unit.analysis.work import Work, working_record

_SHORT: Final = Run(duration_s=240.0, steady_s=60.0)
_LEAKING: Final = Run(duration_s=1200.0, leak_bytes_per_h=4000 * MB)


def _short(**values: FloatArray | float) -> RunRecord:
    """Return a healthy four-minute run with these series; ``__`` in a name stands for a dot."""
    record = healthy_record(_SHORT)
    t = record.series["events.finishes"].t_s
    return with_series(
        record,
        *(
            Series(name.replace("__", "."), t, np.broadcast_to(np.asarray(value, float), t.shape))
            for name, value in values.items()
        ),
    )


def _wrong_answers() -> RunRecord:
    """All eight wrong answers are of retracted requests, but only eight of the 92 right ones."""
    wrong = tuple(
        WrongAnswer(
            rid=f"r{index}",
            prompt_tokens=100 + index,
            place=index,
            distance=0.02 + 0.1 * index,
            emitted=7,
            best=9 + index,
            traits=("reused-nothing", "retracted"),
        )
        for index in range(8)
    )
    compared = AnswersCompared(
        t_s=240.0,
        compared=100,
        tokens=3200,
        tolerance=5.75e-4,
        largest=2e-6,
        wrong=wrong,
        wrong_answers=8,
        wrong_traits={"reused-nothing": 8, "retracted": 8},
        right_traits={"reused-nothing": 50, "retracted": 8, "reused-tree": 42},
        left_out={"sampled": 60, "aborted": 3, "not-drawn": 12},
    )
    return with_events(healthy_record(_SHORT), compared)


def _answers_not_given_again() -> RunRecord:
    """Twelve differing answers of requests with prefix hits, and one that is due to rounding."""
    wrong = (Differing(4, 210, 3.25, reused=True),) * 12
    so_far = Repeated(
        compared=900,
        tokens=14_000,
        known=900,
        reused=400,
        served_differ=13,
        control_differ=1,
        noise=0.002,
        noise_tokens=1200,
        served=(*wrong, Differing(9, 80, 0.004, reused=False)),
        control=(Differing(2, 75, 0.006),),
        usual_gap=0.4,
        left_out={"sampled": 700, "time": 15},
    )
    return with_events(healthy_record(_SHORT), AnswersRepeated(t_s=239.0, so_far=so_far))


def _only_the_interface_seen() -> RunRecord:
    return with_manifest(_short(), target={"kind": "observed", "capabilities": ["traffic"]})


_T: Final = healthy_record(_SHORT).series["events.finishes"].t_s


def _rests(**pools: Mapping[str, float]) -> RunRecord:
    """Return a run whose only checkpoint has faults in ``pools``."""
    return with_checkpoints(_short(), [checkpoint(235.0, **pools)])


def _locks(count: int) -> RunRecord:
    rest = msgspec.structs.replace(checkpoint(235.0), locks={"full": count, "mamba": 0})
    return with_checkpoints(_short(), [rest])


def _closed_sessions() -> RunRecord:
    """All sessions were closed, but each kept its row."""
    rest = checkpoint(235.0, mamba={"session_held": 27.0})
    kept = msgspec.structs.replace(
        rest,
        pools={**rest.pools, "req": {"total": 64.0, "session_held": 9.0}},
        counters={"session_opens": 9, "session_closes": 9},
    )
    return with_checkpoints(_short(), [kept])


def _in_use_at_rest() -> RunRecord:
    """By its metrics page, a server has two more KV blocks in use after each abort in decode."""
    aborts = np.floor(np.maximum(_T - 20, 0) / 5.0)
    rests = [
        msgspec.structs.replace(
            checkpoint(at), pools={"kv_blocks": {"in_use": 2.0 * n}}, counters={"abort_decode": n}
        )
        for at, n in ((60.0, 8.0), (107.0, 17.0), (160.0, 28.0), (235.0, 43.0))
    ]
    return with_checkpoints(_short(events__abort_decode=aborts), rests)


def _slots_lost_by_closes() -> RunRecord:
    """Each closed session loses three state slots, reported with numbers and last holders."""
    closes = np.floor(np.maximum(_T - 20, 0) / 10.0)
    rests = [checkpoint(at, mamba={"residual": n}) for at, n in ((60.0, 12.0), (180.0, 48.0))]
    violation = EngineViolation(
        "residual", "mamba", slots=(3, 4, 5), owners=("REQ", "TREE", "TREE"), count=48, t_s=181.0
    )
    lost = _short(events__session_closes=closes, pool__mamba__residual=3.0 * closes)
    return with_events(with_checkpoints(lost, rests), violation)


def _violation(kind: str, count: float = 2, pool: str = "mamba") -> RunRecord:
    said = EngineViolation(kind, pool, "as the engine puts it", (3, 9), count, t_s=100.0)
    return with_events(with_checkpoints(_short(), []), said)


def _abandoned() -> RunRecord:
    left = np.arange(_T.size) % 10 == 0
    living = np.convolve(left & (np.arange(_T.size) % 20 == 0), np.ones(4))[: _T.size]
    return _short(events__disconnects=np.cumsum(left), requests_without_client=living)


def _stalled() -> RunRecord:
    stuck = np.maximum(_T - 150.0, 0.0)
    return _short(
        running_requests=np.where(stuck > 0, 0.0, 8.0),
        waiting_requests=3.0,
        events__idle_steps=np.floor(20.0 * stuck),
        forward_s=0.5 * (_T - stuck),
    )


def _cycles(survives: float) -> RunRecord:
    """Evicted nodes are in reference cycles; the share ``survives`` survives a collection."""
    record = reference_cycles(healthy_record(_SHORT), "ballast")
    stray = record.series["instances.TreeNode.stray"]
    return with_series(
        record,
        Series("instances.TreeNode.collectible", stray.t_s, (1 - survives) * stray.value),
        Series("instances.TreeNode.retained", stray.t_s, survives * stray.value),
    )


def _cycles_of_reused_memory() -> RunRecord:
    """Objects accumulate, but the process as a whole does not grow."""
    healthy = healthy_record(Run(duration_s=900.0, steady_s=90.0))
    cycles = reference_cycles(healthy, "ballast")
    return with_series(cycles, healthy.series["rss_anon_swap_bytes"])


def _longer_at_every_rest() -> RunRecord:
    rests = [
        msgspec.structs.replace(checkpoint(40.0 * (i + 1)), containers={"rids": length})
        for i, length in enumerate((10.0, 30.0, 52.0, 70.0, 91.0))
    ]
    return with_checkpoints(_short(), rests)


def _entry_for_each_request() -> RunRecord:
    kept = healthy_record(_SHORT).series["events.finishes"].value
    rest = msgspec.structs.replace(checkpoint(235.0), containers={"rids": float(kept[-1])})
    return with_checkpoints(_short(container__rids__len=kept), [rest])


def _probes_leave_memory() -> RunRecord:
    record = healthy_record(_LEAKING)
    probes = np.arange(5.0, _LEAKING.duration_s, 10.0)
    noise = np.random.default_rng(2).normal(0.0, 20e3, probes.size)
    left = 11e6 * np.arange(probes.size) + noise
    return with_series(record, Series(HELD_BY_PROBES, probes, left))


def _samples(name: str, keep: slice) -> RunRecord:
    record = healthy_record(_SHORT)
    series = record.series[name]
    return with_series(record, Series(name, series.t_s[keep], series.value[keep]))


def _hole() -> RunRecord:
    record = healthy_record(_SHORT)
    memory = record.series["rss_anon_swap_bytes"]
    kept = (memory.t_s < 120) | (memory.t_s > 150)
    return with_series(record, Series(memory.name, memory.t_s[kept], memory.value[kept]))


def _silent() -> RunRecord:
    """The worker's own metrics are missing for half a minute; the kernel's continue."""
    record = _short(rss_bytes=700 * MB)
    kept = (_T < 100) | (_T > 130)
    return with_series(
        record,
        *(
            Series(name, series.t_s[kept], series.value[kept])
            for name, series in record.series.items()
            if name.startswith("events.")
        ),
    )


def _never_sampled() -> RunRecord:
    record = healthy_record(Run(duration_s=300.0, steady_s=60.0))
    memory = record.series["rss_anon_swap_bytes"]
    record = with_series(record, Series("rss_bytes", memory.t_s, memory.value))
    record = with_manifest(record, target={"metrics": ["gc_collectible_bytes", "events.*"]})
    series = {n: s for n, s in record.series.items() if n != "gc_collectible_bytes"}
    return replace(record, series=series)


def _uncovered() -> RunRecord:
    return with_manifest(
        _short(), profile={"assert_coverage": {"retracts": 1000}}, planned_duration_s=7200.0
    )


class _Unreadable(dict[str, Series]):
    """Series of which one raises an error when it is read."""

    def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
        if key == "oldest_request_s":
            raise ZeroDivisionError("on purpose")
        return self[key] if key in self else default  # noqa: SIM401


def _held(record: RunRecord, *thresholds: str) -> RunRecord:
    return with_manifest(record, thresholds=list(thresholds))


def _watched(leak: Leak, idle_s: float = 0.0) -> RunRecord:
    """Return ten minutes of a made-up server with one process, which fills up by 60 MB first."""
    roles, leak = (leak.role,), replace(leak, value_bytes=3_000.0)
    return watched_run(Watched(7, idle_s=idle_s, roles=roles, names=0, leaks=(leak,)))


def _never_closes() -> RunRecord:
    """A watched server that opens a file for each request."""
    record = _watched(Leak(each=0.0), idle_s=60.0)
    done = "scraped.request_success_total"
    events = [
        msgspec.structs.replace(event, handles={"open_fds": 9.0 + event.counters[done]})
        if isinstance(event, IdleLook)
        else event
        for event in record.events
    ]
    return replace(record, events=events)


def _watched_in_vain() -> RunRecord:
    """A watched server whose load never reached it."""
    record = _watched(Leak(each=0.0))
    stands = {
        name: replace(series, value=np.full(len(series), 7.0))
        for name, series in record.series.items()
        if name.startswith("scraped.")
    }
    return with_series(record, *stands.values())


_DRAINED_IN_VAIN: Final = (
    Phase("drain", "drain", t_s=240.0),
    Phase("done", "done", t_s=360.0),
)
_OUT_OF_MEMORY: Final = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50 MiB"
_POOL_LEAK: Final = "ValueError: token_to_kv_pool_allocator memory leak detected! available_size=31"

CASES: Final[Mapping[str, Callable[[], RunRecord]]] = {
    "a watched server that serves nothing": _watched_in_vain,
    "a server that fails what it is asked": lambda: with_series(
        _short(), Series("events.requests_failed.500", _T, 20.0 * _T)
    ),
    "a load client that is late": lambda: late_client(_short(), 0.5, 0.2),
    "healthy": lambda: healthy_record(Run()),
    # At idle checkpoints.
    "slots lost by closes": _slots_lost_by_closes,
    "slots below zero": lambda: _rests(mamba={"residual": -1.0}),
    "slots of no request": lambda: _rests(kv={"in_flight": 40.0}),
    "slots of closed sessions": _closed_sessions,
    "in use at rest": _in_use_at_rest,
    "locks held": lambda: _locks(2),
    "locks below zero": lambda: _locks(-1),
    # Requests.
    "refused and holding": lambda: refused_and_holding(healthy_record(_SHORT)),
    "held, in the engine's words": lambda: _violation("waiting-held"),
    "clients that left": _abandoned,
    "one request without an end": lambda: _short(oldest_request_s=np.maximum(2.0, _T - 98.0)),
    "stalled": _stalled,
    "drained in vain": lambda: with_events(_short(), *_DRAINED_IN_VAIN),
    # Objects.
    "cycles": lambda: _cycles(0.02),
    "cycles of which most survive": lambda: _cycles(0.98),
    "cycles that are collected": lambda: reference_cycles(healthy_record(_SHORT), "bare"),
    "cycles of reused memory": _cycles_of_reused_memory,
    "a table that only grows": _longer_at_every_rest,
    "an entry for each request": _entry_for_each_request,
    # Processes of other programs, watched by probes.
    "a container of a watched process": lambda: _watched(Leak(), idle_s=60.0),
    "a container under traffic": lambda: _watched(Leak(event="refused", objects="")),
    "objects of a watched process": lambda: _watched(Leak(path=""), idle_s=60.0),
    "objects under traffic": lambda: _watched(Leak(path="")),
    "blocks of a watched process": lambda: _watched(Leak(each=0, blocks=14.0), idle_s=60.0),
    "bytes of a watched process": lambda: _watched(Leak(each=0, native_bytes=3e3), idle_s=60.0),
    "open files of a watched process": _never_closes,
    "a cache that fills": lambda: _watched(Leak(power=0.6, each=20.0, objects="")),
    # Impossible counts.
    "a count below zero": lambda: _short(pool__kv__protected=np.where(_T == 100.0, -2.0, 5.0)),
    "admissions that did not fit": lambda: _short(
        events__rollbacks=np.where(_T > 120.0, 3.0, 0.0),
        events__forced_fail_allocation=np.where(_T > 200.0, 1.0, 0.0),
    ),
    "more free than exist": lambda: _short(
        pool__mamba__available=np.where(_T > 150.0, 65.0, 60.0), pool__mamba__total=64.0
    ),
    "infinite samples": lambda: _short(open_fds=np.where(_T == 100.0, np.inf, 31.0)),
    # Trends and levels.
    "memory grows": lambda: healthy_record(_LEAKING),
    "memory grows in a young run": lambda: healthy_record(Run(300.0, 120.0, leak_bytes_per_h=8e9)),
    "a resumed run grows": lambda: with_events(healthy_record(_LEAKING), Segment(t_s=600.0)),
    "probes leave memory": _probes_leave_memory,
    "evictions get slower": lambda: working_record(Work(seed=5, worse={"evict_s": 3.0})),
    "hits are lost": lambda: working_record(Work(seed=1, hit_lost=0.4)),
    "few hits": lambda: working_record(Work(seed=1, limits={"hit_rate": 0.65})),
    "thresholds": lambda: _held(
        healthy_record(Run(1200.0, 120.0)),
        "rss.slope.upper<64B/h",
        "rss.slope<64B/h",
        "events.retract.slope<1/h",
        "rss.wobble<3MiB",
    ),
    "no samples": lambda: RunRecord(healthy_record(_SHORT).manifest, {}, ()),
    # Violations that the engine reports itself.
    **{
        f"violation: {kind}": lambda kind=kind: _violation(kind)  # type: ignore[misc]
        for kind in (
            "residual",
            "in_flight_at_idle",
            "locked_at_idle",
            "alias",
            "ledger",
            "tree",
            "ownership",
            "limit",
            "transfer",
            "ended_held",
            "unanswered",
            "passed_over",
            "answer",
            "unknown",
            "of a later engine",
        )
    },
    "violation: residual below zero": lambda: _violation("residual", count=-2),
    "violation: waiting-held of no pool": lambda: _violation("waiting-held", pool=""),
    "a false alarm": lambda: with_events(
        _short(), EngineViolation("residual", "mamba", "3 slots", (1,), 3, t_s=100.0)
    ),
    "killed": lambda: with_events(
        _short(), Crash("oom", "limit of 8 GiB", ("step 18211", "Killed"), t_s=150.0)
    ),
    "hung": lambda: with_events(_short(), Crash("hang", "no step for 30 s", (), t_s=150.0)),
    "the log speaks of a leak": lambda: with_events(_short(), EngineLog(_POOL_LEAK, 3, t_s=90.0)),
    "the log speaks of memory": lambda: with_events(
        _short(), EngineLog(_OUT_OF_MEMORY, 1, t_s=90.0)
    ),
    # Runs with too little evidence.
    "five samples": lambda: _samples("rss_anon_swap_bytes", slice(5)),
    "a path not taken": _uncovered,
    "valid requests refused": lambda: with_manifest(
        with_events(_short(), RequestRefused("temperature is 0.0", t_s=90.0)),
        workload_counts={"submitted": 1150, "valid_refused": 546},
    ),
    "samples missing": _hole,
    "a late sampler": lambda: _short(sampler_late_s=4.0),
    "swapped out": lambda: _short(swap_bytes=np.where(_T > 150, 60 * MB, 0.0)),
    "a full disk": lambda: with_events(_short(), DiskFull("cannot write: no space", t_s=230.0)),
    "a silent worker": _silent,
    "wrong answers": _wrong_answers,
    "answers that are not given again": _answers_not_given_again,
    "only the interface seen": _only_the_interface_seen,
    "restarted by a supervisor": lambda: with_events(restarted(_SHORT), *RESTART),
    "a clock that jumped": lambda: with_events(_short(), ClockJump(seconds=3600.0, t_s=150.0)),
    "no processor": lambda: _short(worker_cpu_wait_s=0.95 * _T),
    "a stolen processor": lambda: _short(host_steal_s=0.6 * _T),
    "probes that stop the engine": lambda: _short(probe_stop_s=0.2 * _T),
    "a metric that never came": _never_sampled,
    "a trace with an error": lambda: with_events(
        with_manifest(_short(), planned_duration_s=7200.0, trace={"path": "a.jsonl"}),
        WorkloadFailed("a.jsonl:301: not JSON.", t_s=200.0),
    ),
    "a bench with an error": lambda: with_events(
        _short(), BenchFailed(part="the sampler", error="KeyError: 'x'", file="e.txt", t_s=99.0)
    ),
    "no memory left": lambda: with_events(_short(), StoppedEarly("memory-low", "3 MiB", t_s=230.0)),
    "interrupted": lambda: with_events(_uncovered(), Interrupted("SIGINT", t_s=239.0)),
    "an analysis with an error": lambda: replace(_short(), series=_Unreadable(_short().series)),
}
