"""Tiny Qwen3-Next and Qwen3.5 checkpoints made and run by transformers, as oracles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "max_position_embeddings": 2048,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
}


def _rope(theta: float, factor: float) -> dict[str, Any]:
    return {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": theta,
            "partial_rotary_factor": factor,
        }
    }


SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "odd": {
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 20,
        "linear_num_value_heads": 6,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "mlp_only_layers": [1],
        "shared_expert_intermediate_size": 40,
        "linear_conv_kernel_dim": 3,
        # A rotary dimension of seven: its four frequencies rotate eight channels.
        **_rope(500000.0, 0.45),
    },
    "ratio-4": {
        "linear_num_value_heads": 8,
        "num_key_value_heads": 1,
        "norm_topk_prob": False,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
        },
    },
    "ratio-1": {
        "linear_num_key_heads": 4,
        "num_key_value_heads": 4,
        "attention_bias": True,
        "tie_word_embeddings": True,
        "layer_types": [
            "full_attention",
            "linear_attention",
            "linear_attention",
            "full_attention",
        ],
    },
    "dense": {"decoder_sparse_step": 10},
    "every-other-sparse": {
        "decoder_sparse_step": 2,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "qwen3.5 dense": {"tie_word_embeddings": True, "linear_num_value_heads": 6},
    "qwen3.5 sparse": {
        "linear_num_key_heads": 4,
        "linear_value_head_dim": 20,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        # For text, positions are equal in all three sections.
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    },
    "qwen3.5 with vision": {"linear_conv_kernel_dim": 3},
    "qwen3.5 sparse with vision": {"tie_word_embeddings": True, "attention_bias": True},
}
_EXPERT_KEYS = {
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
}
_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}


@dataclass(frozen=True)
class Oracle:
    """A transformers model and the directory to which it was saved."""

    model: PreTrainedModel
    path: Path

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> Tensor:
        """Return logits [T, vocab] of one forward pass over all ``tokens``."""
        output: Tensor = self.model(torch.tensor([tokens]), use_cache=False).logits[0]
        return output

    @torch.inference_mode()
    def stepped_logits(self, tokens: list[int]) -> Tensor:
        """Return the same, computed token by token; the difference is the oracle's own noise."""
        cache = None
        rows = []
        for token in tokens:
            output = self.model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            rows.append(output.logits[0, -1])
        return torch.stack(rows)

    @torch.inference_mode()
    def states(self, tokens: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
        """Return conv window [D, K-1] and state [HV, K, V] after ``tokens``, by linear layer."""
        cache = self.model(torch.tensor([tokens]), use_cache=True).past_key_values
        config = self.model.config.get_text_config()
        width = config.linear_conv_kernel_dim - 1
        return {
            i: (
                cache.layers[i].conv_states[0][0][:, -width:],
                cache.layers[i].recurrent_states[0][0],
            )
            for i, kind in enumerate(config.layer_types or ())
            if kind == "linear_attention"
        }


def make_oracle(shape: str, directory: Path, seed: int = 0) -> Oracle:
    """Make a random model of a shape in ``SHAPES`` and save it to ``directory``.

    transformers initialises norms to identity and decays to a constant, which would hide errors of
    sign and offset; here they are random.
    """
    # Imported here, because it takes seconds and a hundred thousand objects.
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.manual_seed(seed)
    model = _random_model(shape)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("linear_attn.norm.weight"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("norm.weight"):
                parameter.uniform_(-0.3, 0.3)
            elif name.endswith("A_log"):
                parameter.uniform_(-2.0, 1.0)
            elif name.endswith("dt_bias"):
                parameter.uniform_(-3.0, 0.5)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
            elif parameter.dim() >= 2:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    model.save_pretrained(directory)
    return Oracle(model, directory)


def _random_model(shape: str) -> PreTrainedModel:
    import transformers

    fields = {**_TINY, **SHAPES[shape]}
    sparse, seeing = "sparse" in shape, "vision" in shape
    name = "Qwen3_5Moe" if sparse else "Qwen3_5"
    if not shape.startswith("qwen3.5"):
        name, sparse = "Qwen3Next", True
    if not sparse:
        fields = {key: value for key, value in fields.items() if key not in _EXPERT_KEYS}
    if seeing:
        tied = fields.get("tie_word_embeddings", False)
        fields = {"text_config": fields, "vision_config": _VISION, "tie_word_embeddings": tied}
    of_text = name if seeing or name == "Qwen3Next" else f"{name}Text"
    config = getattr(transformers, f"{of_text}Config")(**fields)
    head = "ForConditionalGeneration" if seeing else "ForCausalLM"
    model: PreTrainedModel = getattr(transformers, f"{name}{head}")(config)
    return model
