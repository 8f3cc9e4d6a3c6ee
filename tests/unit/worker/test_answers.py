"""Which finished requests are sampled for recomputation, and what is recorded about them."""

from __future__ import annotations

from collections import Counter

import pytest

from hybridbench.engine.lineage import Passed
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.records.answers import Trait, has_trait, unpack_tokens
from hybridbench.records.messages import FinishedAnswer
from hybridbench.worker.answers import AnswerSample, traits_of

CONFIG = EngineConfig(seed=3)
GREEDY = SamplingParams(max_new_tokens=2)


def finished(
    rid: str,
    *,
    cached: int = 0,
    payload: bytes = b"",
    params: SamplingParams = GREEDY,
) -> Req:
    req = Req(rid, [1, 2, 70_000], params)
    req.output_ids = [5, 6]
    req.cached_tokens = cached
    req.payload = payload
    return req


def kept(sample: AnswerSample) -> dict[tuple[bool, int], FinishedAnswer]:
    return {(answer.reused, answer.place): answer for answer in sample.take()}


def test_an_answer_has_the_prompt_as_it_was_computed_and_what_was_emitted() -> None:
    sample = AnswerSample(4, CONFIG)

    sample.offer(finished("a", cached=2))

    (answer,) = sample.take()
    assert answer.cached_tokens == 2
    assert unpack_tokens(answer.prompt) == [1, 2, 70_000]
    assert unpack_tokens(answer.output) == [5, 6]
    assert sample.take() == []


def test_what_cannot_be_computed_anew_is_counted_and_not_drawn() -> None:
    sample = AnswerSample(4, CONFIG)

    for req in (
        finished("a"),
        finished("b", params=SamplingParams(temperature=0.7, top_k=40)),
        finished("c", params=SamplingParams(temperature=0.7, top_p=0.9)),
        finished("d", payload=b"image"),
    ):
        sample.offer(req)

    totals = sample.totals()
    assert totals is not None
    assert totals.finished == {"comparable": 1, "filtered": 2, "payload": 1}
    assert [answer.rid for answer in sample.take()] == ["a"]


def test_an_answer_says_how_its_tokens_were_drawn() -> None:
    sample = AnswerSample(4, CONFIG)

    sample.offer(finished("a", params=SamplingParams(temperature=0.7, seed=2**63)))
    sample.offer(finished("b", params=SamplingParams(temperature=0.7, top_k=1)))

    drawn, greedy = sample.take()
    assert (drawn.temperature, drawn.seed) == (0.7, 2**63)
    assert greedy.temperature == 0.0


def test_half_of_the_sample_is_for_requests_that_reused_something() -> None:
    sample = AnswerSample(8, CONFIG)

    for index in range(1000):
        sample.offer(finished(str(index), cached=0 if index % 50 else 12))

    halves = Counter(reused for reused, _ in kept(sample))
    assert halves == {False: 8, True: 8}


def test_every_request_is_drawn_with_equal_chance() -> None:
    # Each sample keeps 10 of 40 requests, so each is in a quarter of 2000 samples: 500 +- 19.
    counts: Counter[str] = Counter()
    for seed in range(2000):
        sample = AnswerSample(10, EngineConfig(seed=seed))
        for index in range(40):
            sample.offer(finished(str(index)))
        counts.update(answer.rid for answer in kept(sample).values())

    assert sum(counts.values()) == 20_000
    assert all(400 < counts[str(index)] < 600 for index in range(40))


def test_without_a_sample_nothing_is_counted() -> None:
    sample = AnswerSample(0, CONFIG)

    sample.offer(finished("a"))

    assert sample.take() == []
    assert sample.totals() is None


def test_requests_that_end_an_admission_are_distinguished_by_reuse() -> None:
    hit, fresh = finished("a", cached=8), finished("b")
    hit.passed = Passed.ENDED_ADMISSION | Passed.ENDED_AFTER_HIT
    fresh.passed = Passed.ENDED_ADMISSION

    assert set(traits_of(fresh, CONFIG)) == {Trait.REUSED_NOTHING, Trait.ENDED_ADMISSION}
    assert set(traits_of(hit, CONFIG)) == {
        Trait.REUSED_TREE,
        Trait.ENDED_ADMISSION,
        Trait.ENDED_AFTER_HIT,
    }


@pytest.mark.parametrize("strategy", ["no_buffer", "extra_buffer"])
def test_a_prefix_of_the_tree_is_told_from_a_session_and_from_none(strategy: str) -> None:
    config = EngineConfig(mamba_scheduler_strategy=strategy)  # type: ignore[arg-type]
    from_tree, fresh, turn = finished("a", cached=8), finished("b"), finished("c", cached=8)
    turn.passed = Passed.IN_SESSION

    tracked = strategy == "extra_buffer"
    assert traits_of(from_tree, config) == [Trait.REUSED_TRACKED if tracked else Trait.REUSED_TREE]
    assert set(traits_of(fresh, config)) == {Trait.REUSED_NOTHING}
    assert set(traits_of(turn, config)) == {Trait.REUSED_SESSION}


def test_an_answer_lists_its_ancestors_with_their_inheritable_traits() -> None:
    sample, req = AnswerSample(4, CONFIG), finished("a", cached=2)
    req.arrival = 9
    req.went_on_from = ((7, Passed.CHUNKED | Passed.RETRACTED), (2, Passed.IN_SESSION))

    sample.offer(req)

    [answer] = sample.take()
    assert (answer.arrival, [number for number, _ in answer.ancestors]) == (9, [7, 2])
    near, far = (packed for _, packed in answer.ancestors)
    assert [t for t in Trait if has_trait(near, t)] == [Trait.SEVERAL_CHUNKS, Trait.RETRACTED]
    assert far == 0
