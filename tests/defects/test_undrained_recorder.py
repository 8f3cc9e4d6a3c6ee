"""vllm#44490 in a whole engine: block ids are recorded for a consumer that does not exist."""

from __future__ import annotations

import random

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.vllm44490_undrained_recorder import DEFECT, TRUTH
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import assert_idle_and_clean, make_attention_engine, make_engine, run_to_idle


def classify(engine: Engine, seed: int = 5) -> None:
    """Serve more unrelated prompts than the pool can keep, with one output token each."""
    rng = random.Random(seed)
    for index in range(30):
        prompt = [rng.randrange(48) for _ in range(rng.randint(30, 60))]
        engine.submit(f"c{index}", prompt, SamplingParams(max_new_tokens=1))
        engine.step()
    run_to_idle(engine)
    assert engine.counters.evict_leaf > 0
    assert_idle_and_clean(engine)


def engine_of(kind: str) -> Engine:
    """Return a hybrid engine, or an attention-only one whose page size is ``kind``."""
    return make_engine() if kind == "hybrid" else make_attention_engine(page_size=int(kind))


@pytest.mark.parametrize("kind", ["hybrid", "1", "16"])
def test_a_healthy_engine_notes_nothing_when_events_are_off(kind: str) -> None:
    engine = engine_of(kind)
    classify(engine)

    assert engine.containers()["kv_events"] == 0
    assert engine.counters.kv_events_published == 0
    assert engine.counters.kv_blocks_stored > 0


@pytest.mark.parametrize("kind", ["hybrid", "1", "16"])
def test_with_the_defect_there_is_one_entry_per_block(kind: str) -> None:
    TRUTH.clear()
    with injected(DEFECT):
        engine = engine_of(kind)
        classify(engine)

    entries = engine.containers()["kv_events"]
    assert entries == engine.counters.kv_blocks_stored > 0
    assert TRUTH.counts() == {"blocks_stored": entries, "entries_undrained": entries}


def test_the_defect_needs_the_consumer_to_be_absent() -> None:
    TRUTH.clear()
    with injected(DEFECT):
        engine = make_engine(enable_kv_cache_events=True)
        classify(engine)

    assert engine.containers()["kv_events"] == 0
    assert engine.counters.kv_events_published > 0
    assert "entries_undrained" not in TRUTH.counts()


def test_the_defect_changes_no_token() -> None:
    prompts = [[i, i + 1, i + 2] for i in range(5)]
    params = SamplingParams(max_new_tokens=4)
    healthy = make_engine().generate(prompts, params)
    with injected(DEFECT):
        assert make_engine().generate(prompts, params) == healthy


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        classify(make_engine())
    engine = make_engine()
    classify(engine)

    assert engine.containers()["kv_events"] == 0
