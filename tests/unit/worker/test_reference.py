"""The reference matches a healthy engine, and stops at the first token that differs."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from hybridbench.engine.engine import Engine
from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.model_runner import ModelRunner
from hybridbench.engine.next_token import NextTokens, uniform
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.prefill import AddReqResult, PrefillAdder
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.records.answers import MEASURED, pack_tokens, tolerance_of
from hybridbench.records.messages import Recompute, Recomputed
from hybridbench.worker import reference as reference_module
from hybridbench.worker.reference import (
    NearTie,
    Reference,
    RoutingWatch,
    recomputed,
    without_reuse,
)

CONFIG = EngineConfig(
    model="qwen3-next-nano",
    kv_tokens=2048,
    max_context_len=256,
    mamba_slots=24,
    max_running_requests=6,
    chunked_prefill_size=32,
    max_prefill_tokens=64,
)
SHARED = [7 * index % 2000 for index in range(48)]
PROMPTS = [[*SHARED[: 8 * (index % 6)], 100 + index, 17, *range(index)] for index in range(24)]
GREEDY = SamplingParams(max_new_tokens=10, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=0.9, seed=31)


@cache
def reference() -> Reference:
    return Reference(CONFIG)


def answers(params: SamplingParams = GREEDY) -> list[list[int]]:
    """Serve all prompts twice in one engine, so that the second answers reuse states."""
    engine = Engine(CONFIG)
    engine.generate(PROMPTS, params)
    return engine.generate(PROMPTS, params)


def wrong_ones(outputs: list[list[int]], params: SamplingParams = GREEDY) -> list[int]:
    found = []
    for index, (prompt, output) in enumerate(zip(PROMPTS, outputs, strict=True)):
        _, distance, _ = reference().compare(prompt, output, 0, params.temperature, params.seed)
        if distance > MEASURED["qwen3_next"].distance:
            found.append(index)
    return found


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_healthy_answers_agree_whatever_was_shared_chunked_or_beside_them(
    params: SamplingParams,
) -> None:
    assert wrong_ones(answers(params), params) == []


def test_states_that_are_not_cleared_show_in_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MambaPool, "clear_slots", lambda self, idx: None)

    # The reference is patched too, but its pools are new and zero for each answer.
    assert len(wrong_ones(answers())) >= 2


def test_a_slot_that_is_freed_under_an_admitted_request_shows_in_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[str] = []
    healthy = PrefillAdder.add_one_req

    def as_first_proposed(self: PrefillAdder, req: Req) -> AddReqResult:
        """As in the first commit of sglang#21404: whatever ends the admission counts as refused."""
        added = healthy(self, req)
        if added is not AddReqResult.CONTINUE and self.can_run_list[-1:] == [req]:
            lost.append(req.rid)
            self._return_unadmitted(req)
        return added

    monkeypatch.setattr(PrefillAdder, "add_one_req", as_first_proposed)

    wrong = wrong_ones(answers())

    assert lost
    assert wrong


@pytest.mark.parametrize("chunk", [0, 5])
def test_it_stops_at_the_first_token_that_differs_and_says_how_far_it_is(chunk: int) -> None:
    prompt = PROMPTS[5]
    (right,) = Engine(CONFIG).generate([prompt], GREEDY)
    altered = [*right[:4], (right[4] + 1) % 2048, *right[5:]]

    agreed, distance, best = reference().compare(prompt, altered, chunk)

    assert (agreed, best) == (4, right[4])
    assert distance > 0.001
    assert reference().compare(prompt, right, chunk) == (10, 0.0, -1)


@pytest.mark.parametrize(
    "changed", [{"seed": 32}, {"temperature": 0.3}], ids=["another-seed", "colder"]
)
def test_tokens_drawn_in_another_way_show_in_answers(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, float]
) -> None:
    healthy = ModelRunner.next_tokens

    def for_its_neighbour(
        self: ModelRunner, batch: ForwardBatch, logits: Tensor, params: list[SamplingParams]
    ) -> NextTokens:
        """Draw the last of several requests with changed parameters."""
        others = [*params[:-1], replace(params[-1], **changed)]  # type: ignore[arg-type]
        return healthy(self, batch, logits, others if len(params) > 1 else params)

    monkeypatch.setattr(ModelRunner, "next_tokens", for_its_neighbour)

    assert len(wrong_ones(answers(DRAWN), DRAWN)) >= 2


