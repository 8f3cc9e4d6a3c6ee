"""The configuration that all model families share, from a file or a preset."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams

LayerKind: TypeAlias = Literal[
    "linear_attention", "full_attention", "sliding_attention", "hybrid", "mlp", "moe"
]
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ABC):
    """A model's shape; field names are those of the released config.json unless noted.

    Each model family has a subclass and a model built from it; ``registry.py`` lists both.
    """

    model_type: ClassVar[str]
    architecture: ClassVar[str]
    """The class named in config.json."""

    vocab_size: int
    hidden_size: int
    layer_types: tuple[LayerKind, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts_per_tok: int = 0
    """0 without experts."""
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end a text; from config.json and generation_config.json."""
    max_position_embeddings: int = 262_144
    sliding_window: int = 0
    """Tokens that a query of a sliding layer sees, including its own; 0 without such layers."""

    @abstractmethod
    def tensors(self) -> dict[str, Shape]:
        """Return the names and shapes of all tensors, as in a checkpoint, in order of depth."""

    def random_values(self, name: str, noise: Tensor) -> Tensor:
        """Turn standard normal ``noise`` into plausible values for the tensor ``name``, in place.

        Matrices are scaled by their fan-in, norms are near identity, and decays are spread.
        """
        if name.endswith(("norm.weight", "norm_f.weight", ".D")):
            return noise.mul_(0.1).add_(1.0)
        if name.endswith("A_log"):
            return noise.mul_(0.7).add_(1.0)
        if name.endswith("dt_bias"):
            # Steps from about 0.001 to 0.5, like the initial values of the released models.
            return noise.sub_(3.0)
        if name.endswith("bias"):
            return noise.mul_(0.02)
        if name.endswith(("embeddings.weight", "embed_tokens.weight")):
            return noise
        return noise.mul_(noise[0].numel() ** -0.5)

    def hf_fields(self) -> dict[str, object]:
        """Return the content of an equivalent config.json, with the newer keys."""
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "hidden_act": "silu",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "layer_types": list(self.layer_types),
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "num_experts_per_tok": self.num_experts_per_tok,
            "rms_norm_eps": self.rms_norm_eps,
            "attention_bias": self.attention_bias,
            "tie_word_embeddings": self.tie_word_embeddings,
            "eos_token_id": list(self.eos_token_ids) or None,
            "max_position_embeddings": self.max_position_embeddings,
        }

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_types)

    @property
    def kv_layer_ids(self) -> tuple[int, ...]:
        """Layers that keep KV per token."""
        keeps = {"full_attention", "sliding_attention", "hybrid"}
        return tuple(i for i, kind in enumerate(self.layer_types) if kind in keeps)

    @property
    def swa_layer_ids(self) -> tuple[int, ...]:
        """The KV layers that read no further back than the sliding window."""
        kinds = enumerate(self.layer_types)
        return tuple(i for i, kind in kinds if kind == "sliding_attention")

    @property
    def linear_layer_ids(self) -> tuple[int, ...]:
        """Layers that keep one recurrent state per request."""
        keeps = {"linear_attention", "hybrid"}
        return tuple(i for i, kind in enumerate(self.layer_types) if kind in keeps)

    @property
    def cache_params(self) -> Mamba2CacheParams:
        """The state pool's parameters; only for a model with recurrent layers."""
        raise NotImplementedError(f"{type(self).__name__} has no recurrent layers")

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Return the bytes of keys and values per token position, over all layers."""
        width = 2 * self.num_key_value_heads * self.head_dim
        return len(self.kv_layer_ids) * width * dtype.itemsize

    def state_bytes_per_slot(self, dtype: torch.dtype) -> int:
        """Return the bytes of one request's recurrent state, over all layers."""
        if not self.linear_layer_ids:
            return 0
        shape = self.cache_params.shape
        temporal = math.prod(shape.temporal) * state_dtype(dtype).itemsize
        conv = sum(math.prod(part) for part in shape.conv) * dtype.itemsize
        return len(self.linear_layer_ids) * (temporal + conv)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of recurrent states, gates, norms and the router: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
