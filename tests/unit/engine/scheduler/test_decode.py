from __future__ import annotations

import pytest

from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.decode import (
    NewTokenRatioTracker,
    decode_room_needed,
    retract_order,
)
from hybridbench.foundation.engine_config import NewTokenRatio
from tests.builders import make_req


def _running(rid: str, prompt_len: int, outputs: int, max_new_tokens: int = 50) -> Req:
    req = make_req(rid, [1] * prompt_len, max_new_tokens)
    req.output_ids = [2] * outputs
    return req


def test_the_fewest_outputs_go_first_and_then_the_longest_prompt() -> None:
    running = [_running("a", 5, 9), _running("b", 5, 2), _running("c", 8, 2), _running("d", 5, 4)]

    assert [req.rid for req in retract_order(running)] == ["c", "b", "d", "a"]


def test_the_ratio_decays_to_its_minimum() -> None:
    tracker = NewTokenRatioTracker(NewTokenRatio(init=0.7, min=0.1, decay_steps=3))
    seen = [tracker.value]

    for _ in range(5):
        tracker.decay()
        seen.append(tracker.value)

    assert seen == pytest.approx([0.7, 0.5, 0.3, 0.1, 0.1, 0.1])


def test_a_retract_sets_the_ratio_to_what_the_others_have_shown() -> None:
    tracker = NewTokenRatioTracker(NewTokenRatio(init=0.1, min=0.1))

    tracker.reestimate([_running("a", 5, 10, 100), _running("b", 5, 30, 100)])

    # (40 decoded + 2 requests x 20 steps) / 200 promised.
    assert tracker.value == pytest.approx(0.4)


def test_the_ratio_stays_between_its_minimum_and_one() -> None:
    tracker = NewTokenRatioTracker(NewTokenRatio(init=0.5, min=0.3))

    tracker.reestimate([_running("a", 5, 1, 10)])
    assert tracker.value == 1.0
    tracker.reestimate([_running("a", 5, 0, 1000)])
    assert tracker.value == 0.3
    tracker.reestimate([])
    assert tracker.value == 0.3


def test_a_decode_step_takes_a_token_each_or_a_page_at_page_borders() -> None:
    running = [make_req(str(i)) for i in range(3)]
    for req, committed in zip(running, (15, 16, 32), strict=True):
        req.kv.kv_committed_len = req.kv.kv_allocated_len = committed

    assert decode_room_needed(running, page_size=1) == 3
    assert decode_room_needed(running, page_size=16) == 32
