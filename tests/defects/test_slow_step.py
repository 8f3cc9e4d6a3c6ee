"""The injected slowdown costs the stated share of time, and changes no token."""

from __future__ import annotations

import time

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.slow_step import DEFECT, LOST, TRUTH, Burden
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import assert_idle_and_clean, make_engine

PROMPTS = [[1, 2, 3, 4, 5, n] for n in range(8)]


def test_tokens_and_pools_are_those_of_the_healthy_engine() -> None:
    greedy = SamplingParams(max_new_tokens=4, temperature=0.0)
    expected = make_engine().generate(PROMPTS, greedy)

    with injected(DEFECT):
        engine = make_engine()
        got = engine.generate(PROMPTS, greedy)

    assert got == expected
    assert_idle_and_clean(engine)


def test_the_burned_share_costs_five_percent_of_the_throughput() -> None:
    TRUTH.clear()
    burden = Burden()

    began_s = time.thread_time()
    for _ in range(20):
        burden.begin_step()
        until_s = time.thread_time() + 0.005
        while time.thread_time() < until_s:
            pass
        burden.end_step(more=True)
    took_s = time.thread_time() - began_s

    burned_s = TRUTH.counts()["burned_us"] / 1e6
    assert TRUTH.counts()["steps"] == 20
    # Both are processor time of this thread, so other load on the machine hardly matters.
    assert burned_s / took_s == pytest.approx(LOST, rel=0.15)


def test_a_pause_without_work_costs_nothing() -> None:
    TRUTH.clear()
    burden = Burden()
    burden.begin_step()
    burden.end_step(more=False)
    before_us = TRUTH.counts()["burned_us"]

    until_s = time.perf_counter() + 0.2
    while time.perf_counter() < until_s:
        pass
    burden.begin_step()
    burden.end_step(more=False)

    assert TRUTH.counts()["burned_us"] - before_us < 5_000
