from __future__ import annotations

from collections import Counter

import pytest

from hybridbench.workload.draws import Ending, EndingPlan, TokenPace
from hybridbench.workload.rng_streams import stream
from hybridbench.workload.settings import Aborts


def test_endings_come_by_their_shares_seed_1() -> None:
    plan = EndingPlan(Aborts(queued=0.1, prefill=0.2, decode=0.3, disconnect=0.15), stream(1, "e"))

    counts = Counter(plan.draw() for _ in range(20_000))

    for ending, share in (
        (Ending.ABORT_QUEUED, 0.1),
        (Ending.ABORT_PREFILL, 0.2),
        (Ending.ABORT_DECODE, 0.3),
        (Ending.DISCONNECT, 0.15),
        (Ending.NATURAL, 0.25),
    ):
        assert counts[ending] / 20_000 == pytest.approx(share, abs=0.015)


def test_a_cut_leaves_time_for_it_before_the_answer_is_complete_seed_2() -> None:
    plan = EndingPlan(Aborts(decode=1.0), stream(2, "e"))

    assert {plan.tokens_before_cut(8) for _ in range(200)} == {0, 1, 2, 3}
    assert plan.tokens_before_cut(1) == 0


def test_the_pace_follows_the_requests_that_finished() -> None:
    pace = TokenPace()
    assert pace.expected_s(10) == 0.0

    for _ in range(100):
        pace.learn(duration_s=0.4, intervals=4)
    pace.learn(duration_s=9.0, intervals=0)

    assert pace.expected_s(3) == pytest.approx(0.3, rel=1e-4)
