"""The runner: tokens of a step, and scratch memory at its peak before anyone measures."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.model_runner import ModelRunner, StepLimits
from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.registry import build_model
from hybridbench.engine.sampling_params import SamplingParams
from tests.model_steps import NANO_MODEL, Stepper


class RecordingModel:
    """Remembers the batches it saw."""

    def __init__(self) -> None:
        self._model = build_model(NANO_MODEL, torch.float64, "cpu", seed=5)
        self.batches: list[ForwardBatch] = []

    @property
    def config(self) -> ModelConfig:
        return self._model.config

    def forward(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> Tensor:
        self.batches.append(batch)
        return self._model.forward(batch, kv_pool)


def test_greedy_tokens_are_those_of_the_logits() -> None:
    model = build_model(NANO_MODEL, torch.float64, "cpu", seed=5)
    stepper, other = Stepper(model, seed=1), Stepper(model, seed=1)
    requests = [stepper.start(), stepper.start()]
    expected = stepper.extend(requests, [[1, 2, 3], [4]]).argmax(dim=-1).tolist()
    batch = other.batch("extend", [other.start(), other.start()], [[1, 2, 3], [4]])

    tokens = ModelRunner(model, other.kv_pool).next_tokens(batch, [SamplingParams()] * 2)

    assert tokens.ids == expected


def test_a_drawn_token_does_not_depend_on_chunks_or_neighbours() -> None:
    model = build_model(NANO_MODEL, torch.float64, "cpu", seed=5)
    params = SamplingParams(temperature=1.0, seed=9)
    text = list(range(12))
    whole, split = Stepper(model, seed=1), Stepper(model, seed=2)
    request, neighbour, other = whole.start(), whole.start(), split.start()
    split.extend([other], [text[:7]])

    together = ModelRunner(model, whole.kv_pool).next_tokens(
        whole.batch("extend", [neighbour, request], [[3, 4], text]), [params, params]
    )
    alone = ModelRunner(model, split.kv_pool).next_tokens(
        split.batch("extend", [other], [text[7:]]), [params]
    )

    assert together.ids[1] == alone.ids[0]


def test_the_largest_shapes_touch_slot_0_only() -> None:
    model = RecordingModel()
    stepper = Stepper(build_model(NANO_MODEL, torch.float64, "cpu", seed=5), poison=False)
    limits = StepLimits(running_requests=5, prefill_tokens=100, context_len=300)

    ModelRunner(model, stepper.kv_pool).touch_largest(limits)

    modes = [(batch.mode, batch.batch_size) for batch in model.batches]
    assert modes == [("extend", 1), ("extend", 5), ("decode", 5), ("decode", 1)]
    assert [len(batch.input_ids) for batch in model.batches] == [100, 100, 5, 1]
    assert max(max(batch.seq_lens) for batch in model.batches) == 300
    for batch in model.batches:
        for indices in (batch.kv_indices, batch.out_cache_loc, batch.mamba_indices):
            assert np.count_nonzero(indices) == 0
        assert sum(batch.seq_lens) <= stepper.kv_pool.size
    for tensor in stepper.all_tensors():
        by_slot = tensor if tensor.dim() == 3 else tensor.transpose(0, 1)
        assert bool((by_slot[1:] == 0).all())


def test_limits_beyond_the_pool_are_cut_to_it() -> None:
    model = RecordingModel()
    stepper = Stepper(build_model(NANO_MODEL, torch.float64, "cpu", seed=5), poison=False)
    limits = StepLimits(running_requests=7, prefill_tokens=5000, context_len=4000)

    ModelRunner(model, stepper.kv_pool).touch_largest(limits)

    for batch in model.batches:
        assert sum(batch.seq_lens) <= stepper.kv_pool.size
        assert min(batch.prefix_lens) >= 0


def test_with_drafts_the_largest_chains_are_run_as_well() -> None:
    model = RecordingModel()
    stepper = Stepper(build_model(NANO_MODEL, torch.float64, "cpu", seed=5), poison=False)
    old = stepper.states
    stepper.kv_pool.mamba_pool = MambaPool(
        old.size, old.cache_params, NANO_MODEL.linear_layer_ids, "cpu", torch.float64,
        spec_state_size=5, speculative_num_draft_tokens=4,
    )  # fmt: skip
    limits = StepLimits(running_requests=5, prefill_tokens=100, context_len=300, draft_tokens=4)

    ModelRunner(model, stepper.kv_pool).touch_largest(limits)

    chains = model.batches[-1]
    assert (chains.mode, chains.batch_size, len(chains.input_ids)) == ("verify", 5, 20)
    assert max(chains.seq_lens) == stepper.kv_pool.size // 5


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
        runner.next_tokens(other.batch("decode", [theirs], [[token]]), [params]).ids[0]
        for token in (4, 5, 6)
    ]

    batch = stepper.batch("verify", [mine], [[4, 5, 6]])
    together = ModelRunner(model, stepper.kv_pool).next_tokens(batch, [params])

    assert together.ids == one_by_one
