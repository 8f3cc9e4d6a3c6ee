"""A released vLLM behind the worker's port: adapter, counting and findings, on a fake release."""

from __future__ import annotations

import gc
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hybridbench.engine.events import EventKind
from hybridbench.engine.scheduler.audit import ViolationKind
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.errors import ConfigError
from hybridbench.released.build import build_released
from hybridbench.released.engine import ReleasedEngine
from hybridbench.released.vllm.parts import RELEASES
from tests.unit.released import fake_vllm as fake
from tests.unit.released.driving import drain, submit

NEWEST = RELEASES[-1]
each_end = pytest.mark.parametrize("release", [RELEASES[0], NEWEST])


@contextmanager
def engine_of(
    monkeypatch: pytest.MonkeyPatch, release: str, *losses: str, **changes: object
) -> Iterator[ReleasedEngine]:
    settings: dict[str, object] = {
        "model": "attention-tiny",
        "kv_tokens": 640,
        "max_running_requests": 6,
        "max_context_len": 256,
        "chunked_prefill_size": 64,
    }
    monkeypatch.setattr(importlib.metadata, "version", lambda _: f"{release}+cpu")
    with fake.installed(*losses):
        yield build_released("vllm-core", EngineConfig(**{**settings, **changes}))  # type: ignore[arg-type]


def churn(engine: ReleasedEngine, requests: int = 80) -> None:
    """Run prompts with equal beginnings, more than the pool holds; abort every ninth."""
    for number in range(requests):
        prompt = [number % 7] * 40 + [number] * (number % 5 * 20)
        submit(engine, f"r{number}", prompt, output=20)
        if number % 9 == 8:
            engine.step()
            engine.abort(f"r{number}")
    drain(engine)


