"""With storage behind the host tier, tokens are those without reuse and nothing is lost.

This holds whenever pages arrive, and if they do not.  Pages are copied only at the poll that their
pace gives, so that a step that reads too early is detected.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from hybridbench.engine.cache.storage_tier import StorageTier
from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.hicache_storage import HiCacheStorage, PageHash, StorageError
from hybridbench.engine.memory.kv_pool import KVHostCopy
from hybridbench.engine.memory.owners import DoubleFreeError
from hybridbench.engine.memory.storage_controller import (
    PrefetchOperation,
    StorageController,
)
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import HiCache, PrefetchPolicy
from hybridbench.foundation.engine_config import HiCacheStorage as Settings
from hybridbench.foundation.errors import ConfigError
from tests.builders import (
    assert_idle_and_clean,
    make_attention_engine,
    make_engine,
    run_to_idle,
)
from tests.engine_programs import EngineProgram, run_against_oracle
from tests.host_transfers import ChosenStorageIO, ChosenTransfers
from tests.laws.engine_machine import EngineMachine, engine_examples
from tests.laws.engine_script import STORAGE, ScriptedRun, every_stride, storage_script
from tests.session_programs import SessionProgram

OVERLAP = {"enable_overlap_schedule": True}
# Page size, host pool as a multiple of the device pool, and other settings.
SQUEEZES: dict[str, tuple[int, float, dict[str, Any]]] = {
    "small host pool": (1, 0.5, {}),
    "as large as the device": (1, 1.0, {"chunked_prefill_size": 24}),
    "pages": (4, 0.6, {"kv_tokens": 200}),
    "pages, overlapped": (4, 0.7, {"kv_tokens": 200, **OVERLAP}),
    "write back": (4, 0.5, {"kv_tokens": 200, "write_policy": "write_back"}),
    "selective": (4, 0.7, {"kv_tokens": 200, "write_policy": "write_through_selective"}),
    "overlapped": (1, 0.5, OVERLAP),
    "longest prefix first": (1, 0.6, {"schedule_policy": "lpm"}),
}
POLICIES: tuple[PrefetchPolicy, ...] = ("best_effort", "wait_complete", "timeout")


def paces(seed: int, most: int) -> Iterator[int]:
    rng = random.Random(seed)
    while True:
        yield rng.randint(0, most)


class TickingClock(FakeClock):
    """Advances by a second each time it is read."""

    def monotonic_s(self) -> float:
        self.advance(1.0)
        return super().monotonic_s()


def make_program(
    name: str, seed: int, policy: PrefetchPolicy, pace: int = 9, error_rate: float = 0.0
) -> EngineProgram:
    page_size, ratio, changes = SQUEEZES[name]
    changes = {"kv_tokens": 180, "max_context_len": 352, "max_prefill_tokens": 256, **changes}
    write_policy = changes.pop("write_policy", "write_through")
    storage = Settings(
        ratio=6.0,
        prefetch_policy=policy,
        prefetch_timeout_s=20.0,
        prefetch_threshold=4,
        error_rate=error_rate,
    )
    make = partial(make_attention_engine, page_size)
    return EngineProgram(
        make(
            clock=TickingClock(),
            hicache=HiCache(ratio=ratio, write_policy=write_policy),
            hicache_storage=storage,
            transfers=ChosenTransfers(paces(seed, 3)),
            storage_io=ChosenStorageIO(paces(seed, pace)),
            **changes,
        ),
        random.Random(seed),
        stretch=2 if page_size > 1 else 1,
        longest_prompt=90 if page_size > 1 else 60,
        make_oracle=partial(make, max_context_len=352),
    )


def check_empty(program: EngineProgram) -> None:
    assert program.engine.flush_cache()
    assert_idle_and_clean(program.engine)
    host = program.engine.pool_stats()["host_kv"]
    assert host.available == host.total


@pytest.mark.parametrize("actions", [80, pytest.param(400, marks=pytest.mark.slow)])
def test_every_program_gives_the_tokens_of_the_engine_without_reuse(actions: int) -> None:
    programs = (
        (f"seed {seed}, {name}, {policy}", make_program(name, seed, policy, error_rate=0.02))
        for seed, (name, policy) in enumerate(
            (name, POLICIES[place % 3]) for place, name in enumerate(SQUEEZES)
        )
    )

    seen = run_against_oracle(programs, actions, check_empty)

    for event in (
        "host_load_backs", "host_evictions", "host_evictions_refused", "storage_backups",
        "storage_prefetches", "storage_prefetched_tokens", "storage_early_stops",
        "storage_failures", "abort_queued", "retracts",
    ):  # fmt: skip
        assert seen[event] > 0, (event, seen)


class StorageMachine(EngineMachine):
    """Traffic, paces and failures chosen by Hypothesis."""

    @initialize(
        name=st.sampled_from(sorted(SQUEEZES)),
        seed=st.integers(0, 2**16),
        policy=st.sampled_from(POLICIES),
        pace=st.integers(1, 12),
        error_rate=st.sampled_from((0.0, 0.01, 0.3)),
    )
    def build(
        self, name: str, seed: int, policy: PrefetchPolicy, pace: int, error_rate: float
    ) -> None:
        self.program = make_program(name, seed, policy, pace, error_rate)


TestStorageMachine = StorageMachine.TestCase
TestStorageMachine.settings = engine_examples(0.4, steps=25)


def test_sessions_keep_to_it() -> None:
    seen: Counter[str] = Counter()
    for seed, policy in enumerate(POLICIES):
        clock = FakeClock()
        engine = make_attention_engine(
            clock=clock,
            kv_tokens=100,
            hicache=HiCache(ratio=1.5),
            hicache_storage=Settings(ratio=6.0, prefetch_policy=policy, prefetch_threshold=4),
            transfers=ChosenTransfers(paces(seed, 3)),
            storage_io=ChosenStorageIO(paces(seed, 9)),
        )
        program = SessionProgram(engine, random.Random(seed), clock, longest_prompt=90)
        program._make_oracle = make_attention_engine
        program.run(220)
        program.compare_with_oracle()
        seen.update(engine.counters.as_dict())

    assert min(seen["session_restores"], seen["storage_prefetched_tokens"]) > 0, seen


class FailingStorage:
    """Wraps an engine's storage so that the k-th call fails."""

    def __init__(self, storage: HiCacheStorage, k: int) -> None:
        self._storage = storage
        self._left = k
        self.calls = 0

    def exists(self, key: PageHash) -> bool:
        self._count()
        return self._storage.exists(key)

    def get(self, key: PageHash) -> KVHostCopy | None:
        self._count()
        return self._storage.get(key)

    def set(self, key: PageHash, value: KVHostCopy) -> None:
        self._count()
        self._storage.set(key, value)

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._left:
            raise StorageError("chosen to fail")


