"""Nemotron-H against transformers: logits, KV and states, in float32 and in float64 throughout.

Bounds in float32: 1e-4 for the median difference, 1e-3 for each position and state; logits have
scale 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.oracle.agreement import Agreement, texts
from tests.oracle.mamba2_models import at_cached, cached, exact, logits, randomise

if TYPE_CHECKING:
    from transformers import NemotronHForCausalLM

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
        "mlp_hidden_act": "silu",
        "attention_bias": True,
        "tie_word_embeddings": True,
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
    """A random model saved by transformers; norms, biases and decays are random too."""
    # Importing transformers takes seconds, so import it only when these tests run.
    from transformers import NemotronHConfig, NemotronHForCausalLM

    directory = tmp_path_factory.mktemp("nemotron-h")
    torch.manual_seed(3)
    model = NemotronHForCausalLM(NemotronHConfig(**{**_SMALL, **SHAPES[request.param]}))
    randomise(model)
    model.save_pretrained(directory)
    return directory


def loaded(path: Path, dtype: torch.dtype) -> NemotronHForCausalLM:
    from transformers import NemotronHForCausalLM

    return NemotronHForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
    )


def test_float32_agrees_with_transformers(path: Path) -> None:
    model = loaded(path, torch.float32)
    agreement = Agreement(path, [logits(model, text) for text in texts(VOCAB)], torch.float32)

    agreement.run(at_cached(lambda text: cached(model, text, model.config.conv_kernel), 1e-3))

    assert max(agreement.differences) <= 1e-3
    assert float(np.median(agreement.differences)) <= 1e-4


def test_float64_agrees_with_transformers_made_exact(path: Path) -> None:
    model = loaded(path, torch.float64).double()
    every = texts(VOCAB)
    prefixes = [*every, every[2][:132], every[2][:129]]
    with exact():
        expected = [logits(model, text) for text in every]
        after = {tuple(text): cached(model, text, model.config.conv_kernel) for text in prefixes}
    agreement = Agreement(path, expected, torch.float64)

    agreement.run(at_cached(lambda text: after[tuple(text)], 1e-10))

    assert max(agreement.differences) <= 1e-10