@each_end
def test_every_release_serves_to_the_end_and_accounts_for_every_block(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    with engine_of(monkeypatch, release) as engine:
        churn(engine)

        counters = engine.counters
        assert engine.is_idle
        assert counters.finishes > 60
        assert counters.abort_queued + counters.abort_prefill + counters.abort_decode > 0
        assert counters.nodes_evicted > 0
        assert counters.prefix_hits > 0
        assert counters.refusals > 0
        assert counters.retracts > 0
        assert counters.retract_retries == counters.retracts
        assert counters.prefill_chunks > 0
        stats = engine.pool_stats()["kv_blocks"]
        assert (stats.total, stats.residual, stats.in_flight) == (40, 0, 0)
        assert engine.check_invariants(idle=True) == []
        assert engine.audit() == []


def test_running_requests_hold_blocks_of_which_each_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine_of(monkeypatch, NEWEST) as engine:
        submit(engine, "one", [7] * 40)
        engine.step()
        submit(engine, "two", [7] * 40)
        engine.step()

        stats = engine.pool_stats()["kv_blocks"]
        assert stats.in_flight == 4, "two shared blocks, and a tail each"
        assert stats.residual == 0
        assert engine.audit() == []
        assert engine.counters.prefix_hit_tokens == 32


@each_end
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


def test_the_same_request_gets_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for _ in range(2):
        with engine_of(monkeypatch, NEWEST) as engine:
            submit(engine, "one", [1, 2, 3])
            while engine.has_work:
                answers += [event.output_ids for event in engine.step() if event.output_ids]

    assert answers[0] == answers[1]
    assert len(set(answers[0])) == 4


@pytest.mark.parametrize("loss", [fake.FINISH, fake.ABORT])
@each_end
def test_blocks_that_a_path_loses_are_missing_at_idle_and_named(
    monkeypatch: pytest.MonkeyPatch, release: str, loss: str
) -> None:
    with engine_of(monkeypatch, release, loss) as engine:
        submit(engine, "kept", [1] * 20)
        drain(engine)
        submit(engine, "ended", [2] * 20)
        engine.step()
        engine.abort("ended")
        drain(engine)

        (found,) = engine.check_invariants(idle=True)

    assert (found.kind, found.pool, found.count) == (ViolationKind.RESIDUAL, "kv_blocks", 2)
    assert len(found.slots) == 2


def test_a_reference_that_is_not_dropped_keeps_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(monkeypatch, NEWEST, fake.REFERENCE) as engine:
        for number in range(5):
            submit(engine, f"r{number}", [number] * 20)
            drain(engine)

        assert engine.pool_stats()["kv_blocks"].residual == 5


def test_a_block_that_is_freed_too_early_is_free_and_held(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(monkeypatch, NEWEST, fake.EARLY) as engine:
        submit(engine, "one", [1] * 20)
        engine.step()

        texts = [found.message for found in engine.audit()]

    assert "held by the free list and by request one" in texts[0]
    assert "is in the free queue, and its reference count is 0" in texts[1]


@pytest.mark.parametrize(
    ("loss", "container"),
    [
        (fake.TABLE, "FullAttentionManager.req_to_blocks"),
        (fake.LIST, "FullAttentionManager.new_block_ids"),
    ],
)
def test_tables_and_lists_of_every_part_are_measured(
    monkeypatch: pytest.MonkeyPatch, loss: str, container: str
) -> None:
    with engine_of(monkeypatch, NEWEST, loss) as engine:
        before = engine.containers()[container]
        churn(engine)

        assert engine.containers()[container] - before >= engine.counters.finishes


@pytest.mark.parametrize("leaks", [False, True])
def test_ended_requests_that_stay_alive_are_more_than_the_structures_hold(
    monkeypatch: pytest.MonkeyPatch, leaks: bool
) -> None:
    with engine_of(monkeypatch, NEWEST, *([fake.KEEP] if leaks else [])) as engine:
        churn(engine)
        submit(engine, "aborted", [1])
        engine.abort("aborted")
        gc.collect()

        kind, held = engine.reference_counted_classes()["Request"]
        alive = sum(isinstance(one, kind) for one in gc.get_objects())

        assert alive - held == (len(fake.KEPT) - 1 if leaks else 0)


def test_an_overlong_prompt_is_rejected_as_the_front_end_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine_of(monkeypatch, NEWEST) as engine:
        submit(engine, "long", [1] * 256)
        (event,) = engine.step()

    assert (event.kind, event.reason) == (EventKind.REJECTED, "prompt of 256 tokens; 1 to 255 fit")
    assert engine.counters.requests_rejected == 1


def test_a_disconnected_client_hears_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(monkeypatch, NEWEST) as engine:
        submit(engine, "stays", [1, 2])
        submit(engine, "left", [3, 4])
        engine.step()

        assert engine.disconnect("left")
        assert {rid for rid, _ in drain(engine)} == {"stays"}


def test_a_pause_runs_nothing_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(monkeypatch, NEWEST) as engine:
        submit(engine, "one", [1])
        engine.pause_generation("in_place")
        assert not engine.has_work
        engine.continue_generation()

        assert drain(engine)[-1] == ("one", EventKind.FINISHED)


def test_emptying_the_cache_leaves_no_block_that_can_be_hit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine_of(monkeypatch, NEWEST) as engine:
        churn(engine)
        assert engine.pool_stats()["kv_blocks"].evictable > 0
        assert engine.flush_cache()

        assert engine.pool_stats()["kv_blocks"].available == 40
        assert engine.containers()["cached_blocks"] == 0


def test_it_has_no_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(monkeypatch, NEWEST) as engine:
        assert not engine.has_sessions
        assert not engine.open_session("s")
        assert not engine.close_session("s")


def test_an_unknown_release_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ConfigError, match=r"vllm 0\.1\.2 is not driven; there are 0\."),
        engine_of(monkeypatch, "0.1.2"),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"enable_overlap_schedule": True}, "engine.enable_overlap_schedule"),
        ({"cache": "unified"}, "engine.cache"),
        ({"max_queued_requests": 4}, "engine.max_queued_requests"),
    ],
)
def test_what_is_not_driven_is_refused_by_the_name_of_its_setting(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named), engine_of(monkeypatch, NEWEST, **changes):
        pass


@pytest.mark.parametrize("model", ["qwen3-next-tiny", "gpt-oss-tiny"])
def test_a_model_with_other_layers_gets_a_group_of_its_own(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    with engine_of(monkeypatch, NEWEST, model=model) as engine:
        churn(engine, 20)

        assert set(engine.pool_stats()) == {"kv_blocks"}


def test_no_path_is_forced() -> None:
    with pytest.raises(ConfigError, match=r"force\.retract"):
        build_released("vllm-core", EngineConfig(), {"retract": 3})
