"""Rotary frequencies against transformers: every type, random parameters, in float64."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridbench.engine.models.hf_config import ConfigFields
from hybridbench.engine.models.rope import read_rope

CPU = torch.device("cpu")
TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


def parameters(rope_type: str, rng: random.Random, rotary_dim: int) -> dict[str, Any]:
    """Return random parameters of ``rope_type``, sometimes with optional keys."""
    found: dict[str, Any] = {"rope_type": rope_type, "rope_theta": rng.choice([1e4, 5e5, 1e7])}
    if rope_type == "default":
        return found
    found["factor"] = rng.choice([1.0, 2.5, 8.0])
    if rope_type in {"linear", "dynamic"}:
        return found
    found["original_max_position_embeddings"] = rng.choice([64, 2048, 8192])
    optional: dict[str, Any] = {}
    if rope_type == "yarn":
        optional = {
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
            "mscale": 0.7,
            "mscale_all_dim": 1.4,
            "attention_factor": 1.2,
        }
    elif rope_type == "longrope":
        for key in ("short_factor", "long_factor"):
            found[key] = [rng.uniform(1.0, 9.0) for _ in range(rotary_dim // 2)]
        optional = {"attention_factor": 1.1}
    else:
        found |= {"low_freq_factor": 1.0, "high_freq_factor": rng.choice([2.0, 4.0])}
    return found | {key: value for key, value in optional.items() if rng.random() < 0.5}


@pytest.mark.parametrize("old", [False, True], ids=["newer spelling", "older spelling"])
@pytest.mark.parametrize("rope_type", TYPES)
def test_frequencies_are_those_of_transformers(
    rope_type: str, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Qwen3NextConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRotaryEmbedding

    rng = random.Random(len(rope_type))
    for _ in range(20):
        head_dim, partial = rng.choice([16, 32, 80]), rng.choice([0.25, 0.5, 1.0])
        rope = parameters(rope_type, rng, int(head_dim * partial))
        config = Qwen3NextConfig(
            head_dim=head_dim,
            max_position_embeddings=16_384,
            rope_parameters={**rope, "partial_rotary_factor": partial},
        )
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            patch.setattr(torch, "float", torch.float64)
            patch.setattr(torch, "float32", torch.float64)
            default = Qwen3NextRotaryEmbedding.compute_default_rope_parameters
            of_type: Any = ROPE_INIT_FUNCTIONS.get(rope_type, default)
            expected, scale = of_type(config)
        values: dict[str, object] = {"rope_parameters": {**rope, "partial_rotary_factor": partial}}
        if old:
            theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
            values = {
                "rope_theta": theta,
                "partial_rotary_factor": partial,
                "rope_scaling": {**rope, "type": kind},
            }

        read = read_rope(ConfigFields(Path("config.json"), values), head_dim, 16_384, partial=0.25)
        found = read.frequencies(head_dim, torch.float64, CPU)

        assert found.scale == pytest.approx(scale, rel=1e-12)
        assert torch.allclose(found.radians, expected, rtol=1e-12, atol=0.0)
        written = {"rope_parameters": json.loads(json.dumps(read.hf_fields()))}
        assert read == read_rope(
            ConfigFields(Path("config.json"), written), head_dim, 16_384, partial=0.25
        )
