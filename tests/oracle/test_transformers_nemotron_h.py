"""Nemotron-H against transformers: logits and states, in float32 and, made exact, in float64.

Bounds in float32: median difference 1e-4, each position and state 1e-3, at logits of scale 1.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import NemotronHConfig, NemotronHForCausalLM

from tests.model_steps import Running, Stepper
from tests.oracle.agreement import Agreement, Look, texts

VOCAB = 101

_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "moe"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "mamba_num_heads": 6,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 16,
    "intermediate_size": 40,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 28,
}
SHAPES: dict[str, dict[str, Any]] = {
    "all kinds of layer": {},
    "odd": {
        "layers_block_type": ["moe", "linear_attention", "linear_attention", "full_attention"],
        "mamba_num_heads": 3,
        "mamba_head_dim": 10,
        "n_groups": 3,
        "ssm_state_size": 7,
        "conv_kernel": 3,
        "use_conv_bias": False,
        "use_bias": True,
        "mlp_bias": True,
        "moe_latent_size": 11,
        "n_routed_experts": 9,
        "n_group": 3,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
        "routed_scaling_factor": 2.5,
    },
    "one group, chunks of 16": {
        "layers_block_type": ["linear_attention", "linear_attention", "full_attention"],
        "n_groups": 1,
        "num_key_value_heads": 1,
        "chunk_size": 16,
        "time_step_min": 0.05,
    },
}


@pytest.fixture(scope="module", params=SHAPES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model as transformers saves it; norms, biases and decays are random too."""
    directory = tmp_path_factory.mktemp("nemotron-h")
    torch.manual_seed(3)
    model = NemotronHForCausalLM(NemotronHConfig(**{**_SMALL, **SHAPES[request.param]}))
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(("norm.weight", "norm_f.weight", ".D")):
                tensor.uniform_(0.7, 1.3)
            elif name.endswith("A_log"):
                tensor.uniform_(-1.0, 1.5)
            elif name.endswith("dt_bias"):
                tensor.uniform_(-3.0, 0.5)
            elif name.endswith("bias"):
                tensor.normal_(0.0, 0.2)
            else:
                tensor.normal_(0.0, tensor[0].numel() ** -0.5)
    model.save_pretrained(directory)
    return directory


def loaded(path: Path, dtype: torch.dtype) -> NemotronHForCausalLM:
    return NemotronHForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
    )


@torch.inference_mode()
def logits(model: NemotronHForCausalLM, tokens: list[int]) -> Tensor:
    """[T, vocab]."""
    output: Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return output


@torch.inference_mode()
def states(model: NemotronHForCausalLM, tokens: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
    """Conv window [D, K-1] and recurrent state [H, P, N] after ``tokens``, by recurrent layer."""
    cache = model(torch.tensor([tokens]), use_cache=True).past_key_values
    width = model.config.conv_kernel - 1
    return {
        i: (cache.layers[i].conv_states[0][0][:, -width:], cache.layers[i].recurrent_states[0][0])
        for i, kind in enumerate(model.config.layers_block_type or ())
        if kind == "linear_attention"
    }


def at_states(
    expected: Callable[[list[int]], dict[int, tuple[Tensor, Tensor]]], most: float
) -> Look:
    def look(stepper: Stepper, request: Running, text: list[int]) -> None:
        for layer, (conv, recurrent) in expected(text).items():
            ours_conv, ours_recurrent = stepper.layer_state(layer, request)
            assert float((ours_conv - conv).abs().max()) <= most
            assert float((ours_recurrent - recurrent).abs().max()) <= most

    return look


def test_float32_agrees_with_transformers(path: Path) -> None:
    model = loaded(path, torch.float32)
    agreement = Agreement(path, [logits(model, text) for text in texts(VOCAB)], torch.float32)

    agreement.run(at_states(lambda text: states(model, text), 1e-3))

    assert max(agreement.differences) <= 1e-3
    assert float(np.median(agreement.differences)) <= 1e-4


def test_float64_agrees_with_transformers_made_exact(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers computes norms, scans and routing in float32 whatever it is asked; here not."""
    model = loaded(path, torch.float64).double()
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    every = texts(VOCAB)
    expected = [logits(model, text) for text in every]
    after = {tuple(text): states(model, text) for text in [*every, every[2][:132], every[2][:129]]}
    monkeypatch.undo()
    agreement = Agreement(path, expected, torch.float64)

    agreement.run(at_states(lambda text: after[tuple(text)], 1e-10))

    assert max(agreement.differences) <= 1e-10
