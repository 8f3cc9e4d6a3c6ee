"""With a host tier, tokens are those without reuse, whenever transfers end and even if they fail.

Transfers write their data when they end, so that a step that reads too early is detected at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count, product, repeat
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from hybridbench.engine.cache.base import EvictParams
from hybridbench.engine.cache.hiradix_cache import HiRadixCache
from hybridbench.engine.cache.host_tier import HostTier
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.hicache_controller import HiCacheAck, HiCacheController
from hybridbench.engine.memory.transfers import Copy
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import ViolationKind
from hybridbench.engine.scheduler.invariants import InvariantError
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import (
    CacheKind,
    HiCache,
    HiCacheWritePolicy,
    NewTokenRatio,
)
from hybridbench.foundation.errors import ConfigError
from tests.builders import (
    NANO_MODEL,
    assert_idle_and_clean,
    make_attention_engine,
    make_engine,
    make_tracking_engine,
    make_window_engine,
    run_to_idle,
)
from tests.drafters import HalfRightDrafter
from tests.engine_programs import EngineProgram, run_against_oracle
from tests.host_transfers import ChosenTransfers, EagerTransfers
from tests.laws.engine_machine import EngineMachine, engine_examples
from tests.laws.engine_script import HOST_TIER, ScriptedRun, every_stride, first_of, host_tier
from tests.session_programs import SessionProgram

# Assumes that requests stop early, so that decoding sometimes runs out of room.
DARING = NewTokenRatio(init=1.0, min=0.0, decay_steps=1)


class Squeeze(NamedTuple):
    """Settings of an engine with barely sufficient device or host pools."""

    make_engine: Callable[..., Engine]
    page_size: int
    hicache: HiCache
    changes: Mapping[str, Any]

    @property
    def unified(self) -> bool:
        """Whether the engine uses the unified tree."""
        return self.changes.get("cache") == "unified"


def attention(page_size: int, ratio: float, policy: HiCacheWritePolicy, **changes: Any) -> Squeeze:
    make = partial(make_attention_engine, page_size)
    return Squeeze(make, page_size, HiCache(ratio=ratio, write_policy=policy), changes)


def states(slots: int, ratio: float, policy: HiCacheWritePolicy, **changes: Any) -> Squeeze:
    changes = {"kv_tokens": 180, "mamba_slots": slots, **changes}
    return Squeeze(make_engine, 1, HiCache(ratio=ratio, write_policy=policy), changes)


def tracked(page_size: int, ratio: float, policy: HiCacheWritePolicy, **changes: Any) -> Squeeze:
    make = partial(make_tracking_engine, page_size)
    changes = {"kv_tokens": 28 * page_size, "mamba_slots": 24, **changes}
    return Squeeze(make, page_size, HiCache(ratio=ratio, write_policy=policy), changes)


def windows(page_size: int, ratio: float, policy: HiCacheWritePolicy, **changes: Any) -> Squeeze:
    make = partial(make_window_engine, page_size)
    changes = {"kv_tokens": 200, "swa_full_tokens_ratio": 0.6, "cache": "unified", **changes}
    return Squeeze(make, page_size, HiCache(ratio=ratio, write_policy=policy), changes)


OVERLAP = {"enable_overlap_schedule": True}
UNIFIED = {"cache": "unified"}
SQUEEZES: dict[str, Squeeze] = {
    "write through": attention(1, 1.5, "write_through", kv_tokens=180, chunked_prefill_size=24),
    "small host pool": attention(1, 0.5, "write_through", kv_tokens=180),
    "tiny host pool": attention(16, 0.1, "write_through", kv_tokens=28 * 16),
    "selective": attention(1, 1.5, "write_through_selective", kv_tokens=200),
    "write back": attention(1, 0.2, "write_back", kv_tokens=180, chunked_prefill_size=24),
    "pages": attention(16, 2.0, "write_through", kv_tokens=28 * 16, chunked_prefill_size=64),
    "pages, write back": attention(16, 0.7, "write_back", kv_tokens=28 * 16),
    "overlapped": attention(1, 1.0, "write_through", kv_tokens=180, **OVERLAP),
    "overlapped pages": attention(16, 1.0, "write_back", kv_tokens=28 * 16, **OVERLAP),
    "outputs": attention(
        1, 1.0, "write_through", kv_tokens=130, max_running_requests=14, new_token_ratio=DARING
    ),
    "longest prefix first": attention(
        1, 1.0, "write_through", kv_tokens=200, schedule_policy="lpm"
    ),
    "states": states(14, 1.5, "write_through"),
    "few states": states(9, 1.5, "write_through", kv_tokens=256),
    "few states on the host": states(10, 0.4, "write_through", kv_tokens=256),
    "states, small host pools": states(14, 0.5, "write_through"),
    "states, selective": states(12, 1.5, "write_through_selective"),
    "states, write back": states(9, 0.3, "write_back"),
    "states, overlapped": states(12, 1.0, "write_back", **OVERLAP),
    "states, only the used ones young": states(12, 1.0, "write_through", state_refresh="used"),
    "track buffers": tracked(1, 1.0, "write_through", kv_tokens=200),
    "track buffers, pages": tracked(16, 1.0, "write_through", chunked_prefill_size=64),
    "track buffers, pages, write back": tracked(16, 0.6, "write_back", **OVERLAP),
    "unified": attention(1, 1.5, "write_through", kv_tokens=180, **UNIFIED),
    "unified, pages, write back": attention(
        16, 0.7, "write_back", kv_tokens=28 * 16, **OVERLAP, **UNIFIED
    ),
    "unified, selective": attention(1, 0.5, "write_through_selective", kv_tokens=180, **UNIFIED),
    "unified, states": states(14, 1.5, "write_through", **UNIFIED),
    "unified, few states": states(9, 1.5, "write_through", kv_tokens=256, **UNIFIED),
    "unified, few states on the host": states(
        10, 0.4, "write_through", kv_tokens=256, **OVERLAP, **UNIFIED
    ),
    "unified, states, write back": states(9, 0.3, "write_back", **UNIFIED),
    "unified, states, selective": states(
        12, 1.5, "write_through_selective", state_refresh="used", **UNIFIED
    ),
    "unified, track buffers, pages": tracked(
        16, 1.0, "write_through", chunked_prefill_size=64, **UNIFIED
    ),
    "unified, track buffers, pages, write back": tracked(
        16, 0.6, "write_back", **OVERLAP, **UNIFIED
    ),
    "windows": windows(1, 1.5, "write_through"),
    "windows, small host pools": windows(1, 0.4, "write_through", **OVERLAP),
    "windows, selective": windows(1, 1.0, "write_through_selective"),
    "windows, write back": windows(1, 0.5, "write_back", swa_full_tokens_ratio=0.4),
    "windows, pages": windows(16, 1.0, "write_through", kv_tokens=28 * 16),
    "windows, pages, write back": windows(16, 0.7, "write_back", kv_tokens=28 * 16, **OVERLAP),
}


def family_of(name: str) -> str:
    """Return the kind of tree that a squeeze tests."""
    return name.split(",", maxsplit=1)[0] if SQUEEZES[name].unified else "dedicated"


def delays(seed: int, longest: int) -> Iterator[int]:
    rng = random.Random(seed)
    while True:
        yield rng.randint(0, longest)


def never(number: int) -> bool:
    del number
    return False


def make_program(
    name: str,
    seed: int,
    longest_delay: int = 4,
    fails: Callable[[int], bool] = never,
    transfers: ChosenTransfers | None = None,
) -> EngineProgram:
    make, page_size, hicache, changes = SQUEEZES[name]
    sizes = {"max_context_len": 352, "max_prefill_tokens": 256}
    longest_prompt, longest_output = (12, 60) if name == "outputs" else (60, 10)
    return EngineProgram(
        make(
            hicache=hicache,
            transfers=transfers or ChosenTransfers(delays(seed, longest_delay), fails),
            **{**sizes, **changes},
        ),
        random.Random(seed),
        longest_prompt=longest_prompt * (3 if page_size > 1 else 1),
        longest_output=longest_output,
        stretch=3 if page_size > 1 else 1,
        make_oracle=partial(make, max_context_len=352),
    )


@pytest.mark.parametrize(
    "name",
    [
        "write through",
        "states",
        "states, overlapped",
        "states, write back",
        "track buffers",
        "unified, states",
        "unified, few states on the host",
        "windows",
    ],
)
def test_what_a_copy_to_the_host_reads_is_there_when_it_starts(name: str) -> None:
    program = make_program(name, 1, transfers=EagerTransfers())

    program.run(100)

    program.compare_with_oracle()
    assert program.engine.counters.host_load_backs > 0


def check_empty(program: EngineProgram) -> None:
    assert program.engine.flush_cache()
    assert_idle_and_clean(program.engine)
    pools = program.engine.pool_stats()
    host_pools = [stats for name, stats in pools.items() if name.startswith("host_")]
    assert host_pools
    for stats in host_pools:
        assert stats.available == stats.total


@pytest.mark.parametrize("actions", [100, pytest.param(250, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ["dedicated", "unified", "windows"])
def test_every_program_gives_the_tokens_of_the_engine_without_reuse(
    family: str, actions: int
) -> None:
    names = [name for name in SQUEEZES if family_of(name) == family]
    programs = ((f"seed {seed}, {name}", make_program(name, seed))
                for seed, name in enumerate(names))  # fmt: skip

    seen = run_against_oracle(programs, actions, check_empty)

    wanted = [
        "prefix_hits", "node_splits", "refusals", "abort_queued", "abort_decode",
        "host_backups", "host_stays", "host_load_backs", "host_load_back_tokens",
        "host_evictions", "host_evictions_refused", "host_late_acks",
    ]  # fmt: skip
    wanted += {
        "dedicated": ["retracts"],
        "unified": ["evict_cascade"],
        "windows": ["swa_tombstones"],
    }[family]
    for event in wanted:
        assert seen[event] > 0, (event, seen)


def test_a_hit_may_leave_the_host_while_room_for_its_request_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Making room on the device writes to the host, which in turn evicts the node that was hit."""
    refused: list[bool] = []
    load_back = HostTier.load_back

    def watched(tree: HostTier, last_host_node: TreeNode) -> bool:
        left = not tree._is_in_tree(last_host_node)
        started = load_back(tree, last_host_node)
        refused.extend([not started] * left)
        return started

    monkeypatch.setattr(HostTier, "load_back", watched)
    program = make_program("unified, states, write back", 11)
    program.run(150)
    program.compare_with_oracle()

    assert refused
    assert all(refused)