def forward_passes(monkeypatch: pytest.MonkeyPatch, config: EngineConfig, answer: Recompute) -> int:
    """Return the number of forward passes in which the reference checks a correct answer."""
    judge = Reference(config)
    modes: list[str] = []
    healthy = judge.model.forward

    def counted(batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> Tensor:
        modes.append(batch.mode)
        return healthy(batch, kv_pool)

    monkeypatch.setattr(judge.model, "forward", counted)
    found = recomputed(judge, answer)
    assert (found.compared, found.wrong_place, found.error) == (10, -1, "")
    return len(modes)


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_right_answer_is_confirmed_in_two_steps_but_not_by_drafts_under_test(
    monkeypatch: pytest.MonkeyPatch, params: SamplingParams
) -> None:
    [right] = Engine(CONFIG).generate([PROMPTS[5]], params)
    packed = pack_tokens(PROMPTS[5]), pack_tokens(right)
    answer = Recompute(1, *packed, temperature=params.temperature, seed=params.seed)

    assert forward_passes(monkeypatch, CONFIG, answer) == 2
    drafting = replace(CONFIG, speculative_algorithm="NGRAM")
    assert forward_passes(monkeypatch, drafting, answer) == 10


@pytest.mark.parametrize("place", [0, 1, 8, 9])
def test_an_answer_with_a_wrong_token_is_not_confirmed(place: int) -> None:
    [right] = Engine(CONFIG).generate([PROMPTS[5]], GREEDY)
    wrong = [*right[:place], (right[place] + 1) % 2048, *right[place + 1 :]]

    assert reference().confirms(PROMPTS[5], right)
    assert not reference().confirms(PROMPTS[5], wrong)


def logits_after(prompt: list[int]) -> Tensor:
    """Return the logits [V] after ``prompt``, computed alone."""
    engine = Engine(without_reuse(CONFIG), model=reference().model)
    engine.submit("one", prompt, SamplingParams(max_new_tokens=1, ignore_eos=True))
    engine.step()
    logits = reference().model.logits
    assert logits is not None
    return logits[0].double()


def test_the_distance_of_a_drawn_token_is_what_its_random_number_lacks() -> None:
    prompt = PROMPTS[1]
    agreed, distance, own = reference().compare(prompt, [0, 0], 0, 0.5, 31)

    row = logits_after(prompt)
    ends = (row / 0.5).softmax(dim=0).cumsum(dim=0)
    drawn = uniform(31, len(prompt))
    assert agreed == 0
    assert ends[own - 1] <= drawn < ends[own]
    assert distance == pytest.approx(float(4 * 0.5 * (drawn - ends[0]) / row.std()), rel=1e-3)


def test_the_distance_is_in_standard_deviations_of_the_logits() -> None:
    prompt = PROMPTS[1]
    _, distance, best = reference().compare(prompt, [0, 0])

    row = logits_after(prompt)
    assert best == int(row.argmax())
    assert distance == pytest.approx(float((row.max() - row[0]) / row.std()), rel=1e-3)


def test_a_near_tie_between_experts_is_seen() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0, 3.0 - 1e-6], [0.0, 5.0, 1.0, 2.0]])

    with RoutingWatch() as watch:
        scores.topk(1, dim=-1)
    with RoutingWatch(watch.near_ties[0]):
        other = scores.topk(1, dim=-1)

    assert watch.least_gap == pytest.approx(1e-6 / float(scores[0].square().mean().sqrt()), rel=0.3)
    assert [(tie.call, tie.row) for tie in watch.near_ties] == [(0, 0)]
    assert other.indices.tolist() == [[3], [1]]
    assert other.values.tolist() == [[float(scores[0, 3])], [5.0]]


def test_a_near_tie_is_seen_between_two_experts_too() -> None:
    with RoutingWatch() as watch:
        torch.tensor([[0.5, 0.5 + 1e-6], [0.5, -0.5]]).topk(1, dim=-1)

    assert [tie.row for tie in watch.near_ties] == [0]


def test_a_near_tie_between_experts_excuses_only_what_the_other_expert_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference_module, "ROUTING_GAP_LEAST", 0.01)
    judge = Reference(replace(CONFIG, model="qwen3-next-tiny"))
    with RoutingWatch() as watch:
        right = drawn_alone(judge)
    tie, reversed_ = next(
        (tie, output) for tie in watch.near_ties if (output := drawn_alone(judge, tie)) != right
    )
    place = next(n for n, token in enumerate(right) if reversed_[n] != token)
    altered = [*right[:place], (right[place] + 1000) % 2048, *right[place + 1 :]]

    excused, wrong = (judged_carefully(judge, output) for output in (reversed_, altered))

    assert (excused.wrong_place, wrong.wrong_place) == (place, place)
    assert excused.routing_gap == pytest.approx(tie.gap, rel=0.1)
    assert wrong.routing_gap is None


def drawn_alone(judge: Reference, tie: NearTie | None = None) -> list[int]:
    """Return the answer of an engine in which ``tie``, if given, is reversed."""
    engine = Engine(without_reuse(CONFIG), model=judge.model)
    with RoutingWatch(tie) if tie else nullcontext():
        [output] = engine.generate([PROMPTS[17]], DRAWN)
    return output


def judged_carefully(judge: Reference, output: list[int]) -> Recomputed:
    packed = pack_tokens(PROMPTS[17]), pack_tokens(output)
    drawn = {"temperature": DRAWN.temperature, "seed": DRAWN.seed}
    return recomputed(judge, Recompute(1, *packed, careful=True, **drawn))  # type: ignore[arg-type]


def test_an_answer_that_cannot_be_computed_is_an_error_and_no_difference() -> None:
    found = recomputed(reference(), Recompute(1, pack_tokens([99_999]), pack_tokens([1])))

    assert "token" in found.error
    assert found.wrong_place == -1


def test_models_beyond_the_measured_size_have_no_tolerance() -> None:
    known = MEASURED["qwen3_next"]

    assert tolerance_of("qwen3_next", known.layers, known.hidden_size) == known.distance
    assert tolerance_of("qwen3_next", known.layers + 1, known.hidden_size) is None
    assert tolerance_of("qwen3_next", known.layers, 2 * known.hidden_size) is None
    assert tolerance_of("some_later_family", 1, 1) is None
