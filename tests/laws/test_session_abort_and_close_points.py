"""Abort a turn, disconnect its client, or close its session, at any step of a run."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.laws.engine_script import every_stride, points
from tests.laws.session_script import (
    SCRIPTS,
    ReferenceTokens,
    SessionRun,
    SessionScript,
)

REFERENCE = ReferenceTokens()
every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)


def healthy(script: SessionScript) -> SessionRun:
    run = SessionRun(script)
    run.run()
    REFERENCE.check(script, run)
    if run.engine.pools.host_tier is not None:
        assert min(run.engine.counters.host_backups, run.engine.counters.host_stays) > 0
    return run


@every_stride
@every_script
def test_a_turn_that_is_aborted_at_any_step_takes_nothing_along(
    script: SessionScript, stride: int
) -> None:
    stages: Counter[str] = Counter()
    whole = healthy(script)

    for at, name in points(whole.turns_before, script.name, stride):
        run = SessionRun.again(script, at)
        session = run.engine.scheduler.sessions.get(name)
        assert session is not None
        assert session.req is not None
        run.engine.abort(session.req.rid)
        run.run()
        REFERENCE.check(script, run)
        stages.update(run.engine.counters.as_dict())

    for stage in ("session_abort_queued", "session_abort_prefill", "session_abort_decode"):
        assert stages[stage] > 0, stage


@every_stride
@every_script
def test_a_session_that_is_closed_at_any_step_gives_everything_back(
    script: SessionScript, stride: int
) -> None:
    closes: Counter[str] = Counter()
    whole = healthy(script)

    for at, name in points(whole.sessions_before, script.name, stride):
        run = SessionRun.again(script, at)
        held = len(run.engine.pools.sessions.slots)
        assert run.engine.close_session(name)
        closes["idle, with a slot"] += held > len(run.engine.pools.sessions.slots)
        run.run()
        REFERENCE.check(script, run)
        assert len(run.engine.scheduler.sessions) == 0
        assert run.engine.counters.session_closes == 2
        closes["deferred"] += run.engine.counters.session_deferred_closes

    assert closes["deferred"] > 0
    assert closes["idle, with a slot"] > 0


@every_stride
@every_script
def test_a_client_that_leaves_at_any_step_leaves_an_open_session(
    script: SessionScript, stride: int
) -> None:
    whole = healthy(script)

    for at, name in points(whole.turns_before, script.name, stride):
        if name != "s":
            continue
        run = SessionRun.again(script, at)
        session = run.engine.scheduler.sessions.get("s")
        assert session is not None
        assert session.req is not None
        rid = session.req.rid
        run.engine.disconnect(rid)
        del run._turn_of[rid]
        run.step()
        assert not session.is_inflight or session.req is not None
        run.run()
        REFERENCE.check(script, run)


@every_stride
@every_script
def test_a_turn_that_is_pushed_back_at_any_step_goes_on_from_what_counts(
    script: SessionScript, stride: int
) -> None:
    whole = healthy(script)
    retracts = 0

    # A sixth of the stride, because at many steps no turn runs that could be retracted.
    for at in range(0, whole.steps, max(1, stride // 6)):
        run = SessionRun.again(script, at)
        run.engine.pause_generation("retract")
        run.engine.continue_generation()
        run.run()
        REFERENCE.check(script, run)
        retracts += run.engine.counters.session_retracts

    assert retracts > 0
