"""sglang#23696 in a whole engine: the host evicts nodes during a load; the engine reports it."""

from __future__ import annotations

import random
from collections import Counter

from hybridbench.defects.inject import injected
from hybridbench.defects.pr23696_himamba_protected_delete import DEFECT
from hybridbench.engine.cache.base import CacheSanityError
from hybridbench.foundation.engine_config import HiCache
from tests.builders import assert_idle_and_clean, make_engine
from tests.engine_programs import EngineProgram
from tests.host_transfers import ChosenTransfers

SEEDS = range(1, 5)


def chats(seed: int, host_ratio: float = 0.5) -> EngineProgram:
    """Return a random program over small pools; a transfer ends within eight polls of its start."""
    rng = random.Random(seed)
    engine = make_engine(
        kv_tokens=180,
        mamba_slots=14,
        max_context_len=352,
        max_prefill_tokens=256,
        hicache=HiCache(ratio=host_ratio),
        transfers=ChosenTransfers(iter(lambda: rng.randint(0, 8), -1)),
    )
    return EngineProgram(engine, random.Random(seed))


def test_a_healthy_host_refuses_to_give_up_what_is_read() -> None:
    refused = 0
    for seed in SEEDS:
        program = chats(seed)
        program.run(250)
        refused += program.engine.counters.host_evictions_refused
        assert_idle_and_clean(program.engine)

    assert refused > 0


def test_with_the_defect_the_engine_ends_with_its_own_word_and_no_other() -> None:
    ends: Counter[str] = Counter()
    for seed in SEEDS:
        DEFECT.truth.clear()
        with injected(DEFECT):
            try:
                chats(seed).run(250)
            except CacheSanityError as error:
                ends[error.message] += 1
                assert DEFECT.truth.counts()["protected_nodes_removed"] > 0
            else:
                assert DEFECT.truth.counts()["protected_nodes_removed"] == 0

    assert ends.total() > 1
    assert ends.keys() <= {
        "nodes were removed while being loaded",
        "host_mamba: host slots changed while being loaded",
    }


def test_nothing_goes_where_the_host_has_room() -> None:
    with injected(DEFECT):
        program = chats(0, host_ratio=8.0)
        program.run(250)

    assert program.engine.counters.host_load_backs > 0
    assert_idle_and_clean(program.engine)
