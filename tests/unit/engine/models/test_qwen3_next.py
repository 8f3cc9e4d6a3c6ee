"""The Qwen3-Next model: slots are independent, batches change no result, dtypes are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch

from hybridbench.engine.forward_batch import NOT_TRACKED
from hybridbench.engine.models.presets import PRESETS
from hybridbench.engine.models.qwen3_next import Qwen3Next
from hybridbench.engine.models.qwen3_next_config import Qwen3NextConfig
from hybridbench.engine.models.registry import build_model
from hybridbench.engine.models.weights import RandomWeights
from tests.model_steps import NANO_MODEL, Stepper
from tests.unit.engine.kernels.agreement import device_of

SHAPES = {
    "nano": NANO_MODEL,
    "wide-moe": replace(NANO_MODEL, num_experts=12, num_experts_per_tok=3, norm_topk_prob=False),
    "dense": replace(NANO_MODEL, dense_layers=frozenset({0, 1}), intermediate_size=24),
}
# Without experts: in bfloat16, rounding may select another expert, which changes a result a lot.
TINY = cast("Qwen3NextConfig", PRESETS["qwen3-next-tiny"])
TINY_DENSE = replace(TINY, dense_layers=frozenset(range(4)), intermediate_size=96)


def prompts(*lengths: int, vocab: int = NANO_MODEL.vocab_size) -> list[list[int]]:
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(0, vocab, length).tolist() for length in lengths]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_request_in_float64_does_not_feel_who_shares_its_batch(shape: str) -> None:
    model = build_model(SHAPES[shape], torch.float64, "cpu", seed=2)
    texts = prompts(70, 1, 33, 130, 5)
    together, alone = Stepper(model, seed=1), Stepper(model, seed=2)
    requests = [together.start() for _ in texts]
    own = alone.start()

    crowd = [together.extend(requests, texts)[2]]
    single = [alone.extend([own], [texts[2]])[0]]
    for token in (3, 1, 4):
        crowd.append(together.decode(requests, [token] * 5)[2])
        single.append(alone.decode([own], [token])[0])

    torch.testing.assert_close(torch.stack(crowd), torch.stack(single), rtol=0.0, atol=1e-12)
    for layer in model.config.linear_layer_ids:
        for ours, theirs in zip(
            together.layer_state(layer, requests[2]), alone.layer_state(layer, own), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-12)


def test_prefill_in_float64_does_not_feel_where_it_was_split() -> None:
    model = build_model(NANO_MODEL, torch.float64, "cpu", seed=2)
    (text,) = prompts(100)
    whole, split = Stepper(model, seed=1), Stepper(model, seed=2)
    one, other = whole.start(), split.start()

    expected = whole.extend([one], [text])
    for begin, end in ((0, 1), (1, 66), (66, 99)):
        split.extend([other], [text[begin:end]])
    result = split.decode([other], text[99:])

    torch.testing.assert_close(result, expected, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize(("prefix", "tracked"), [(0, 64), (0, 1), (37, 64), (64, 128), (37, 137)])
def test_a_state_from_the_middle_of_a_prefill_is_that_of_the_prefix_alone(
    prefix: int, tracked: int
) -> None:
    model = build_model(NANO_MODEL, torch.float64, "cpu", seed=2)
    text, other_text = prompts(137, 90)
    stepper, alone = Stepper(model, seed=1), Stepper(model, seed=2)
    plain = Stepper(model, seed=1)
    request, other, copy = stepper.start(), stepper.start(), stepper.start()
    twin, twin_other, _ = plain.start(), plain.start(), plain.start()
    own = alone.start()
    if prefix:
        stepper.extend([request], [text[:prefix]])
        plain.extend([twin], [text[:prefix]])

    batch = replace(
        stepper.batch("extend", [other, request], [other_text, text[prefix:]]),
        mamba_track_seqlens=[NOT_TRACKED, tracked],
        mamba_track_indices=np.array([0, copy.slot]),
    )
    logits = model.forward(batch, stepper.kv_pool)
    expected = plain.extend([twin_other, twin], [other_text, text[prefix:]])
    alone.extend([own], [text[:tracked]])

    torch.testing.assert_close(logits, expected, rtol=0.0, atol=1e-12)
    for layer in model.config.linear_layer_ids:
        # The copy has the state of the prefix; the request itself continued to the end.
        for copied, of_prefix, of_request, of_twin in zip(
            stepper.layer_state(layer, copy), alone.layer_state(layer, own),
            stepper.layer_state(layer, request), plain.layer_state(layer, twin), strict=True,
        ):  # fmt: skip
            torch.testing.assert_close(copied, of_prefix, rtol=0.0, atol=1e-12)
            torch.testing.assert_close(of_request, of_twin, rtol=0.0, atol=1e-12)


def test_steps_write_only_to_the_slots_of_their_requests() -> None:
    model = build_model(NANO_MODEL, torch.float64, "cpu", seed=2)
    stepper = Stepper(model)
    bystander = stepper.start()
    stepper.extend([bystander], prompts(20))
    requests = [stepper.start(), stepper.start()]
    for tensor in stepper.all_tensors():
        tensor.nan_to_num_(nan=123.0)
    before = [tensor.clone() for tensor in stepper.all_tensors()]

    stepper.extend(requests, prompts(7, 65))
    stepper.decode(requests, [1, 2])

    kv_slots = [slot for request in requests for slot in request.kv_slots]
    states = {request.slot for request in requests}
    layers = len(stepper.kv_pool.full_kv_pool.k_buffer)
    for tensor, old in zip(stepper.all_tensors()[: 2 * layers], before, strict=False):
        changed = (tensor != old).flatten(1).any(dim=1).nonzero().flatten().tolist()
        assert changed == sorted(kv_slots)
    for tensor, old in zip(stepper.all_tensors()[2 * layers :], before[2 * layers :], strict=True):
        changed = (tensor != old).flatten(2).any(dim=2).any(dim=0).nonzero().flatten().tolist()
        assert changed == sorted(states)


def test_padding_to_slot_0_leaves_real_requests_alone() -> None:
    model = build_model(NANO_MODEL, torch.float64, "cpu", seed=2)
    padded, plain = Stepper(model, seed=1, poison=False), Stepper(model, seed=1, poison=False)
    (text,) = prompts(9)
    rows = []
    for stepper in (padded, plain):
        request = stepper.start()
        stepper.extend([request], [text])
        batch = stepper.batch("decode", [request], [[5]])
        if stepper is padded:
            batch = replace(
                batch,
                input_ids=np.append(batch.input_ids, [0, 0]),
                positions=np.append(batch.positions, [0, 0]),
                extend_lens=[1, 1, 1],
                prefix_lens=[*batch.prefix_lens, 0, 0],
                seq_lens=[*batch.seq_lens, 1, 1],
                out_cache_loc=np.append(batch.out_cache_loc, [0, 0]),
                kv_indices=np.append(batch.kv_indices, [0, 0]),
                mamba_indices=np.append(batch.mamba_indices, [0, 0]),
            )
        rows.append(model.forward(batch, stepper.kv_pool)[0])
        rows.append(stepper.decode([request], [6])[0])

    torch.testing.assert_close(torch.stack(rows[:2]), torch.stack(rows[2:]), rtol=0.0, atol=1e-12)


def test_bfloat16_follows_float32_and_keeps_states_in_float32() -> None:
    config = TINY_DENSE
    precise = Stepper(build_model(config, torch.float32, "cpu", seed=3))
    coarse = Stepper(build_model(config, torch.bfloat16, "cpu", seed=3))
    texts = prompts(40, 3, vocab=config.vocab_size)
    logits = []
    for stepper in (precise, coarse):
        requests = [stepper.start(), stepper.start()]
        rows = [stepper.extend(requests, texts), stepper.decode(requests, [8, 9])]
        logits.append(torch.stack(rows).float())

    assert coarse.states.mamba_cache.temporal.dtype == torch.float32
    assert coarse.states.mamba_cache.conv[0].dtype == torch.bfloat16
    error = (logits[1] - logits[0]).square().mean().sqrt() / logits[0].square().mean().sqrt()
    assert float(error) < 0.03


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_gpu_gives_what_the_cpu_gives(dtype: torch.dtype) -> None:
    device_of("cuda")
    config = TINY_DENSE if dtype == torch.bfloat16 else TINY
    # Both use weights from the CPU's generator, because a GPU's makes different numbers.
    source = RandomWeights(config, 3, torch.device("cpu"))
    texts = prompts(70, 1, 33, vocab=config.vocab_size)
    logits = []
    for device in ("cpu", "cuda"):
        stepper = Stepper(Qwen3Next(config, source, dtype, torch.device(device)))
        requests = [stepper.start() for _ in texts]
        rows = [stepper.extend(requests, texts), stepper.decode(requests, [1, 2, 3])]
        logits.append(torch.stack(rows).double().cpu())

    error = (logits[1] - logits[0]).square().mean().sqrt() / logits[0].square().mean().sqrt()
    assert float(error) < {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 0.03}[dtype]
