"""The fake model of most tests: reading a wrong slot, or a wrong order, gives another text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import make_attention_engine, make_engine, run_to_idle

PROMPT = list(range(1, 30))
LONG = SamplingParams(max_new_tokens=30, ignore_eos=True)


def text(spoil: Callable[[Engine], None], make: Callable[..., Engine] = make_engine) -> list[int]:
    """Return the output after ``PROMPT`` if ``spoil`` changes the pools after the first decode."""
    engine = make(chunked_prefill_size=None, check_level="off")
    engine.submit("r", PROMPT, LONG)
    engine.step()
    spoil(engine)
    events = run_to_idle(engine)
    return list(events[-1].output_ids)


def healthy(engine: Engine) -> None:
    del engine


def swap_two_positions(engine: Engine) -> None:
    row = engine.pools.req_to_token_pool.req_to_token[engine.scheduler.running[0].kv.row]
    row[[3, 4]] = row[[4, 3]]


def read_one_foreign_position(engine: Engine) -> None:
    row = engine.pools.req_to_token_pool.req_to_token[engine.scheduler.running[0].kv.row]
    row[5] = 100


def clear_the_state(engine: Engine) -> None:
    rows = engine.pools.hybrid_rows
    slot = engine.scheduler.running[0].kv.mamba_pool_idx
    assert rows is not None
    assert slot is not None
    rows.mamba_pool.clear_slots(slot)


@pytest.mark.parametrize("spoil", [swap_two_positions, read_one_foreign_position, clear_the_state])
def test_a_text_that_is_read_from_a_wrong_slot_goes_on_otherwise(
    spoil: Callable[[Engine], None],
) -> None:
    assert text(spoil) != text(healthy)


def test_a_model_without_states_reads_every_position_as_well() -> None:
    assert text(swap_two_positions, make_attention_engine) != text(healthy, make_attention_engine)


@pytest.mark.parametrize("chunk", [None, 16, 5, 1])
def test_prefill_in_chunks_decoding_and_verifying_give_the_same_text(chunk: int | None) -> None:
    expected = text(healthy)
    drafts: dict[str, Any] = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4}

    for changes in ({}, drafts):
        engine = make_engine(chunked_prefill_size=chunk, **changes)
        assert engine.generate([PROMPT], LONG) == [expected]
        # The prompt and a part of its answer, as a new prompt.
        assert engine.generate([[*PROMPT, *expected[:11]]], LONG)[0][:19] == expected[11:]