@pytest.mark.parametrize("actions", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_sessions_and_guesses_keep_to_it_and_so_do_failing_transfers(actions: int) -> None:
    policies: tuple[HiCacheWritePolicy, ...] = (
        "write_through", "write_back", "write_through_selective",
    )  # fmt: skip
    seen: Counter[str] = Counter()
    models: tuple[tuple[Callable[..., Engine], CacheKind], ...] = (
        (make_attention_engine, "radix"), (make_engine, "radix"),
        (make_attention_engine, "unified"), (make_engine, "unified"),
        (make_window_engine, "unified"),
    )  # fmt: skip
    for seed, (write_policy, (make, cache)) in enumerate(product(policies, models)):
        clock = FakeClock()
        engine = make(
            clock=clock,
            cache=cache,
            kv_tokens=200,
            new_token_ratio=DARING,
            hicache=HiCache(ratio=1.0, write_policy=write_policy),
            transfers=ChosenTransfers(delays(seed, 4), lambda number: number % 7 == 0),
            enable_overlap_schedule=seed > 0,
            drafter=HalfRightDrafter(NANO_MODEL.vocab_size) if seed % 4 > 1 else None,
        )
        program = SessionProgram(engine, random.Random(seed), clock, longest_prompt=90)
        program._make_oracle = make
        program.run(actions)
        program.compare_with_oracle()
        seen.update(engine.counters.as_dict())

    for event in (
        "session_restores", "drafts_accepted", "host_backups", "host_load_backs",
        "host_evictions", "host_failures", "host_late_acks",
    ):  # fmt: skip
        assert seen[event] > 0, (event, seen)


class HostTierMachine(EngineMachine):
    """Traffic, delays and failures chosen by Hypothesis."""

    @initialize(
        name=st.sampled_from(sorted(SQUEEZES)),
        seed=st.integers(0, 2**16),
        longest_delay=st.integers(0, 9),
        failing=st.sets(st.integers(1, 30)),
    )
    def build(self, name: str, seed: int, longest_delay: int, failing: set[int]) -> None:
        self.program = make_program(name, seed, longest_delay, failing.__contains__)


TestHostTierMachine = HostTierMachine.TestCase
TestHostTierMachine.settings = engine_examples(0.3, steps=25)


SCRIPTS: list[Any] = [
    pytest.param({}, id="attention"),
    pytest.param({"model": "states"}, id="states"),
    pytest.param({"cache": "unified"}, id="unified"),
    pytest.param({"model": "states", "cache": "unified"}, id="unified-states"),
    pytest.param({"model": "windows"}, id="unified-windows"),
]


@every_stride
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
def test_any_failed_transfer_loses_nothing_and_changes_no_token(
    write_policy: HiCacheWritePolicy, script: dict[str, Any], stride: int
) -> None:
    healthy = ScriptedRun(host_tier("healthy", write_policy, **script))
    healthy.run()
    counters = healthy.engine.counters
    assert min(counters.host_stays, counters.host_load_backs) > 0
    # With write-back, an eviction waits for all ongoing transfers.
    assert counters.host_late_acks > 0 or write_policy == "write_back"
    ks = count(1) if stride == 1 else count(1 + first_of(str(script), 6), 6)

    for k in ks:
        run = ScriptedRun(host_tier("one fails", write_policy, fails=k.__eq__, **script))
        run.run()
        assert_idle_and_clean(run.engine)
        assert run.outputs == healthy.outputs, f"failing transfer {k}"
        if not run.engine.counters.host_failures:
            break

    assert k > 5, "the run hardly copies"


@pytest.mark.parametrize("script", SCRIPTS)
def test_in_whatever_later_step_transfers_end_no_token_changes(script: dict[str, Any]) -> None:
    healthy = ScriptedRun(host_tier("healthy", "write_through", **script))
    healthy.run()
    load_backs = late_acks = 0

    for late in (0, 1, 2, 4, 9):
        run = ScriptedRun(host_tier("late", "write_through", delays=(late,), **script))
        run.run()
        assert_idle_and_clean(run.engine)
        assert run.outputs == healthy.outputs, f"transfers end {late} steps later"
        load_backs += run.engine.counters.host_load_backs
        late_acks += run.engine.counters.host_late_acks

    assert load_backs >= 5
    assert late_acks > 20


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
def test_an_engine_all_of_whose_transfers_fail_computes_everything_itself(
    write_policy: HiCacheWritePolicy, script: dict[str, Any]
) -> None:
    healthy = ScriptedRun(host_tier("healthy", write_policy, **script))
    healthy.run()
    run = ScriptedRun(host_tier("all fail", write_policy, fails=lambda _: True, **script))

    run.run()

    counters = run.engine.counters
    assert_idle_and_clean(run.engine)
    assert run.outputs == healthy.outputs
    assert counters.host_failures > 5
    assert counters.host_backups == counters.host_load_backs == 0


class NeverCopies(ChosenTransfers):
    """Reports that transfers have succeeded without copying anything."""

    def start(self, number: int, copy: Copy) -> None:
        del copy
        super().start(number, lambda: None)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_law_sees_what_was_never_loaded(script: dict[str, Any]) -> None:
    healthy = ScriptedRun(host_tier("healthy", "write_through", **script))
    healthy.run()
    run = ScriptedRun(host_tier("never copies", "write_through", transfers=NeverCopies, **script))

    run.run()

    assert run.engine.counters.host_load_backs > 0
    assert run.outputs != healthy.outputs


def test_the_law_sees_locks_that_nobody_says_to_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HiRadixCache, "transfer_locks", lambda _: [])
    run = ScriptedRun(HOST_TIER)

    with pytest.raises(AssertionError):
        run.run()

    assert {violation.kind for violation in run.engine.audit()} == {ViolationKind.TREE}


