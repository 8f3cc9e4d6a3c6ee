"""The model runner: the tokens that it chooses in a step."""

from __future__ import annotations

import torch

from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.model_runner import ModelRunner
from hybridbench.engine.models.registry import build_model
from hybridbench.engine.next_token import NextTokens
from hybridbench.engine.sampling_params import SamplingParams
from tests.model_steps import NANO_MODEL, Stepper


def run(runner: ModelRunner, batch: ForwardBatch, params: list[SamplingParams]) -> NextTokens:
    return runner.next_tokens(batch, runner.launch(batch), params)


def test_greedy_tokens_are_those_of_the_logits() -> None:
    model = build_model(NANO_MODEL, torch.float64, "cpu", seed=5)
    stepper, other = Stepper(model, seed=1), Stepper(model, seed=1)
    requests = [stepper.start(), stepper.start()]
    expected = stepper.extend(requests, [[1, 2, 3], [4]]).argmax(dim=-1).tolist()
    batch = other.batch("extend", [other.start(), other.start()], [[1, 2, 3], [4]])

    tokens = run(ModelRunner(model, other.kv_pool), batch, [SamplingParams()] * 2)

    assert tokens.ids == expected


def test_a_drawn_token_does_not_depend_on_chunks_or_neighbours() -> None:
    model = build_model(NANO_MODEL, torch.float64, "cpu", seed=5)
    params = SamplingParams(temperature=1.0, seed=9)
    text = list(range(12))
    whole, split = Stepper(model, seed=1), Stepper(model, seed=2)
    request, neighbour, other = whole.start(), whole.start(), split.start()
    split.extend([other], [text[:7]])

    together = run(
        ModelRunner(model, whole.kv_pool),
        whole.batch("extend", [neighbour, request], [[3, 4], text]),
        [params, params],
    )
    alone = run(
        ModelRunner(model, split.kv_pool), split.batch("extend", [other], [text[7:]]), [params]
    )

    assert together.ids[1] == alone.ids[0]


def test_of_a_chain_the_token_after_each_place_is_chosen() -> None:
    model = build_model(NANO_MODEL, torch.float64, "cpu", seed=5)
    params = SamplingParams(temperature=1.0, seed=9)
    stepper, other = Stepper(model, seed=1), Stepper(model, seed=1)
    old = stepper.states
    stepper.kv_pool.mamba_pool = stepper.states = MambaPool(
        old.size, old.cache_params, NANO_MODEL.linear_layer_ids, "cpu", torch.float64,
        spec_state_size=1, speculative_num_draft_tokens=3,
    )  # fmt: skip
    mine, theirs = stepper.start(), other.start()
    stepper.extend([mine], [[1, 2, 3]])
    other.extend([theirs], [[1, 2, 3]])
    runner = ModelRunner(model, other.kv_pool)
    one_by_one = [
        run(runner, other.batch("decode", [theirs], [[token]]), [params]).ids[0]
        for token in (4, 5, 6)
    ]

    batch = stepper.batch("verify", [mine], [[4, 5, 6]])
    together = run(ModelRunner(model, stepper.kv_pool), batch, [params])

    assert together.ids == one_by_one
