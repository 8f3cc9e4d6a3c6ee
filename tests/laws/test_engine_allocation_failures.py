"""If the k-th allocation of a run fails, for any k, nothing is lost and nothing stays held."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hybridbench.engine.events import EventKind
from hybridbench.engine.scheduler.pools import Pools
from tests.builders import assert_idle_and_clean
from tests.laws.engine_script import (
    HOST_STATES,
    HOST_STATES_WRITE_BACK,
    HOST_TIER,
    HOST_WINDOWS,
    HOST_WINDOWS_WRITE_BACK,
    HOST_WRITE_BACK,
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
    UNIFIED_HOST_STATES_WRITE_BACK,
    UNIFIED_PAGED,
    UNIFIED_TRACKED,
    UNIFIED_WINDOWS,
    WINDOWS,
    WINDOWS_PAGED,
    Script,
    ScriptedRun,
    every_stride,
    first_of,
)

# Calls that are always tried: those of the first request, and of the second, which hits it.
FIRST_CALLS = 2


class FailsOnce:
    """Wraps an allocator's method so that its k-th call returns None; 0 fails no call."""

    def __init__(self, healthy: Callable[..., object], k: int) -> None:
        self._healthy = healthy
        self._k = k
        self.calls = 0

    def __call__(self, *args: object, **kwargs: object) -> object:
        self.calls += 1
        return None if self.calls == self._k else self._healthy(*args, **kwargs)

    def has_failed(self) -> bool:
        """Return whether the k-th call has been made; until then the run is unchanged."""
        return self.calls >= self._k


def calls_to_fail(count: int, name: str, stride: int) -> Iterator[int]:
    """Return the calls to fail, numbered from 1 to ``count``.

    They are the first ones and then every ``stride``-th, with an offset that depends on ``name``.
    """
    first = first_of(name, stride)
    return (k for k in range(1, count + 1) if k <= FIRST_CALLS or k % stride == first)


def decode_call(pools: Pools) -> str:
    """Return the name of the method that allocates a decode step's tokens."""
    return "alloc" if pools.page_size == 1 else "alloc_decode"


def _run_with_failure(script: Script, where: str, k: int) -> tuple[ScriptedRun, FailsOnce]:
    run = ScriptedRun(script)
    pools = run.engine.pools
    holder: object
    if where == "state slots":
        holder, method = pools.mamba_allocator, "alloc"
    elif where == "host states":
        holder, method = pools.host_mamba_allocator, "alloc"
    elif where == "host windows":
        holder, method = pools.host_swa_allocator, "alloc"
    elif where == "loads of windows":
        assert pools.swa_allocator is not None
        holder, method = pools.swa_allocator.swa_attn_allocator, "alloc"
    elif where == "host tokens":
        holder, method = pools.host_allocator, "alloc"
    else:
        holder, method = {
            "rows": (pools.req_to_token_pool, "alloc"),
            "prefill tokens": (pools.token_to_kv_pool_allocator, "alloc_extend"),
            "decode tokens": (pools.token_to_kv_pool_allocator, decode_call(pools)),
            "loads": (pools.token_to_kv_pool_allocator, "alloc_full"),
        }[where]
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
        (PAGED, "rows"),
        (PAGED, "prefill tokens"),
        (PAGED, "decode tokens"),
        (HYBRID_OVERLAP, "state slots"),
        (HYBRID_OVERLAP, "prefill tokens"),
        (HYBRID_OVERLAP, "decode tokens"),
        (PAGED_OVERLAP, "prefill tokens"),
        (PAGED_OVERLAP, "decode tokens"),
        # Draft chains are allocated like prefills; if that fails, the step decodes without drafts.
        (HYBRID_DRAFTS, "prefill tokens"),
        (PAGED_DRAFTS, "prefill tokens"),
        (WINDOWS, "prefill tokens"),
        (WINDOWS, "decode tokens"),
        (WINDOWS_PAGED, "prefill tokens"),
        (TRACKED, "state slots"),
        (TRACKED, "rows"),
        (TRACKED_DRAFTS, "state slots"),
        (TRACKED_DRAFTS, "prefill tokens"),
        (TRACKED_PAGES, "state slots"),
        (TRACKED_PAGES, "prefill tokens"),
        (TRACKED_PAGES, "decode tokens"),
        (UNIFIED, "state slots"),
        (UNIFIED, "rows"),
        (UNIFIED, "prefill tokens"),
        (UNIFIED, "decode tokens"),
        (UNIFIED_PAGED, "prefill tokens"),
        (UNIFIED_TRACKED, "state slots"),
        (UNIFIED_WINDOWS, "prefill tokens"),
        (UNIFIED_WINDOWS, "decode tokens"),
        (HOST_TIER, "prefill tokens"),
        (HOST_TIER, "decode tokens"),
        (HOST_TIER, "host tokens"),
        (HOST_TIER, "loads"),
        (STORAGE, "host tokens"),
        (STORAGE, "loads"),
        (HOST_WRITE_BACK, "host tokens"),
        (HOST_WRITE_BACK, "loads"),
        (HOST_STATES, "state slots"),
        (HOST_STATES, "host states"),
        (HOST_STATES, "host tokens"),
        (HOST_STATES, "loads"),
        (HOST_STATES_WRITE_BACK, "host states"),
        (UNIFIED_HOST, "prefill tokens"),
        (UNIFIED_HOST, "host tokens"),
        (UNIFIED_HOST, "loads"),
        (UNIFIED_HOST_STATES, "state slots"),
        (UNIFIED_HOST_STATES, "host states"),
        (UNIFIED_HOST_STATES, "host tokens"),
        (UNIFIED_HOST_STATES, "loads"),
        (UNIFIED_HOST_STATES_WRITE_BACK, "host states"),
        (HOST_WINDOWS, "prefill tokens"),
        (HOST_WINDOWS, "host windows"),
        (HOST_WINDOWS, "host tokens"),
        (HOST_WINDOWS, "loads"),
        (HOST_WINDOWS, "loads of windows"),
        (HOST_WINDOWS_WRITE_BACK, "decode tokens"),
        (HOST_WINDOWS_WRITE_BACK, "host windows"),
    ],
    ids=lambda value: value.name if isinstance(value, Script) else value,
)
def test_any_single_failed_allocation_loses_nothing_and_changes_no_token(
    script: Script, where: str, stride: int
) -> None:
    healthy, counting = _run_with_failure(script, where, 0)
    assert set(healthy.ends.values()) == {EventKind.FINISHED}
    if script in (HYBRID_DRAFTS, PAGED_DRAFTS):
        assert healthy.engine.counters.verify_steps > 5

    for k in calls_to_fail(counting.calls, f"{script.name}, {where}", stride):
        run, failing = _run_with_failure(script, where, k)
        assert failing.has_failed()
        assert_idle_and_clean(run.engine)
        assert run.outputs == healthy.outputs, f"failing call {k}"
        assert set(run.outputs) == set(script.prompts)

    assert counting.calls > (1 if where.startswith("loads") else 4), "the run hardly allocates"
