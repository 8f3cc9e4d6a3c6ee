"""Slot arithmetic at idle checkpoints."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.checkpoints import checkpoint_findings
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import EngineViolation
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.manifest import OBSERVED
from tests.unit.analysis.records import (
    Run,
    checkpoint,
    healthy_record,
    with_checkpoints,
    with_events,
    with_series,
)

RUN = Run(duration_s=240.0, steady_s=60.0)


def found(record: RunRecord) -> list[Finding]:
    return checkpoint_findings(Facts.of(record))


def residuals(*values: float) -> RunRecord:
    """A run with a checkpoint every 30 s; ``values`` are the state slots missing at each."""
    rests = [checkpoint(30.0 * (i + 1), mamba={"residual": v}) for i, v in enumerate(values)]
    return with_checkpoints(healthy_record(RUN), rests)


def test_a_sound_run_has_nothing() -> None:
    assert found(healthy_record(RUN)) == []


@pytest.mark.parametrize("values", [(3.0,), (0.0, 2.0), (1.0, 1.0, 4.0)])
def test_slots_missing_at_the_last_rest_are_a_leak(values: tuple[float, ...]) -> None:
    (finding,) = found(residuals(*values))

    assert (finding.kind, finding.verdict) == ("residual", VerdictKind.LEAK)
    assert finding.subject == "mamba: state slots"
    assert finding.data["missing"] == values[-1]


def test_slots_that_came_back_are_not() -> None:
    assert found(residuals(2.0, 2.0, 0.0)) == []


def test_missing_slots_are_named_with_their_last_holder() -> None:
    owners = ("REQ", *(["TREE"] * 11))
    unnamed = EngineViolation("residual", "mamba", slots=tuple(range(3, 15)), count=12, t_s=61.0)
    named = msgspec.structs.replace(unnamed, owners=owners)

    (finding,) = found(with_events(residuals(0.0, 12.0), named))
    (older,) = found(with_events(residuals(0.0, 12.0), unnamed))

    slots = {"slots": list(range(3, 13)), "slots_reported": 12}
    assert finding.data == {**older.data, "slot_holders": list(owners[:10])}
    assert older.data == {"pool": "mamba", "missing": 12.0, "at_checkpoints": [0.0, 12.0], **slots}


@pytest.mark.parametrize(("slots", "tree"), [((), 2), ((), 1), ((3,), 2), ((), None)])
def test_a_tree_that_counts_too_few_is_told_from_slots_that_nobody_holds(
    slots: tuple[int, ...], tree: int | None
) -> None:
    reports = [EngineViolation("residual", "mamba", slots=slots, count=1, checkpoint=2, t_s=61.0)]
    if tree is not None:
        reports.append(EngineViolation("tree", "tree", checkpoint=tree, t_s=61.0))

    (finding,) = found(with_events(residuals(0.0, 1.0), *reports))

    every_slot_has_a_holder = "every slot has a holder" in finding.title
    assert every_slot_has_a_holder == (not slots and tree == 2)


def test_a_negative_residual_is_a_contradiction() -> None:
    (finding,) = found(residuals(0.0, -1.0, 0.0))

    assert finding.verdict is VerdictKind.INVARIANT


def test_the_event_that_loses_slots_is_named_with_its_integer_rate() -> None:
    record = residuals(0.0, 12.0)
    t = record.series["events.retracts"].t_s
    closes = np.floor(np.maximum(t - 20, 0) / 10.0)
    lost = with_series(
        record,
        Series("events.session_closes", t, closes),
        Series("pool.mamba.residual", t, 3.0 * closes),
    )

    (finding,) = found(lost)

    assert finding.driver == "session_closes"
    assert finding.data["driver_exact"]
    assert (finding.rates[0].value, finding.rates[0].unit) == (3.0, "state slots")


def test_a_dead_worker_is_judged_by_its_last_samples() -> None:
    record = with_checkpoints(healthy_record(RUN), [])
    t = record.series["events.retracts"].t_s
    missing = Series("pool.mamba.residual", t, np.where(t > 100, 5.0, 0.0))
    busy = Series("pool.mamba.residual", t, np.where(t % 2 == 0, 5.0, 0.0))

    (finding,) = found(with_series(record, missing))

    assert finding.data["missing"] == 5.0
    assert found(with_series(record, busy)) == []


def test_a_checkpoint_with_requests_in_the_engine_proves_nothing() -> None:
    rest = checkpoint(100.0, mamba={"residual": 4.0})
    busy = msgspec.structs.replace(rest, running=3)

    assert found(with_checkpoints(healthy_record(RUN), [busy])) == []


def test_slots_of_requests_that_no_longer_exist_are_a_leak() -> None:
    record = with_events(healthy_record(RUN), checkpoint(239.0, kv={"in_flight": 40.0}))

    (finding,) = found(record)

    assert (finding.kind, finding.verdict) == ("held-at-idle", VerdictKind.LEAK)


def sessions(*rows_opens_closes: tuple[float, int, int]) -> RunRecord:
    """Idle checkpoints with the rows that sessions hold, and sessions opened and closed so far."""
    rests = []
    for i, (rows, opens, closes) in enumerate(rows_opens_closes):
        at = checkpoint(60.0 * (i + 1), mamba={"session_held": 3.0 * rows})
        rests.append(
            msgspec.structs.replace(
                at,
                pools={**at.pools, "req": {"total": 64.0, "session_held": rows}},
                counters={"session_opens": opens, "session_closes": closes},
            )
        )
    return with_checkpoints(healthy_record(RUN), rests)


def test_sessions_that_hold_a_row_after_they_were_closed_are_a_leak() -> None:
    (finding,) = found(sessions((2, 6, 4), (5, 12, 10), (4, 20, 20)))

    assert (finding.kind, finding.verdict) == ("held-by-closed-sessions", VerdictKind.LEAK)
    assert finding.title == "4 closed sessions still hold slots"
    assert finding.data["at_checkpoints"] == [0.0, 3.0, 4.0]
    assert finding.data["held"] == {"mamba": 12.0, "req": 4.0}
    assert finding.since_s == 120.0


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_open_sessions_may_hold_a_row_each(rows: float) -> None:
    assert found(sessions((rows, 6, 4))) == []


def test_the_close_that_leaves_a_row_behind_is_named() -> None:
    record = sessions((0, 0, 0), (23, 23, 23))
    t = record.series["events.retracts"].t_s
    closes = np.floor(np.maximum(t - 20, 0) / 10.0)
    opens = np.floor(np.maximum(t - 12, 0) / 10.0)
    kept = with_series(
        record,
        Series("events.session_opens", t, opens),
        Series("events.session_closes", t, closes),
        Series("pool.req.session_held", t, opens),
    )

    (finding,) = found(kept)

    assert finding.driver == "session_closes"
    assert (finding.rates[0].value, finding.rates[0].unit) == (1.0, "sessions")


def in_use_at_rest(*values: float, pool: str = "kv_blocks") -> RunRecord:
    """Idle points of a server whose gauges report ``values`` in use."""
    rests = [
        msgspec.structs.replace(checkpoint(30.0 * (i + 1)), pools={pool: {"in_use": v}})
        for i, v in enumerate(values)
    ]
    return with_checkpoints(healthy_record(RUN), rests)


def test_blocks_that_stay_in_use_at_rest_are_a_leak() -> None:
    (finding,) = found(in_use_at_rest(0.0, 0.0, 2.0, 3.0, 3.0, 4.0, 9.0, 11.0, 12.0, 17.0))

    assert (finding.kind, finding.verdict) == ("in-use-at-idle", VerdictKind.LEAK)
    assert finding.subject == "kv_blocks: KV blocks"
    assert finding.data["in_use"] == 17.0
    assert finding.since_s == 90.0


def test_a_gauge_that_lags_may_rise_a_few_times_by_chance() -> None:
    """What SGLang 0.5.13 showed: the tokens of the last batch before each idle point."""
    (finding,) = found(in_use_at_rest(25.0, 46.0, 86.0, 88.0, pool="kv"))

    assert (finding.kind, finding.verdict) == ("in-use-at-idle", VerdictKind.INCONCLUSIVE)
    assert finding.basis.needs_longer_run
    assert finding.cause.startswith("either the server reports those of its last requests")


def test_a_share_that_rises_at_rest_may_be_the_prefix_cache() -> None:
    (finding,) = found(in_use_at_rest(0.0, 2e4, 3e4, 7e4, pool="kv_cache"))

    assert (finding.kind, finding.verdict) == ("in-use-at-idle", VerdictKind.INCONCLUSIVE)
    assert not finding.basis.needs_longer_run
    assert finding.title.startswith("7.00% of the KV cache is in use with no request in the server")
    assert finding.cause == "either pages are lost, or the server counts its prefix cache as in use"


@pytest.mark.parametrize(("kept", "served"), [(0.0, 100_000.0), (40.0, 0.0)])
def test_what_a_server_kept_and_served_before_the_run_does_not_hide_the_driver(
    kept: float, served: float
) -> None:
    record = healthy_record(RUN)
    t = record.series["events.retracts"].t_s
    record = with_series(record, Series("scraped.refused_total", t, served + np.floor(t / 7.0)))
    rests = []
    for at_s in (3.0, 60.0, 120.0, 180.0, 230.0):
        refused = float(at_s // 7.0)
        shown = {"kv_blocks": {"in_use": kept + 2.0 * refused}}
        counts = {"refused_total": served + refused}
        rests.append(msgspec.structs.replace(checkpoint(at_s), pools=shown, counters=counts))
    target = msgspec.structs.replace(record.manifest.target, kind=OBSERVED)
    watched = msgspec.structs.replace(record.manifest, target=target)

    (finding,) = found(with_checkpoints(replace(record, manifest=watched), rests))

    assert finding.driver == "refused_total"
    assert (finding.rates[0].value, finding.rates[0].lower, finding.rates[0].upper) == (2, 2, 2)


def test_an_account_of_every_slot_decides_at_once() -> None:
    locked = checkpoint(100.0, kv={"in_use": 48.0})

    (finding,) = found(with_checkpoints(healthy_record(RUN), [locked]))

    assert (finding.kind, finding.subject) == ("in-use-at-idle", "kv: KV tokens")


@pytest.mark.parametrize(
    "values",
    [
        # Blocks that a server keeps for itself; a lagging gauge; too few points.
        (4.0, 4.0, 4.0, 4.0, 4.0),
        (0.0, 3.0, 5.0, 2.0, 6.0, 7.0),
        (0.0, 3.0, 5.0),
    ],
)
def test_blocks_in_use_at_rest_prove_nothing_unless_they_only_become_more(
    values: tuple[float, ...],
) -> None:
    assert found(in_use_at_rest(*values)) == []


def test_a_pool_that_the_last_idle_point_does_not_show_proves_nothing() -> None:
    """SGLang does not report how many state slots open sessions hold."""
    counts = {"kv": {"in_use": 0.0}, "mamba": {"in_use": 4.0}}
    without = {"kv": {"in_use": 0.0}}
    rests = [
        msgspec.structs.replace(checkpoint(100.0 * (i + 1)), pools=pools)
        for i, pools in enumerate((counts, without))
    ]

    assert found(with_checkpoints(healthy_record(RUN), rests)) == []


@pytest.mark.parametrize(("last", "now"), [(0.0, "0"), (2.0, "2")])
def test_a_surplus_that_is_gone_at_the_end_keeps_its_size(last: float, now: str) -> None:
    rests = [checkpoint(100.0, kv={"residual": -3}), checkpoint(200.0, kv={"residual": last})]

    twice, *_ = found(with_checkpoints(healthy_record(RUN), rests))

    assert twice.title == "3 KV tokens have more than one holder while idle"
    assert f"residual at the last checkpoints: -3, {now}" in twice.evidence


def test_the_steps_that_lost_slots_part_counters_that_the_samples_cannot() -> None:
    # Queued and decode aborts come in the same bursts; some of the queued ones lose a slot.
    rng = np.random.default_rng(5)
    record = residuals(20.0, 40.0)
    t = record.series["events.retracts"].t_s
    bursts = np.repeat(rng.poisson(3.0, t.size // 4 + 1), 4)[: t.size]
    queued = np.cumsum(rng.poisson(bursts)).astype(np.float64)
    decode = np.cumsum(rng.poisson(bursts)).astype(np.float64)
    lost = np.cumsum(rng.binomial(np.diff(queued, prepend=0.0).astype(np.int64), 0.4))
    run = with_series(
        record,
        Series("events.abort_queued", t, queued),
        Series("events.abort_decode", t, decode),
        Series("pool.mamba.residual", t, lost.astype(np.float64)),
    )
    steps = {"steps_with.steps": 9000.0, "lost_taken.mamba.steps": 90.0}
    moved = {
        "abort_queued": (700.0, 90.0),
        "abort_decode": (700.0, 9.0),
        "finishes": (5000.0, 90.0),
    }
    for name, (all_steps, losing) in moved.items():
        steps[f"steps_with.{name}"] = all_steps
        steps[f"lost_taken.mamba.{name}"] = losing
    looked = with_series(run, *(Series(n, t[-1:], np.array([v])) for n, v in steps.items()))

    (finding,) = found(looked)

    assert finding.driver == "abort_queued"
    assert "rivals" not in finding.data
    (rate, *_) = finding.rates
    assert 0 < rate.lower < 0.4 < rate.upper
