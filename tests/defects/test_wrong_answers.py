"""Defects that change answers, in a whole engine: every slot is accounted for; tokens are wrong.

A random program is compared with an engine that reuses nothing.  The program checks every slot of
every pool after each step, so the test fails if a defect shows there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest

from hybridbench.defects.catalog import DEFECTS
from hybridbench.defects.defect import Defect
from hybridbench.defects.inject import injected
from hybridbench.engine.engine import Engine
from hybridbench.foundation.engine_config import HiCache, NewTokenRatio
from tests.builders import NANO_MODEL, make_engine, make_tracking_engine
from tests.drafters import HalfRightDrafter
from tests.engine_programs import EngineProgram
from tests.host_transfers import ChosenTransfers

SEEDS = range(3)


class Traffic(NamedTuple):
    """An engine with barely sufficient pools, and the lengths of its requests."""

    make: Callable[..., Engine]
    changes: Mapping[str, Any]
    prompt: int = 60
    output: int = 12
    stretch: int = 1


STATES = {"mamba_slots": 12, "kv_tokens": 300}
# Prompts are long enough to hit states saved while earlier answers were decoded.
TRACKED = {
    "mamba_slots": 30,
    "kv_tokens": 600,
    "max_context_len": 352,
    "max_prefill_tokens": 256,
    "mamba_cache_chunk_size": 32,
    "mamba_track_interval": 3,
}
# Reserves little for outputs, so that decoding runs out of room.
DARING = NewTokenRatio(init=1.0, min=0.0, decay_steps=1)
TRAFFIC = {
    "running-state-freed": Traffic(make_engine, STATES),
    "states-not-cleared": Traffic(make_engine, STATES),
    "tracked-length-lags": Traffic(
        make_tracking_engine, {**TRACKED, "enable_overlap_schedule": True}, 120, 24, 2
    ),
    "verify-without-commit": Traffic(
        make_engine, {**STATES, "speculative_num_draft_tokens": 4}, output=24
    ),
    "host-state-misplaced": Traffic(
        make_engine, {"mamba_slots": 9, "kv_tokens": 180, "hicache": HiCache(ratio=1.5)}
    ),
    "flattened-snapshot": Traffic(make_tracking_engine, TRACKED, 120, 24, 2),
    "stale-resumed-state": Traffic(
        make_engine,
        {
            "mamba_slots": 40,
            "kv_tokens": 130,
            "max_running_requests": 14,
            "new_token_ratio": DARING,
        },
        prompt=16,
        output=40,
    ),
    "attention-hit-longer": Traffic(make_engine, STATES),
}


def program_of(slug: str, seed: int) -> EngineProgram:
    traffic = TRAFFIC[slug]
    changes = dict(traffic.changes)
    if "speculative_num_draft_tokens" in changes:
        changes["drafter"] = HalfRightDrafter(NANO_MODEL.vocab_size)
    if "hicache" in changes:
        delays = random.Random(seed)
        changes["transfers"] = ChosenTransfers(iter(lambda: delays.randint(0, 4), -1))
    return EngineProgram(
        traffic.make(**changes),
        random.Random(seed),
        longest_prompt=traffic.prompt,
        longest_output=traffic.output,
        stretch=traffic.stretch,
        make_oracle=partial(traffic.make, max_context_len=352),
    )


# The other defects are tested only in the long suite: each pair takes at least ten seconds.
_FEW = ("states-not-cleared", "attention-hit-longer")
EACH = pytest.mark.parametrize(
    "defect",
    [
        pytest.param(one, id=one.slug, marks=() if one.slug in _FEW else pytest.mark.slow)
        for one in DEFECTS
        if one.signature.kinds == ("wrong-answers",)
    ],
)


@EACH
def test_the_healthy_engine_gives_right_answers_to_the_same_traffic(defect: Defect) -> None:
    for seed in SEEDS[:2]:
        program = program_of(defect.slug, seed)
        program.run(200)
        program.compare_with_oracle()


@EACH
def test_with_the_defect_answers_are_wrong_and_nothing_is_missing_anywhere(
    defect: Defect,
) -> None:
    wrong = 0
    defect.truth.clear()
    for seed in SEEDS:
        with injected(defect):
            program = program_of(defect.slug, seed)
            program.run(200)
        wrong += len(program.wrong_answers())
        if wrong > 1:
            break

    assert defect.truth.counts()[defect.signature.harm] > 0
    assert wrong > 1
