"""``extra_key`` and ``eviction_policy`` reach the cache of an engine, and change no token."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest

from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import EvictionPolicy, HiCache
from hybridbench.foundation.errors import ConfigError
from tests.builders import (
    assert_idle_and_clean,
    make_attention_engine,
    make_engine,
    make_window_engine,
    run_to_idle,
)
from tests.engine_programs import EngineProgram

PROMPT = list(range(1, 21))
PARAMS = SamplingParams(max_new_tokens=4, ignore_eos=True)
CACHES: dict[str, Any] = {
    "attention": make_attention_engine,
    "hybrid": make_engine,
    "windows": make_window_engine,
    "unified": lambda **changes: make_engine(cache="unified", **changes),
}


@pytest.mark.parametrize("cache", CACHES)
def test_requests_with_different_keys_share_no_prefix(cache: str) -> None:
    engine = CACHES[cache]()
    hits, outputs = [], []
    for rid, key in (("a", None), ("b", "red"), ("c", "red"), ("d", "blue"), ("e", None)):
        before = engine.counters.prefix_hits
        prompt = PROMPT if rid in "abd" else [*PROMPT, 30, 31]
        engine.submit(rid, prompt, PARAMS, extra_key=key)
        ends = [event.output_ids for event in run_to_idle(engine) if event.ends_request]
        hits.append(engine.counters.prefix_hits - before)
        outputs.append(list(ends[0]))

    assert hits == [0, 0, 1, 0, 1]
    assert outputs[0] == outputs[1] == outputs[3]
    assert outputs[2] == outputs[4]
    assert_idle_and_clean(engine)


@pytest.mark.parametrize("policy", get_args(EvictionPolicy))
@pytest.mark.parametrize("hicache", [HiCache(), HiCache(ratio=1.0)], ids=["device", "host"])
def test_every_policy_evicts_and_changes_no_token(policy: str, hicache: HiCache) -> None:
    engine = make_attention_engine(kv_tokens=180, eviction_policy=policy, hicache=hicache)
    program = EngineProgram(engine, random.Random(4), make_oracle=make_attention_engine)

    program.run(80)

    program.compare_with_oracle()
    assert engine.counters.evict_calls > 0


def test_the_policy_decides_who_goes() -> None:
    def second_hit(policy: str) -> bool:
        """Return whether the first prompt still hits after two others were served."""
        engine = make_attention_engine(kv_tokens=64, eviction_policy=policy)
        for rid, first in (("a", 1), ("b", 2), ("c", 3)):
            engine.submit(rid, [first] * 24, PARAMS)
            run_to_idle(engine)
        before = engine.counters.prefix_hits
        engine.submit("again", [1] * 24 + [9], PARAMS)
        run_to_idle(engine)
        return engine.counters.prefix_hits > before

    assert not second_hit("lru")
    assert second_hit("mru")


@pytest.mark.parametrize("cache", ["hybrid", "windows"])
def test_a_tree_that_evicts_by_age_alone_takes_no_other_policy(cache: str) -> None:
    with pytest.raises(ConfigError, match="eviction_policy is lfu; set it to lru"):
        CACHES[cache](eviction_policy="lfu")


def test_the_unified_tree_takes_any_policy() -> None:
    engine = make_engine(cache="unified", eviction_policy="fifo", kv_tokens=180, mamba_slots=12)
    program = EngineProgram(engine, random.Random(4))

    program.run(80)

    program.compare_with_oracle()