def test_the_law_sees_host_slots_that_a_failed_transfer_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slots are booked to a transfer that is no longer tracked."""
    settle = HiCacheController.settle

    def keep(self: HiCacheController, ack: HiCacheAck) -> None:
        if ack.succeeded:
            settle(self, ack)
        else:
            del self._ongoing[ack.operation.number]

    monkeypatch.setattr(HiCacheController, "settle", keep)
    run = ScriptedRun(host_tier("the second fails", "write_through", fails=(2).__eq__))

    with pytest.raises(InvariantError, match="host_kv"):
        run.run()


@pytest.mark.parametrize("make", [make_attention_engine, make_engine], ids=["kv", "states"])
@pytest.mark.parametrize("cache", ["radix", "unified"])
def test_a_request_waits_for_the_load_that_it_began_however_long_it_takes(
    make: Callable[..., Engine], cache: CacheKind
) -> None:
    transfers = ChosenTransfers(repeat(7))
    engine = make(cache=cache, hicache=HiCache(ratio=1.0), transfers=transfers)
    prompt, params = list(range(1, 31)), SamplingParams(max_new_tokens=4, ignore_eos=True)
    engine.submit("first", prompt, params)
    run_to_idle(engine)
    engine.pools.tree_cache.evict(EvictParams(num_tokens=1000))
    assert engine.pool_stats()["kv"].evictable == 0

    engine.submit("again", [*prompt, 40], params)
    again = [event for event in run_to_idle(engine) if event.ends_request]

    assert engine.counters.host_load_backs == 1
    assert again[0].cached_tokens == len(prompt)
    assert_idle_and_clean(engine)


def test_a_thread_that_copies_beside_the_steps_changes_no_token() -> None:
    page_size, sizes = 4, {"kv_tokens": 112, "chunked_prefill_size": 16, "max_running_requests": 3}
    healthy = ScriptedRun(HOST_TIER)
    healthy.run()
    run = ScriptedRun(
        replace(
            HOST_TIER,
            make_engine=lambda: make_attention_engine(
                page_size, hicache=HiCache(ratio=1.0), **sizes
            ),
        )
    )

    run.run(most_steps=100_000)

    assert_idle_and_clean(run.engine)
    assert run.outputs == healthy.outputs
    assert run.engine.counters.host_backups > 0


@pytest.mark.parametrize(
    ("make", "cache"), [(make_attention_engine, "chunk"), (make_window_engine, "auto")]
)
def test_a_host_tier_needs_a_tree_that_it_is_made_for(
    make: Callable[..., Engine], cache: CacheKind
) -> None:
    with pytest.raises(ConfigError, match=r"needs cache radix or unified.*hicache\.ratio"):
        make(hicache=HiCache(ratio=1.0), cache=cache)


def test_an_engine_without_a_host_tier_has_no_host_pool() -> None:
    engine = make_attention_engine()

    assert engine.pools.host_tier is None
    assert "host_kv" not in engine.pool_stats()
    assert not engine.scheduler.has_transfers
