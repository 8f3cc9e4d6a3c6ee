"""Speculation changes no token and loses no slot, with right, wrong and truncated drafts.

test_every_cell.py tests with a real model that verifying and decoding compute the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler import verify
from hybridbench.engine.scheduler.release import RequestRelease
from tests.builders import NANO_MODEL, make_attention_engine, make_engine
from tests.drafters import HalfRightDrafter
from tests.engine_programs import EngineProgram, run_against_oracle
from tests.laws.test_engine_attention_only import OUTPUTS_BIND, PROMPTS_BIND
from tests.laws.test_engine_attention_only import SQUEEZES as PAGED_SQUEEZES
from tests.laws.test_engine_equals_no_reuse import LONGEST_OUTPUT, LONGEST_PROMPT, SQUEEZES


def _with_drafts(config: dict[str, Any], seed: int) -> dict[str, Any]:
    drafter = HalfRightDrafter(NANO_MODEL.vocab_size)
    return {**config, "drafter": drafter, "speculative_num_draft_tokens": 2 + seed % 5}


def make_hybrid_program(name: str, seed: int) -> EngineProgram:
    return EngineProgram(
        make_engine(**_with_drafts(SQUEEZES[name], seed)),
        random.Random(seed),
        longest_output=LONGEST_OUTPUT.get(name, 10) + 12,
        longest_prompt=LONGEST_PROMPT.get(name, 60),
    )


def make_paged_program(page_size: int, name: str, seed: int) -> EngineProgram:
    sizes = {"max_context_len": 352, "max_prefill_tokens": 256}
    longest = OUTPUTS_BIND if name == "outputs" else PROMPTS_BIND
    longest_prompt, longest_output, stretch = longest[page_size]
    config = _with_drafts({**sizes, **PAGED_SQUEEZES[page_size, name]}, seed)
    return EngineProgram(
        make_attention_engine(page_size, **config),
        random.Random(seed),
        longest_prompt=longest_prompt,
        longest_output=longest_output,
        stretch=stretch,
        make_oracle=partial(make_attention_engine, page_size, max_context_len=352),
    )


def test_every_hybrid_program_gives_the_tokens_of_the_engine_without_reuse() -> None:
    names = enumerate([*SQUEEZES, "short prompts, long outputs", "kv tokens bind"])
    programs = ((f"seed {seed}, {name}", make_hybrid_program(name, seed)) for seed, name in names)

    seen = run_against_oracle(programs, 70)

    for event, least in (
        ("verify_steps", 220),
        ("drafts_accepted", 220),
        ("draft_tails", 310),
        ("cow_copies", 30),
        ("retracts", 1),
        ("abort_decode", 6),
    ):
        assert seen[event] >= least, (event, seen)


def test_every_attention_only_program_gives_the_tokens_of_the_engine_without_reuse() -> None:
    programs = (
        (f"seed {seed}, pages of {page_size}, {name}", make_paged_program(page_size, name, seed))
        for seed, (page_size, name) in enumerate(PAGED_SQUEEZES)
    )

    seen = run_against_oracle(programs, 40)

    for event, least in (
        ("drafts_accepted", 200),
        ("draft_tails", 30),
        ("prefix_hits", 15),
        ("retracts", 1),
    ):
        assert seen[event] >= least, (event, seen)


def test_a_chunk_cache_serves_verifying_steps_as_well() -> None:
    engine = make_engine(**_with_drafts({"cache": "chunk", "kv_tokens": 220}, 2))

    seen = run_against_oracle([("chunk", EngineProgram(engine, random.Random(3)))], 100)

    assert seen["draft_tails"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4000, 4036))
def test_long_programs_give_the_tokens_of_the_engine_without_reuse(seed: int) -> None:
    if seed % 2:
        program = make_hybrid_program(list(SQUEEZES)[seed // 2 % len(SQUEEZES)], seed)
    else:
        program = make_paged_program(*list(PAGED_SQUEEZES)[seed // 2 % len(PAGED_SQUEEZES)], seed)

    run_against_oracle([("one program", program)], 2500)


_HEALTHY_UPDATE = MambaPool.update_mamba_state_after_verify


def _keep_one_more(pool: MambaPool, slots: Sequence[int], steps: Sequence[int]) -> None:
    """A mutant: keeps the state after one token more, where there is one."""
    most = pool._drafted[0].shape[0] - 1
    _HEALTHY_UPDATE(pool, slots, [min(step + 1, most) for step in steps])


def _lose_tail(release: RequestRelease, req: Req) -> None:
    """A mutant: corrects the allocated length without freeing the slots behind it."""
    del release
    req.kv.kv_allocated_len = req.kv.kv_committed_len


def _accept_all(req: Req, guesses: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """A mutant: accepts all draft tokens."""
    del req
    return [*guesses, chosen[-1]]


@pytest.mark.parametrize(
    ("holder", "method", "mutant"),
    [
        (MambaPool, "update_mamba_state_after_verify", _keep_one_more),
        (RequestRelease, "free_draft_tail", _lose_tail),
        (verify, "_right", _accept_all),
    ],
    ids=["state", "tail", "guesses"],
)
def test_the_law_sees_a_step_that_is_taken_back_wrongly(
    holder: object, method: str, mutant: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, method, mutant)
    program = make_hybrid_program("many rows", 3)

    with pytest.raises((AssertionError, RuntimeError)):
        run_against_oracle([("one program", program)], 150)
