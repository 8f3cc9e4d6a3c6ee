"""A released engine behind the worker's port: adapter, counting and findings, on a fake release."""

from __future__ import annotations

import gc
import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from hybridbench.engine.events import EventKind
from hybridbench.engine.front_end import DuplicateRequestError
from hybridbench.engine.scheduler.audit import ViolationKind
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.errors import ConfigError
from hybridbench.released.build import build_released
from hybridbench.released.engine import ReleasedEngine
from hybridbench.released.sglang.generations import GENERATIONS
from hybridbench.released.sglang.parts import Unpinned
from hybridbench.worker.probes import violation_records
from tests.unit.released import fake_sglang as fake
from tests.unit.released.driving import drain, submit

OLDEST, NEWEST = GENERATIONS[0].releases[0], GENERATIONS[-1].releases[-1]
WITH_SESSIONS = [one.releases[0] for one in GENERATIONS if one.sessions is not None]
# The first and the last of each, because differences between them are not in the table.
each_generation = pytest.mark.parametrize(
    "release", sorted({one.releases[at] for one in GENERATIONS for at in (0, -1)})
)


WINDOWS = {"model": "gpt-oss-tiny", "chunked_prefill_size": 16, "swa_full_tokens_ratio": 0.5}


@contextmanager
def engine_of(
    monkeypatch: pytest.MonkeyPatch, release: str, *losses: str, **changes: object
) -> Iterator[ReleasedEngine]:
    settings: dict[str, object] = {
        "model": "qwen3-next-tiny",
        "kv_tokens": 400,
        "mamba_slots": 80,
        "max_running_requests": 6,
        "max_context_len": 64,
    }
    monkeypatch.setattr(importlib.metadata, "version", lambda _: release)
    with fake.installed(release, *losses):
        yield build_released("sglang-cache", EngineConfig(**{**settings, **changes}))  # type: ignore[arg-type]


def churn(engine: ReleasedEngine, turns: int = 60) -> None:
    """Run chats of several turns, more than the tree can keep; abort every ninth turn."""
    histories: dict[int, list[int]] = {}
    for turn in range(turns):
        chat = turn % 7
        prompt = [*histories.get(chat, [chat]), 100 + turn]
        submit(engine, f"r{turn}", prompt[-40:])
        if turn % 9 == 8:
            engine.step()
            engine.abort(f"r{turn}")
        if turn % 5 == 4:
            for event in _finished(engine):
                histories[int(event[0][1:]) % 7] = [chat, *event[1]]
    drain(engine)


def _finished(engine: ReleasedEngine) -> list[tuple[str, tuple[int, ...]]]:
    found = []
    while engine.has_work:
        found += [
            (event.rid, event.output_ids)
            for event in engine.step()
            if event.kind is EventKind.FINISHED
        ]
    return found


