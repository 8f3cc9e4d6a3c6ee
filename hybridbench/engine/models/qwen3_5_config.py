"""Qwen3.5's configuration: Qwen3-Next with four plain projections in its linear layers.

A released checkpoint also holds a vision tower and a draft head, which are ignored.  The model is
described by ``text_config``, and its tensor names begin with ``model.language_model``.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridbench.engine.models.hf_config import ConfigFields
from hybridbench.engine.models.qwen3_next_config import Qwen3NextConfig


@dataclass(frozen=True, kw_only=True)
class Qwen35Config(Qwen3NextConfig):
    """Qwen3.5 with a dense MLP per layer; defaults as in transformers' ``Qwen3_5TextConfig``."""

    model_type = "qwen3_5_text"
    architecture = "Qwen3_5ForCausalLM"
    grouped_projections = False

    @classmethod
    def from_fields(cls, fields: ConfigFields) -> Qwen3NextConfig:
        return super().from_fields(
            fields.with_defaults(
                vocab_size=248_320,
                hidden_size=4096,
                intermediate_size=12_288,
                num_hidden_layers=32,
                num_key_value_heads=4,
            ).with_values(num_experts=0)
        )


@dataclass(frozen=True, kw_only=True)
class Qwen35MoeConfig(Qwen3NextConfig):
    """Qwen3.5 with experts per layer; defaults as in transformers' ``Qwen3_5MoeTextConfig``."""

    model_type = "qwen3_5_moe_text"
    architecture = "Qwen3_5MoeForCausalLM"
    grouped_projections = False

    @classmethod
    def from_fields(cls, fields: ConfigFields) -> Qwen3NextConfig:
        return super().from_fields(
            fields.with_defaults(
                vocab_size=248_320, num_hidden_layers=40, num_experts=256, num_experts_per_tok=8
            ).with_values(norm_topk_prob=True, mlp_only_layers=[], decoder_sparse_step=1)
        )
