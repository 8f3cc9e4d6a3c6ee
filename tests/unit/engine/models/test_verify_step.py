"""A verify step yields each token's logits and state, and leaves the slots unchanged."""

from __future__ import annotations

import copy

import pytest
import torch

from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.models.registry import build_model
from tests.model_steps import NANO_MODEL, Running, Stepper

CHAIN = 4
PROMPTS = [[1, 2, 3, 4, 5, 6], [7], list(range(10, 40))]
CHAINS = [[11, 12, 13, 14], [3], [20, 21, 22]]


def _stepper(dtype: torch.dtype) -> Stepper:
    stepper = Stepper(build_model(NANO_MODEL, dtype, "cpu", seed=5), seed=1)
    old = stepper.states
    states = MambaPool(
        old.size, old.cache_params, NANO_MODEL.linear_layer_ids, "cpu", dtype,
        spec_state_size=len(PROMPTS), speculative_num_draft_tokens=CHAIN,
    )  # fmt: skip
    for buffer in (*states.mamba_cache.conv, states.mamba_cache.temporal, *states._drafted):
        buffer.fill_(float("nan"))
    stepper.kv_pool.mamba_pool = stepper.states = states
    return stepper


def _prefilled(dtype: torch.dtype) -> tuple[Stepper, list[Running]]:
    stepper = _stepper(dtype)
    requests = [stepper.start() for _ in PROMPTS]
    stepper.extend(requests, PROMPTS)
    return stepper, requests


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=str
)
def test_logits_and_states_are_those_of_one_decode_after_the_other(
    dtype: torch.dtype, tolerance: float
) -> None:
    stepper, requests = _prefilled(dtype)
    other, others = _prefilled(dtype)
    expected, states = [], []
    for request, chain in zip(others, CHAINS, strict=True):
        for token in chain:
            expected.append(other.decode([request], [token])[0])
            states.append(_states(other, request))

    logits = stepper.model.forward(stepper.batch("verify", requests, CHAINS), stepper.kv_pool)

    torch.testing.assert_close(logits, torch.stack(expected), rtol=0, atol=tolerance)
    for kept in range(CHAIN):
        steps = [min(kept, len(chain) - 1) for chain in CHAINS]
        stepper.states.update_mamba_state_after_verify([r.slot for r in requests], steps)
        first = 0
        for request, chain, step in zip(requests, CHAINS, steps, strict=True):
            for mine, theirs in zip(_states(stepper, request), states[first + step], strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)
            first += len(chain)


def test_the_slots_are_as_before_until_somebody_decides() -> None:
    stepper, requests = _prefilled(torch.float64)
    before = copy.deepcopy([_states(stepper, request) for request in requests])

    stepper.model.forward(stepper.batch("verify", requests, CHAINS), stepper.kv_pool)

    for request, states in zip(requests, before, strict=True):
        for now, then in zip(_states(stepper, request), states, strict=True):
            assert torch.equal(now, then)


def test_a_request_without_guesses_shares_the_step() -> None:
    stepper, requests = _prefilled(torch.float64)
    other, others = _prefilled(torch.float64)

    together = stepper.model.forward(stepper.batch("verify", requests, CHAINS), stepper.kv_pool)
    alone = other.decode([others[1]], CHAINS[1])

    torch.testing.assert_close(together[len(CHAINS[0])], alone[0], rtol=0, atol=1e-12)


def _states(stepper: Stepper, request: Running) -> list[torch.Tensor]:
    return [
        part.clone()
        for layer_id in NANO_MODEL.linear_layer_ids
        for part in stepper.layer_state(layer_id, request)
    ]