@each_generation
def test_every_generation_serves_to_the_end_and_accounts_for_every_slot(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    with engine_of(monkeypatch, release) as engine:
        churn(engine)

        assert engine.is_idle
        assert engine.counters.finishes > 40
        assert engine.counters.abort_decode + engine.counters.abort_prefill > 0
        assert engine.counters.nodes_evicted > 0
        assert engine.counters.refusals > 0
        stats = engine.pool_stats()
        assert set(stats) == {"kv", "mamba", "req"}
        assert {name: pool.residual for name, pool in stats.items()} == dict.fromkeys(stats, 0)
        assert engine.check_invariants(idle=True) == []
        assert engine.audit() == []


@each_generation
def test_windows_are_accounted_for_in_a_pool_of_their_own(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    with engine_of(monkeypatch, release, **WINDOWS) as engine:
        churn(engine)

        assert engine.counters.swa_tombstones > 0
        assert engine.counters.swa_releases == engine.counters.swa_released_tokens > 40
        assert engine.counters.tombstones == 0
        stats = engine.pool_stats()
        assert {name: pool.residual for name, pool in stats.items()} == {
            "kv": 0, "swa": 0, "req": 0
        }  # fmt: skip
        assert stats["swa"].total == 200
        assert engine.check_invariants(idle=True) == []
        assert engine.audit() == []


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_whole_pages_are_accounted_for(
    monkeypatch: pytest.MonkeyPatch, release: str, loses: bool
) -> None:
    losses = [fake.TAIL] if loses else []
    with engine_of(
        monkeypatch, release, *losses, model="attention-tiny", page_size=4, kv_tokens=400
    ) as engine:
        submit(engine, "one", list(range(7)))  # three of eleven tokens are in the last page
        engine.step()
        running = engine.pool_stats()["kv"]
        drain(engine)
        found = engine.check_invariants(idle=True)

        assert (running.in_flight, running.available) == (12, 388)
        assert [(one.pool, one.count, one.slots) for one in found] == (
            [("kv", 4, (12, 13, 14, 15))] if loses else []
        )
        if not loses:
            churn(engine)
            assert engine.counters.nodes_evicted > 0
            assert engine.check_invariants(idle=True) + engine.audit() == []


@pytest.mark.parametrize("release", [OLDEST, "0.5.14", NEWEST])
def test_a_slot_that_no_window_has_and_no_list_is_missing(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    with engine_of(monkeypatch, release, fake.WINDOW, **WINDOWS) as engine:
        churn(engine, turns=20)

        (found,) = engine.check_invariants(idle=True)
        assert (found.kind, found.pool) == (ViolationKind.RESIDUAL, "swa")
        assert engine.pool_stats()["swa"].residual == found.count > 0


@each_generation
def test_a_client_hears_of_each_step_of_its_request(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    with engine_of(monkeypatch, release) as engine:
        submit(engine, "one", [1, 2, 3])

        assert [kind for _, kind in drain(engine)] == [
            EventKind.ADMITTED,
            EventKind.FIRST_TOKEN,
            EventKind.FINISHED,
        ]
        assert engine.find("one") is None


@pytest.mark.parametrize(
    ("loss", "release"),
    [(fake.FINISH, NEWEST), (fake.ABORT, NEWEST), (fake.FINISH, OLDEST), (fake.ABORT, OLDEST)],
)
def test_a_slot_that_a_path_loses_is_missing_at_idle_and_named(
    monkeypatch: pytest.MonkeyPatch, loss: str, release: str
) -> None:
    with engine_of(monkeypatch, release, loss) as engine:
        submit(engine, "kept", [1, 2, 3])
        drain(engine)
        submit(engine, "ended", [7, 8, 9])
        engine.step()
        engine.abort("ended")
        drain(engine)

        (found,) = engine.check_invariants(idle=True)
        (record,) = violation_records([found], engine.last_owner)

    assert record.owners == [], "nobody keeps an account of owners"
    assert (found.kind, found.pool, found.count) == (ViolationKind.RESIDUAL, "mamba", 1)
    assert len(found.slots) == 1


def test_slots_that_a_refused_request_keeps_are_held_by_the_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine_of(monkeypatch, OLDEST, fake.REFUSAL) as engine:
        submit(engine, "first", [1, 2])
        (answer,) = _finished(engine)
        for index in range(6):
            submit(engine, f"next{index}", [1, 2, *answer[1], index])
        engine.step()

        assert engine.held_by_waiting() == {"next2/": {"mamba": 1}}
        assert engine.pool_stats()["mamba"].waiting_held == 1
        drain(engine)
        assert engine.check_invariants(idle=True) == []


@pytest.mark.parametrize("release", WITH_SESSIONS)
def test_what_a_session_keeps_is_its_own_until_it_closes(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    with engine_of(monkeypatch, release) as engine:
        assert engine.open_session("s")
        submit(engine, "turn", [1, 2, 3], session_id="s")
        drain(engine)

        held = {name: pool.session_held for name, pool in engine.pool_stats().items()}
        assert held == {"kv": 7, "mamba": 1, "req": 1}
        assert engine.check_invariants(idle=True) == []
        assert not engine.flush_cache(), "a session may lock a part of the tree"

        assert engine.close_session("s")
        assert not engine.close_session("s")
        assert (engine.counters.session_opens, engine.counters.session_closes) == (1, 1)
        assert engine.check_invariants(idle=True) == []


@pytest.mark.parametrize("release", WITH_SESSIONS)
def test_a_state_that_a_close_forgets_is_missing(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    with engine_of(monkeypatch, release, fake.CLOSE) as engine:
        for index in range(3):
            engine.open_session(f"s{index}")
            submit(engine, f"turn{index}", [1, 2, 3], session_id=f"s{index}")
            drain(engine)
            engine.close_session(f"s{index}")

        assert engine.pool_stats()["mamba"].residual == 3
        assert engine.pool_stats()["kv"].residual == 0


def test_a_release_without_sessions_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(monkeypatch, OLDEST) as engine:
        assert not engine.has_sessions
        assert not engine.open_session("s")
        assert engine.reap_sessions() is None


@each_generation
@pytest.mark.parametrize("leaks", [False, True])
def test_removed_nodes_that_stay_alive_are_more_than_the_structures_hold(
    monkeypatch: pytest.MonkeyPatch, release: str, leaks: bool
) -> None:
    with engine_of(monkeypatch, release, *([fake.NODES] if leaks else [])) as engine:
        churn(engine)
        gc.collect()

        classes = engine.reference_counted_classes()
        (kind, held), *_ = (one for name, one in classes.items() if name.endswith("TreeNode"))
        alive = sum(isinstance(one, kind) for one in gc.get_objects())

        assert alive - held == (engine.counters.nodes_evicted if leaks else 0)


@each_generation
def test_a_disconnected_client_hears_nothing_more(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    with engine_of(monkeypatch, release) as engine:
        submit(engine, "stays", [1, 2])
        submit(engine, "left", [3, 4])
        engine.step()

        assert engine.disconnect("left")
        assert {rid for rid, _ in drain(engine)} == {"stays"}
        assert engine.liveness().requests_without_client == 0


def test_the_abort_of_one_request_ends_no_other_whose_name_begins_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine_of(monkeypatch, NEWEST) as engine:
        for rid in ("r1", "r10", "r11"):
            submit(engine, rid, [1, 2])
        engine.abort("r1")

        ended = {rid: kind for rid, kind in drain(engine) if kind is not EventKind.ADMITTED}

    assert ended == {
        "r1": EventKind.ABORTED,
        "r10": EventKind.FINISHED,
        "r11": EventKind.FINISHED,
    }


def test_a_name_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(monkeypatch, NEWEST) as engine:
        submit(engine, "one", [1])
        with pytest.raises(DuplicateRequestError, match="'one' belongs to a request"):
            submit(engine, "one", [1])


def test_a_pause_runs_nothing_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(monkeypatch, NEWEST) as engine:
        submit(engine, "one", [1])
        engine.pause_generation("in_place")
        assert not engine.has_work
        engine.continue_generation()

        assert drain(engine)[-1] == ("one", EventKind.FINISHED)


def test_a_pause_that_aborts_leaves_the_scheduler_to_end_what_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine_of(monkeypatch, NEWEST) as engine:
        submit(engine, "one", [1])
        engine.step()
        engine.pause_generation("abort")
        assert drain(engine) == [("one", EventKind.ABORTED)]
        engine.continue_generation()
        submit(engine, "two", [2])

        assert drain(engine)[-1] == ("two", EventKind.FINISHED)


def test_emptying_the_cache_gives_every_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(monkeypatch, NEWEST) as engine:
        churn(engine)
        assert engine.flush_cache()

        assert {s.available - s.total for s in engine.pool_stats().values()} == {0}
        assert engine.containers()["tree_nodes"] == 0


@each_generation
def test_an_overlapped_step_reports_the_tokens_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    with engine_of(
        monkeypatch, release, model="attention-tiny", enable_overlap_schedule=True
    ) as engine:
        submit(engine, "one", [1, 2, 3], output=2)
        heard = []
        while engine.has_work:
            heard.append([event.kind for event in engine.step()])

        # The last step is launched before it is known that the request has ended.
        assert heard == [
            [EventKind.ADMITTED], [EventKind.FIRST_TOKEN], [EventKind.FINISHED], []
        ]  # fmt: skip
        churn(engine)
        assert engine.counters.finishes > 40
        assert engine.check_invariants(idle=True) + engine.audit() == []


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_the_end_of_a_request_that_a_pause_processes_is_reported(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    with engine_of(
        monkeypatch, NEWEST, model="attention-tiny", enable_overlap_schedule=True
    ) as engine:
        submit(engine, "one", [1, 2, 3], output=1)
        engine.step()
        engine.pause_generation(mode)  # type: ignore[arg-type]
        paused = drain(engine)
        engine.continue_generation()

        ended = [("one", EventKind.FIRST_TOKEN), ("one", EventKind.FINISHED)]
        assert (paused, drain(engine)) == ((ended, []) if mode == "retract" else ([], ended))


@each_generation
def test_states_that_track_buffers_save_and_give_to_the_tree_are_counted(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    with engine_of(monkeypatch, release, mamba_scheduler_strategy="extra_buffer") as engine:
        submit(engine, "one", [1, 2, 3], output=8)
        submit(engine, "aborted", [7, 8, 9], output=8)
        for _ in range(5):
            engine.step()
        engine.abort("aborted")
        drain(engine)

        # Of seven running steps the first saves none, and each state is saved once.
        assert (engine.counters.states_tracked, engine.counters.track_donations) == (3 + 2, 1)


def test_memory_is_not_pinned_where_there_is_no_device() -> None:
    with Unpinned():
        assert not torch.tensor([1], pin_memory=True).is_pinned()
        assert not torch.zeros(2).pin_memory().is_pinned()


def test_an_unknown_release_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ConfigError, match=r"sglang 0\.4\.1 is not driven; there are 0\.5\.9"),
        engine_of(monkeypatch, "0.4.1"),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mamba_scheduler_strategy": "extra_buffer_lazy"}, "engine.mamba_scheduler_strategy"),
        ({"page_size": 16, "kv_tokens": 512}, "pools.page_size"),
        ({"mamba_slots": 5}, "at least 6 for"),
        ({"mamba_scheduler_strategy": "extra_buffer", "mamba_slots": 11}, "at least 12 for"),
        ({"cache": "chunk"}, "engine.cache"),
    ],
)
def test_what_is_not_driven_is_refused_by_the_name_of_its_setting(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named), engine_of(monkeypatch, NEWEST, **changes):
        pass


def test_a_tree_that_a_release_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ConfigError, match="this release of sglang has no unified tree"),
        engine_of(monkeypatch, OLDEST, cache="unified"),
    ):
        pass


@pytest.mark.parametrize("release", ["0.5.11", "0.5.16", "0.5.19", "0.5.23"])
def test_the_unified_tree_is_that_of_the_release(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    with engine_of(monkeypatch, release, cache="unified") as engine:
        churn(engine)

        assert engine.model == "no model, UnifiedRadixCache"
        assert engine.check_invariants(idle=True) == []


@pytest.mark.parametrize("chosen", [None, "rust"])
def test_the_core_in_python_is_driven_unless_the_user_chose_another(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    with fake.installed(NEWEST):
        switches = sys.modules["sglang.srt.environ"].envs
        core = switches.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND
        core.set(chosen)
        monkeypatch.setattr(importlib.metadata, "version", lambda _: NEWEST)
        build_released("sglang-cache", EngineConfig(model="qwen3-next-tiny"))

    assert core.value == (chosen or "python")


def test_a_dedicated_tree_that_a_release_no_longer_has_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        pytest.raises(ConfigError, match=r"engine\.cache: sglang 0\.5\.23 has only its unified"),
        engine_of(monkeypatch, NEWEST, cache="radix"),
    ):
        pass


@pytest.mark.parametrize("release", [OLDEST, "0.5.16", NEWEST])
def test_a_request_that_waits_too_long_ends(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    with engine_of(monkeypatch, release, req_waiting_timeout_s=1e-9) as engine:
        submit(engine, "late", [1, 2])

        assert drain(engine) == [("late", EventKind.REJECTED)]


def test_forced_paths_that_the_release_has_no_switch_for_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"force\.flush"):
        build_released("sglang-cache", EngineConfig(), {"flush": 3})