def controller_of(engine: Engine) -> StorageController:
    tree = engine.pools.storage_tier
    assert tree is not None
    assert tree.storage_controller is not None
    return tree.storage_controller


def healthy_run() -> ScriptedRun:
    healthy = ScriptedRun(STORAGE)
    healthy.run()
    counters = healthy.engine.counters
    for event in ("storage_backups", "storage_prefetched_tokens", "storage_early_stops"):
        assert getattr(counters, event) > 0, counters
    return healthy


@every_stride
def test_any_failed_call_of_the_storage_loses_nothing_and_changes_no_token(stride: int) -> None:
    healthy = healthy_run()
    k, calls = 1, 1

    while k <= calls:
        run = ScriptedRun(STORAGE)
        controller = controller_of(run.engine)
        failing = FailingStorage(controller.storage, k)
        controller.storage = failing
        run.run()
        assert_idle_and_clean(run.engine)
        assert run.outputs == healthy.outputs, f"failing call {k}"
        assert run.engine.counters.storage_failures == (failing.calls >= k)
        calls = failing.calls
        k += stride

    assert calls > 20, "the run hardly uses the storage"


@pytest.mark.parametrize("policy", ["best_effort", "wait_complete"])
def test_pages_that_come_at_any_pace_change_no_token(policy: PrefetchPolicy) -> None:
    healthy = healthy_run()
    stops = 0

    for pace in ((0, 1), (2,), (3, 0), (0,) * 12 + (50,)):
        run = ScriptedRun(storage_script(f"pace {pace}", pace, policy))
        run.run()
        assert_idle_and_clean(run.engine)
        assert run.outputs == healthy.outputs, f"{policy}, {pace}"
        stops += run.engine.counters.storage_early_stops

    assert (stops > 0) == (policy == "best_effort")


@every_stride
def test_a_request_that_leaves_while_it_waits_for_its_prefetch_takes_nothing_along(
    stride: int,
) -> None:
    script = storage_script("slow", (0, 0, 1), "wait_complete")
    healthy = ScriptedRun(script)
    waits = []
    while not healthy.is_over:
        waits += [healthy.steps] * bool(prefetching(healthy.engine))
        healthy.step()
    tried = waits[:: min(stride, 6)]

    for at in tried:
        run = ScriptedRun.again(script, at)
        assert all(run.engine.abort(rid) for rid in prefetching(run.engine))
        run.run()
        assert_idle_and_clean(run.engine)
        ended = {rid for rid, reason in run.reasons.items() if reason}
        assert all(run.outputs[rid] == healthy.outputs[rid] for rid in run.outputs.keys() - ended)

    assert len(tried) > 3


def prefetching(engine: Engine) -> list[str]:
    """Return the requests that wait for their prefetch."""
    tree = engine.pools.storage_tier
    assert tree is not None
    waiting = engine.scheduler.waiting_queue
    return [req.rid for req in waiting if req.arrival in tree.ongoing_prefetch]


