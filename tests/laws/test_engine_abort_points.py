"""After a request is aborted or its client disconnects, at any step, nothing stays held."""

from __future__ import annotations

from collections import Counter

import pytest

from hybridbench.engine.events import EventKind
from tests.builders import assert_idle_and_clean
from tests.laws.engine_script import (
    HOST_STATES,
    HOST_TIER,
    HOST_WINDOWS,
    HYBRID,
    HYBRID_DRAFTS,
    HYBRID_OVERLAP,
    PAGED,
    PAGED_DRAFTS,
    PAGED_OVERLAP,
    STORAGE,
    TRACKED,
    TRACKED_DRAFTS,
    TRACKED_PAGES,
    UNIFIED,
    UNIFIED_HOST,
    UNIFIED_HOST_STATES,
    UNIFIED_PAGED,
    UNIFIED_WINDOWS,
    WINDOWS,
    WINDOWS_PAGED,
    Script,
    ScriptedRun,
    every_stride,
    points,
)


@every_stride
@pytest.mark.parametrize(
    ("how", "script"),
    [
        ("abort", HYBRID),
        ("disconnect", HYBRID),
        ("abort", PAGED),
        ("abort", HYBRID_OVERLAP),
        ("abort", PAGED_OVERLAP),
        ("abort", HYBRID_DRAFTS),
        ("abort", PAGED_DRAFTS),
        ("abort", WINDOWS),
        ("abort", WINDOWS_PAGED),
        ("abort", TRACKED),
        ("abort", TRACKED_PAGES),
        ("abort", TRACKED_DRAFTS),
        ("abort", UNIFIED),
        ("abort", UNIFIED_PAGED),
        ("abort", UNIFIED_WINDOWS),
        ("abort", HOST_TIER),
        ("abort", HOST_STATES),
        ("abort", UNIFIED_HOST),
        ("abort", UNIFIED_HOST_STATES),
        ("abort", HOST_WINDOWS),
        ("abort", STORAGE),
    ],
    ids=lambda value: value.name if isinstance(value, Script) else value,
)
def test_a_request_that_leaves_at_any_step_takes_nothing_along(
    how: str, script: Script, stride: int
) -> None:
    healthy = ScriptedRun(script)
    healthy.run()
    if script in (HYBRID_DRAFTS, PAGED_DRAFTS):
        assert healthy.engine.counters.draft_tails > 0
    if healthy.engine.pools.host_tier is not None:
        assert healthy.engine.counters.host_load_backs > 0
    stages: Counter[str] = Counter()

    for at, rid in points(healthy.stages_before, script.name, stride):
        run = ScriptedRun.again(script, at)
        assert run.engine.abort(rid) if how == "abort" else run.engine.disconnect(rid)
        run.run()
        assert_idle_and_clean(run.engine)
        others = {other: tokens for other, tokens in run.outputs.items() if other != rid}
        assert others == {other: healthy.outputs[other] for other in others}
        assert len(others) == len(script.prompts) - 1
        assert run.ends.get(rid) == (EventKind.ABORTED if how == "abort" else None)
        counters = run.engine.counters
        assert counters.abort_queued + counters.abort_prefill + counters.abort_decode == 1
        stages.update(counters.as_dict())

    assert stages["abort_queued"] > 0
    assert stages["abort_prefill"] > 0
    assert stages["abort_decode"] > 0
