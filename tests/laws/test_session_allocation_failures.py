"""If the k-th allocation of a run with sessions fails, for any k, nothing is lost."""

from __future__ import annotations

from itertools import product

import pytest

from hybridbench.engine.events import EventKind
from tests.laws.engine_script import every_stride
from tests.laws.session_script import (
    ATTENTION_AHEAD,
    HOST_TIERS,
    HYBRID,
    HYBRID_AHEAD,
    PAGED,
    TRACKED,
    TRACKED_AHEAD,
    UNIFIED,
    UNIFIED_WINDOWS,
    WINDOWS_AHEAD,
    ReferenceTokens,
    SessionRun,
    SessionScript,
)
from tests.laws.test_engine_allocation_failures import FailsOnce, calls_to_fail, decode_call

REFERENCE = ReferenceTokens()


def run_with_failure(script: SessionScript, where: str, k: int) -> tuple[SessionRun, FailsOnce]:
    run = SessionRun(script)
    pools = run.engine.pools
    holder: object = pools.token_to_kv_pool_allocator
    method = {"prefill tokens": "alloc_extend", "decode tokens": decode_call(pools)}.get(
        where, "alloc"
    )
    if where == "rows":
        holder = pools.req_to_token_pool
    elif where == "host tokens":
        holder = pools.host_allocator
    elif where == "state slots":
        holder = pools.mamba_allocator
    failing = FailsOnce(getattr(holder, method), k)
    setattr(holder, method, failing)
    run.looks = failing.has_failed
    run.run()
    return run, failing


@every_stride
@pytest.mark.parametrize(
    ("script", "where"),
    [
        (HYBRID, "state slots"),
        (HYBRID, "rows"),
        (HYBRID, "prefill tokens"),
        (HYBRID, "decode tokens"),
        (PAGED, "prefill tokens"),
        (PAGED, "decode tokens"),
        (TRACKED, "state slots"),
        (TRACKED, "prefill tokens"),
        *product(HYBRID_AHEAD, ["state slots", "prefill tokens"]),
        *product(ATTENTION_AHEAD, ["prefill tokens"]),
        *[
            (script, "decode tokens")
            for script in ATTENTION_AHEAD
            if "guesses" not in script.name and "both" not in script.name
        ],
        (TRACKED_AHEAD, "state slots"),
        (TRACKED_AHEAD, "prefill tokens"),
        (UNIFIED, "state slots"),
        (UNIFIED, "prefill tokens"),
        *product([*WINDOWS_AHEAD, UNIFIED_WINDOWS, *HOST_TIERS], ["prefill tokens"]),
        *product(HOST_TIERS, ["host tokens"]),
    ],
    ids=lambda value: value.name if isinstance(value, SessionScript) else value,
)
def test_any_single_failed_allocation_loses_nothing(
    script: SessionScript, where: str, stride: int
) -> None:
    _, counting = run_with_failure(script, where, 0)
    for k in calls_to_fail(counting.calls, f"{script.name}, {where}", stride):
        run, failing = run_with_failure(script, where, k)
        assert failing.has_failed()
        assert set(run.ends.values()) == {EventKind.FINISHED}, f"failing call {k}"
        assert len(run.ends) == 8
        REFERENCE.check(script, run)

    assert counting.calls > 3, "the run hardly allocates"
