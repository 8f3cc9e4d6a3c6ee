"""sglang#31648 in a whole engine: unread states are kept, and states still needed are evicted."""

from __future__ import annotations

import random

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr31648_whole_chain_lru_refresh import DEFECT, TRUTH
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EventKind
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import assert_idle_and_clean, make_engine, run_to_idle


def hit_rate_of_chats(seed: int = 3) -> tuple[float, Engine]:
    """Serve turns of eight chats in random order, with room for three states per chat."""
    engine = make_engine(
        mamba_slots=26, kv_tokens=1200, max_context_len=96, state_refresh="used", check_level="off"
    )
    rng = random.Random(seed)
    params = SamplingParams(max_new_tokens=1, ignore_eos=True)
    chats: list[list[int]] = [[rng.randrange(48) for _ in range(4)] for _ in range(8)]
    for turn in range(160):
        at = rng.randrange(len(chats))
        if len(chats[at]) > 60:
            chats[at] = [rng.randrange(48) for _ in range(4)]
        engine.submit(f"t{turn}", chats[at], params)
        events = run_to_idle(engine)
        done = next(event for event in events if event.kind is EventKind.FINISHED)
        chats[at] += [*done.output_ids, *(rng.randrange(48) for _ in range(2))]
    counters = engine.counters
    hits = counters.prefix_hit_tokens
    return hits / (hits + counters.prompt_tokens), engine


def test_the_defect_costs_hits_and_nothing_else_shows_and_then_all_is_well_again() -> None:
    healthy, sound = hit_rate_of_chats()
    assert_idle_and_clean(sound)
    TRUTH.clear()
    with injected(DEFECT):
        defective, engine = hit_rate_of_chats()
    counts = TRUTH.counts()
    again, _ = hit_rate_of_chats()

    assert healthy - defective > 0.1
    assert counts["needless_refreshes"] > counts["refreshes"]
    # The truth counts at admission, starting with the first evicted state.
    assert counts["tokens_hit"] / counts["prompt_tokens"] == pytest.approx(defective, rel=0.05)
    assert_idle_and_clean(engine)
    assert again == healthy
    assert TRUTH.counts() == counts


def test_an_engine_refreshes_the_whole_path_by_default() -> None:
    def kept(state_refresh: str) -> list[bool]:
        """Return which of a chain's three states survive two evictions after a hit on the last."""
        engine = make_engine(mamba_slots=16, state_refresh=state_refresh)
        one = SamplingParams(max_new_tokens=1, ignore_eos=True)
        chain = [1, 2, 3, 4]
        for length in (2, 3, 4):
            engine.generate([chain[:length]], one)
        engine.generate([[9, 9, 9]], one)
        engine.generate([[*chain, 5]], one)
        assert engine.pools.make_mamba_room(engine.pools.mamba_allocator.available_size() + 2)
        nodes = sorted(engine.pools.tree_cache.iter_nodes(), key=lambda node: node.id)
        return [node.mamba_value is not None for node in nodes if node.key.raw[:1] != b"\t"][:3]

    assert kept("path") != kept("used")
    assert sum(kept("path")) > sum(kept("used"))
