"""gpt-oss against transformers: logits in float32 and in float64 throughout.

Bounds in float32: 1e-4 for the median difference, 1e-3 for each position; logits have scale 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.oracle.agreement import Agreement, set_frequencies, texts

if TYPE_CHECKING:
    from transformers import GptOssForCausalLM

VOCAB = 101

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
    "max_position_embeddings": 131072,
    "rope_parameters": _YARN,
}
SHAPES: dict[str, dict[str, Any]] = {
    "released ratios": {},
    "odd": {
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "num_local_experts": 5,
        "num_experts_per_tok": 3,
        "intermediate_size": 17,
        "sliding_window": 7,
        "swiglu_alpha": 1.3,
        "swiglu_limit": 0.4,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "one key head, tied, no bias": {
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "sliding_window": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "long yarn": {
        "sliding_window": 64,
        "head_dim": 32,
        "max_position_embeddings": 8192,
        "rope_parameters": {
            **_YARN,
            "rope_theta": 10000.0,
            "factor": 4.0,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": True,
            "attention_factor": 1.25,
            "original_max_position_embeddings": 2048,
        },
    },
}


@pytest.fixture(scope="module", params=SHAPES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model saved by transformers; norms, sinks and biases are random too."""
    # Importing transformers takes seconds, so import it only when these tests run.
    from transformers import GptOssConfig, GptOssForCausalLM

    directory = tmp_path_factory.mktemp("gpt-oss")
    torch.manual_seed(3)
    model = GptOssForCausalLM(GptOssConfig(**{**_SMALL, **SHAPES[request.param]}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.7, 1.3)
            elif name.endswith("sinks"):
                parameter.normal_(0.0, 2.0)
            elif "bias" in name:
                parameter.normal_(0.0, 0.2)
            else:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5)
    model.save_pretrained(directory)
    return directory


@torch.inference_mode()
def logits(model: GptOssForCausalLM, tokens: list[int]) -> Tensor:
    """[T, vocab]."""
    output: Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return output


def test_float32_agrees_with_transformers(path: Path) -> None:
    from transformers import GptOssForCausalLM

    model = GptOssForCausalLM.from_pretrained(
        path, dtype=torch.float32, experts_implementation="eager"
    )
    agreement = Agreement(path, [logits(model, text) for text in texts(VOCAB)], torch.float32)

    agreement.run()

    assert max(agreement.differences) <= 1e-3
    assert float(np.median(agreement.differences)) <= 1e-4


def test_float64_agrees_with_transformers_made_exact(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers computes norms and angles in float32 at any dtype; here in float64."""
    from transformers import GptOssForCausalLM

    model = GptOssForCausalLM.from_pretrained(
        path, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    ).double()
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    set_frequencies(model.model.rotary_emb, model.config)
    expected = [logits(model, text) for text in texts(VOCAB)]
    monkeypatch.undo()
    agreement = Agreement(path, expected, torch.float64)

    agreement.run()

    assert max(agreement.differences) <= 1e-10
