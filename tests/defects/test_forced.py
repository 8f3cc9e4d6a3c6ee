"""Forced paths in a whole engine: each is taken, changes no token and loses no slot."""

from __future__ import annotations

import random
from dataclasses import fields
from itertools import cycle
from typing import Any

import pytest

from hybridbench.defects.forced import ABORT_MESSAGE, WRAPPERS, ForcedPaths
from hybridbench.defects.inject import injected
from hybridbench.defects.pr21404_mamba_adder_reject import DEFECT as ADDER_REJECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EventKind
from hybridbench.engine.memory.transfers import ThreadedTransfers
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import HiCache
from hybridbench.workload.settings import Force
from tests.builders import assert_idle_and_clean, make_engine, make_tracking_engine, run_to_idle
from tests.engine_programs import EngineProgram
from tests.host_transfers import ChosenTransfers
from tests.session_programs import SessionProgram

ENGINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "overlap": {"enable_overlap_schedule": True},
    "unified": {"cache": "unified"},
    "host": {"hicache": HiCache(ratio=1.0), "kv_tokens": 180, "mamba_slots": 12},
}
# Low numbers, so that a short program takes each path often.
OFTEN = {
    "retract": 6,
    "refuse": 4,
    "fail_allocation": 8,
    "flush": 20,
    "abort_queued": 8,
    "abort_prefill": 3,
    "abort_decode": 10,
}


def test_a_profile_can_force_every_path_there_is() -> None:
    assert {field.name for field in fields(Force)} == set(WRAPPERS)


# Each path on two engines, and each engine with half of the paths, in `make test`.
FORCED = [
    pytest.param(path, engine, marks=() if (one + other) % 2 else pytest.mark.slow)
    for one, path in enumerate(OFTEN)
    for other, engine in enumerate(ENGINES)
]


@pytest.mark.parametrize(("path", "engine"), FORCED)
def test_a_forced_path_is_taken_and_changes_no_token(path: str, engine: str) -> None:
    forced = ForcedPaths({path: OFTEN[path]}, seed=3)
    with forced.applied():
        # The program counts steps, and on a busy machine a real copier thread may not run in time.
        copies = ChosenTransfers(cycle((0, 2, 1))) if engine == "host" else None
        made = make_engine(transfers=copies, **ENGINES[engine])
        program = EngineProgram(made, random.Random(5))
        program.run(80)

    program.compare_with_oracle()
    assert forced.counts()[f"forced_{path}"] > 1


def test_all_paths_together_change_no_token_of_a_session_either() -> None:
    forced = ForcedPaths({**OFTEN, "flush": 10}, seed=1)
    with forced.applied():
        clock = FakeClock()
        engine = make_tracking_engine(
            16, clock=clock, enable_overlap_schedule=True, kv_tokens=40 * 16
        )
        program = SessionProgram(engine, random.Random(2), clock)
        program.run(200)

    program.compare_with_oracle()
    assert engine.counters.session_retracts > 0
    taken = forced.counts()
    assert all(taken[f"forced_{name}"] for name in ("retract", "refuse", "fail_allocation"))


def serve(engine: Engine) -> list[str]:
    """Serve twelve requests; return the reasons of those that were aborted."""
    for index in range(12):
        prompt = [index, *range(1, 12)]
        engine.submit(f"r{index}", prompt, SamplingParams(max_new_tokens=8, ignore_eos=True))
    return [event.reason for event in run_to_idle(engine) if event.kind is EventKind.ABORTED]


def test_the_seed_decides_when_a_path_is_taken() -> None:
    def retracts(seed: int) -> tuple[int, ...]:
        with ForcedPaths({"retract": 5}, seed).applied():
            engine = make_engine()
            serve(engine)
        return engine.counters.values()

    assert retracts(1) == retracts(1)
    assert len({retracts(seed) for seed in range(6)}) > 1


def test_a_forced_abort_says_who_asked_for_it() -> None:
    forced = ForcedPaths({"abort_decode": 4}, seed=1)
    with forced.applied():
        reasons = serve(make_engine())

    assert set(reasons) == {ABORT_MESSAGE}
    # Some finish in the very step in which their abort was requested.
    assert len(reasons) <= forced.counts()["forced_abort_decode"]


def test_a_refusal_is_not_forced_where_the_engine_would_give_the_request_up() -> None:
    forced = ForcedPaths({"refuse": 1}, seed=1)
    with forced.applied():
        engine = make_engine()
        reasons = serve(engine)

    assert reasons == []
    assert engine.counters.refusals > 0
    assert_idle_and_clean(engine)


def test_a_retracted_turn_is_aborted_in_the_queue_and_its_session_keeps_nothing_of_it() -> None:
    prompt = SamplingParams(max_new_tokens=8, ignore_eos=True)
    engine = make_engine()
    engine.open_session("s")
    engine.submit("first", [1, 2, 3], prompt, session_id="s")
    run_to_idle(engine)
    engine.submit("second", [4, 5, 6], prompt, session_id="s")
    for _ in range(4):
        engine.step()

    with ForcedPaths({"abort_queued": 1}, seed=1).applied():
        engine.pause_generation("retract")
    engine.continue_generation()
    [aborted] = run_to_idle(engine)

    assert (aborted.rid, aborted.reason) == ("second", ABORT_MESSAGE)
    assert engine.pools.sessions.cached_len("s") == 0


def test_a_copy_is_delayed_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridbench.defects.forced._DELAY_S", 0.0)
    forced = ForcedPaths({"delay_transfer": 2}, seed=1)
    with forced.applied():
        transfers = ThreadedTransfers()
        for number in range(6):
            transfers.start(number, lambda: None)
        ended = transfers.wait()

    assert [copy.number for copy in ended] == list(range(6))
    assert 0 < forced.counts()["forced_delay_transfer"] < 6


def test_a_forced_path_runs_around_a_defect_and_the_healthy_engine_is_back_afterwards() -> None:
    healthy = {target: vars(target[0])[target[1]] for each in WRAPPERS.values() for target in each}
    with injected(ADDER_REJECT), ForcedPaths({"refuse": 2, "retract": 3}, seed=1).applied():
        serve(make_engine(check_fatal=False))

    assert {target: vars(target[0])[target[1]] for target in healthy} == healthy


def test_an_unknown_path_is_refused() -> None:
    with pytest.raises(KeyError, match="retire"):
        ForcedPaths({"retire": 2}, seed=1)
