"""Falcon-H1 against transformers: logits, KV and states, in float32 and in float64 throughout.

Bounds in float32: 1e-4 for the median difference, 1e-3 for each position and state; logits have
scale 1.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.oracle.agreement import Agreement, set_frequencies, texts
from tests.oracle.mamba2_models import at_cached, cached, exact, logits, randomise

if TYPE_CHECKING:
    from transformers import FalconH1Config, FalconH1ForCausalLM

VOCAB = 101

_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_d_ssm": 48,
    "mamba_n_heads": 6,
    "mamba_d_state": 16,
}
_MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 5.66,
    "lm_head_multiplier": 0.3,
    "attention_in_multiplier": 0.7,
    "attention_out_multiplier": 0.9,
    "key_multiplier": 0.55,
    "ssm_in_multiplier": 1.3,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.4, 0.5, 1.2, -0.8, 0.35],
    "mlp_multipliers": [0.6, 0.8],
}
SHAPES: dict[str, dict[str, Any]] = {
    "as by default": {},
    "everything else": {
        **_MULTIPLIERS,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": None,
        "head_dim": 10,
        "mamba_d_ssm": None,
        "mamba_expand": 1,
        "mamba_n_groups": 3,
        "mamba_d_state": 7,
        "mamba_d_conv": 3,
        "mamba_conv_bias": False,
        "mamba_proj_bias": True,
        "projectors_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
        "time_step_limit": [0.03, 0.9],
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}


def _anything(seed: int) -> dict[str, Any]:
    """Return a valid configuration with random sizes and ratios."""
    rng = random.Random(seed)
    groups, key_heads = rng.choice([1, 2, 3]), rng.choice([1, 2, 3])
    heads, head_dim = groups * rng.choice([1, 2, 5]), rng.choice([3, 8, 10])
    return {
        **{
            name: rng.uniform(0.3, 1.5)
            if isinstance(value, float)
            else [rng.uniform(0.3, 1.5) for _ in value]
            for name, value in _MULTIPLIERS.items()
        },
        "hidden_size": rng.choice([17, 36, 50]),
        "intermediate_size": rng.choice([9, 40]),
        "num_hidden_layers": rng.choice([1, 2]),
        "num_attention_heads": key_heads * rng.choice([1, 2, 4]),
        "num_key_value_heads": key_heads,
        "head_dim": rng.choice([6, 16]),
        "mamba_d_ssm": heads * head_dim,
        "mamba_n_heads": heads,
        "mamba_d_head": rng.choice(["auto", head_dim]),
        "mamba_n_groups": groups,
        "mamba_d_state": rng.choice([5, 16, 24]),
        "mamba_d_conv": rng.choice([2, 3, 4]),
        "mamba_chunk_size": rng.choice([16, 64, 256]),
        **{
            name: rng.random() < 0.5
            for name in (
                "mamba_conv_bias",
                "mamba_proj_bias",
                "projectors_bias",
                "attention_bias",
                "mlp_bias",
                "mamba_rms_norm",
                "mamba_norm_before_gate",
                "tie_word_embeddings",
            )
        },
    }


SHAPES |= {f"random {seed}": _anything(seed) for seed in range(2)}


@pytest.fixture(params=SHAPES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A random model saved by transformers in several files."""
    # Importing transformers takes seconds, so import it only when these tests run.
    from transformers import FalconH1Config, FalconH1ForCausalLM

    torch.manual_seed(3)
    model = FalconH1ForCausalLM(FalconH1Config(**{**_SMALL, **SHAPES[request.param]}))
    randomise(model)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    return tmp_path


def loaded(path: Path, dtype: torch.dtype) -> tuple[FalconH1ForCausalLM, int]:
    """Return the model and the width of its convolutions."""
    from transformers import FalconH1ForCausalLM

    model = FalconH1ForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager")
    assert model.config.mamba_d_conv is not None
    return (model.double() if dtype == torch.float64 else model), model.config.mamba_d_conv


@pytest.mark.parametrize("path", list(SHAPES)[:2], indirect=True)
def test_float32_agrees_with_transformers(path: Path) -> None:
    model, conv_kernel = loaded(path, torch.float32)
    agreement = Agreement(path, [logits(model, text) for text in texts(VOCAB)], torch.float32)

    agreement.run(at_cached(lambda text: cached(model, text, conv_kernel), 1e-3))

    assert max(agreement.differences) <= 1e-3
    assert float(np.median(agreement.differences)) <= 1e-4


def test_float64_agrees_with_transformers_made_exact(path: Path) -> None:
    model, conv_kernel = loaded(path, torch.float64)
    every = texts(VOCAB)
    prefixes = [*every, every[2][:132], every[2][:129]]
    with exact():
        # Transformers computes the frequencies and this vector in float32 at any dtype.
        set_frequencies(model.model.rotary_emb, model.config)
        for layer in model.model.layers:
            layer.mamba.mup_vector = _exact_mup_vector(model.config)
        expected = [logits(model, text) for text in every]
        after = {tuple(text): cached(model, text, conv_kernel) for text in prefixes}
    agreement = Agreement(path, expected, torch.float64)

    agreement.run(at_cached(lambda text: after[tuple(text)], 1e-10))

    assert max(agreement.differences) <= 1e-10


def _exact_mup_vector(config: FalconH1Config) -> torch.Tensor:
    from transformers.models.falcon_h1.modeling_falcon_h1 import compute_mup_vector

    # ``torch.float32`` is patched to float64 here, so save the default in order to restore it.
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        vector: torch.Tensor = compute_mup_vector(config)  # type: ignore[no-untyped-call]
    finally:
        torch.set_default_dtype(before)
    return vector