def test_a_client_that_leaves_and_returns_under_the_same_id_waits_for_its_own_prefetch() -> None:
    engine = make_attention_engine(
        hicache=HiCache(ratio=2.0),
        hicache_storage=Settings(ratio=4.0, prefetch_policy="wait_complete", prefetch_threshold=4),
        storage_io=ChosenStorageIO(cycle((1,))),
    )
    prompt, params = list(range(1, 41)), SamplingParams(max_new_tokens=4, ignore_eos=True)
    engine.submit("first", prompt, params)
    first = [event.output_ids for event in run_to_idle(engine) if event.ends_request]
    assert engine.flush_cache()

    engine.submit("again", prompt, params)
    engine.disconnect("again")
    engine.submit("again", prompt, params)
    again = [event for event in run_to_idle(engine) if event.ends_request]

    assert [event.output_ids for event in again] == first
    assert_idle_and_clean(engine)
    assert engine.flush_cache()
    assert engine.pool_stats()["host_kv"].available == engine.pool_stats()["host_kv"].total


@pytest.mark.parametrize("page_size", [1, 4])
def test_pages_that_come_from_the_storage_count_as_stored_in_the_tree(page_size: int) -> None:
    engine = make_attention_engine(
        page_size,
        hicache=HiCache(ratio=2.0),
        hicache_storage=Settings(ratio=4.0, prefetch_policy="wait_complete", prefetch_threshold=4),
        transfers=ChosenTransfers(),
        storage_io=ChosenStorageIO(),
    )
    stored = []
    for rid in ("first", "again"):
        engine.submit(rid, list(range(1, 41)), SamplingParams(max_new_tokens=4, ignore_eos=True))
        run_to_idle(engine)
        stored.append(engine.counters.kv_blocks_stored)
        assert engine.flush_cache()

    assert engine.counters.storage_prefetched_tokens > 30
    assert stored[1] == 2 * stored[0]


def test_a_paused_engine_takes_what_its_storage_brings_and_can_be_flushed() -> None:
    run = ScriptedRun(storage_script("slow", (0, 1), "wait_complete"))
    tree = run.engine.pools.storage_tier
    assert tree is not None
    while not tree.ongoing_prefetch:
        run.step()
    run.engine.pause_generation("retract")

    run_to_idle(run.engine)

    assert run.engine.waiting_requests
    assert not tree.ongoing_prefetch
    assert run.engine.flush_cache()


def test_threads_that_read_and_write_beside_the_steps_change_no_token() -> None:
    healthy = healthy_run()
    run = ScriptedRun(storage_script("threads", None, "best_effort"))

    run.run(most_steps=100_000)

    assert_idle_and_clean(run.engine)
    assert run.outputs == healthy.outputs
    assert run.engine.counters.storage_backups > 0


def test_the_law_sees_pages_that_were_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = healthy_run()
    run = ScriptedRun(STORAGE)
    controller = controller_of(run.engine)
    get = controller.storage.get

    def zeros(key: PageHash) -> KVHostCopy | None:
        value = get(key)
        if value is None:
            return None
        return KVHostCopy([k * 0 for k in value.keys], [v * 0 for v in value.values])

    monkeypatch.setattr(controller.storage, "get", zeros)

    run.run()

    assert run.outputs != healthy.outputs


def test_the_law_sees_a_tail_that_is_released_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    release = StorageController.append_host_mem_release

    def twice(self: StorageController, operation: PrefetchOperation, host_indices: Any) -> None:
        release(self, operation, host_indices)
        release(self, operation, host_indices)

    monkeypatch.setattr(StorageController, "append_host_mem_release", twice)
    run = ScriptedRun(STORAGE)

    with pytest.raises(DoubleFreeError):
        run.run()


def test_storage_needs_a_host_tier_and_a_model_without_states() -> None:
    with pytest.raises(ConfigError, match=r"hicache\.ratio"):
        make_attention_engine(hicache_storage=Settings(ratio=1.0))
    with pytest.raises(ConfigError, match="recurrent layers"):
        make_engine(hicache=HiCache(ratio=1.0), hicache_storage=Settings(ratio=1.0))


def test_an_engine_without_storage_prefetches_nothing() -> None:
    # With a thread, the number of idle steps would depend on the machine's speed.
    transfers = ChosenTransfers(cycle((1,)))
    engine = make_attention_engine(hicache=HiCache(ratio=1.0), transfers=transfers)
    engine.submit("r", list(range(40)), SamplingParams(max_new_tokens=2))
    run_to_idle(engine)

    assert engine.pools.storage_tier is None
    assert isinstance(engine.pools.host_tier, StorageTier)
    assert engine.counters.storage_prefetches == 0
