"""Falcon-H1: every layer runs attention and Mamba2 in parallel, then an MLP, with multipliers.

Every layer keeps KV per token and a recurrent state per request.

Source: the released checkpoints' config.json, and the model of that name in transformers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.dispatch import Kernels, kernels_for
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams
from hybridbench.engine.models.attention import Attention
from hybridbench.engine.models.causal_lm import HybridLM
from hybridbench.engine.models.config import LayerKind, ModelConfig, Shape, state_dtype
from hybridbench.engine.models.hf_config import ConfigFields, excerpt
from hybridbench.engine.models.layers import DenseMLP, Loader, Norm
from hybridbench.engine.models.mamba2 import Mamba2Config, Mamba2Mixer
from hybridbench.engine.models.rope import Rope, read_rope
from hybridbench.engine.models.step import Step, rows_of_logits
from hybridbench.engine.models.weights import WeightSource


def hybrid_layers(layers: int) -> tuple[LayerKind, ...]:
    """Return the kinds of ``layers`` layers, each with both attention and Mamba2."""
    return tuple("hybrid" for _ in range(layers))


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """Factors for activations, named as in config.json but without ``_multiplier(s)``."""

    embedding: float = 1.0
    lm_head: float = 1.0
    attention_in: float = 1.0
    attention_out: float = 1.0
    key: float = 1.0
    ssm_in: float = 1.0
    ssm_out: float = 1.0
    ssm: tuple[float, ...] = (1.0,) * 5
    """For the gate, x, B, C and the time steps."""
    mlp: tuple[float, ...] = (1.0,) * 2
    """For the gate and the MLP's output."""

    @classmethod
    def from_fields(cls, fields: ConfigFields) -> Multipliers:
        """Read the multipliers of a config.json."""
        factors = {
            name: fields.finite_numbers(f"{name}_multiplier", (1.0,))[0]
            for name, value in vars(cls()).items()
            if isinstance(value, float)
        }
        return cls(
            **factors,
            ssm=fields.finite_numbers("ssm_multipliers", cls.ssm),
            mlp=fields.finite_numbers("mlp_multipliers", cls.mlp),
        )

    def hf_fields(self) -> dict[str, object]:
        """Return the keys of these multipliers in a config.json."""
        return {
            f"{name}_multiplier" if isinstance(value, float) else f"{name}_multipliers": value
            for name, value in vars(self).items()
        }


@dataclass(frozen=True, kw_only=True)
class FalconH1Config(ModelConfig):
    """Falcon-H1's configuration.

    In config.json, ``mamba_d_ssm`` is the product of the heads and their width, and ``layer_types``
    is omitted because every layer is "hybrid".
    """

    model_type = "falcon_h1"
    architecture = "FalconH1ForCausalLM"

    intermediate_size: int
    mamba_n_heads: int
    mamba_d_head: int
    mamba_n_groups: int
    mamba_d_state: int
    mamba_d_conv: int = 4
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    """For the input projection."""
    projectors_bias: bool = False
    """For the output projection of Mamba2."""
    mamba_rms_norm: bool = False
    mamba_norm_before_gate: bool = True
    time_step_limit: tuple[float, float] = (0.0, math.inf)
    mlp_bias: bool = False
    rope: Rope = field(default_factory=Rope)
    multipliers: Multipliers = field(default_factory=Multipliers)

    @classmethod
    def from_fields(cls, fields: ConfigFields) -> FalconH1Config:
        """Read the model that a config.json describes.

        Raises:
            ConfigError: names the file, the key and the supported values in one sentence.
        """
        layers = fields.layers(32)
        hidden_size = fields.whole("hidden_size", 4096)
        heads = fields.whole("num_attention_heads", 32)
        head_dim = fields.whole("head_dim", max(1, hidden_size // heads))
        longest = fields.whole("max_position_embeddings", 8192)
        rope = read_rope(fields, head_dim, longest)
        mamba_heads, mamba_head_dim = _mamba_heads(fields, hidden_size)
        config = cls(
            vocab_size=fields.whole("vocab_size", 128_000),
            hidden_size=hidden_size,
            layer_types=fields.layer_types(layers, "hybrid") or hybrid_layers(layers),
            num_attention_heads=heads,
            num_key_value_heads=fields.whole_or_null("num_key_value_heads", heads, 8),
            head_dim=head_dim,
            intermediate_size=fields.whole("intermediate_size", 14_336),
            mamba_n_heads=mamba_heads,
            mamba_d_head=mamba_head_dim,
            mamba_n_groups=fields.whole("mamba_n_groups", 1),
            mamba_d_state=fields.whole("mamba_d_state", 256),
            mamba_d_conv=fields.whole("mamba_d_conv", 4, least=2),
            mamba_conv_bias=fields.flag("mamba_conv_bias", True),
            mamba_proj_bias=fields.flag("mamba_proj_bias", False),
            projectors_bias=fields.flag("projectors_bias", False),
            mamba_rms_norm=fields.flag("mamba_rms_norm", False),
            mamba_norm_before_gate=fields.flag("mamba_norm_before_gate", True),
            time_step_limit=_time_step_limit(fields),
            mlp_bias=fields.flag("mlp_bias", False),
            rope=rope,
            multipliers=Multipliers.from_fields(fields),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-5),
            attention_bias=fields.flag("attention_bias", False),
            tie_word_embeddings=fields.flag("tie_word_embeddings", False),
            eos_token_ids=fields.eos_token_ids(),
            max_position_embeddings=rope.longest_context(longest),
        )
        fields.require_multiple(
            "num_attention_heads", "num_key_value_heads", (heads, config.num_key_value_heads)
        )
        fields.require_multiple(
            "mamba_n_heads", "mamba_n_groups", (mamba_heads, config.mamba_n_groups)
        )
        if config.head_dim % 2:
            raise fields.error(
                "head_dim",
                f"is {config.head_dim}; it must be even, as channels are rotated in pairs",
            )
        return config

    @property
    def mamba2(self) -> Mamba2Config:
        """The configuration of a layer's recurrent half."""
        norm: Literal["after_gate", "before_gate"] | None = None
        if self.mamba_rms_norm:
            norm = "before_gate" if self.mamba_norm_before_gate else "after_gate"
        return Mamba2Config(
            hidden_size=self.hidden_size,
            heads=self.mamba_n_heads,
            head_dim=self.mamba_d_head,
            groups=self.mamba_n_groups,
            state=self.mamba_d_state,
            conv_kernel=self.mamba_d_conv,
            conv_bias=self.mamba_conv_bias,
            in_bias=self.mamba_proj_bias,
            out_bias=self.projectors_bias,
            time_steps=self.time_step_limit,
            norm=norm,
            rms_norm_eps=self.rms_norm_eps,
        )

    @property
    def cache_params(self) -> Mamba2CacheParams:
        return Mamba2CacheParams(shape=self.mamba2.state_shape, layers=self.linear_layer_ids)

    def tensors(self) -> dict[str, Shape]:
        hidden = self.hidden_size
        shapes: dict[str, Shape] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_hidden_layers):
            prefix = f"model.layers.{layer}"
            shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
            shapes |= {f"{prefix}.mamba.{name}": shape for name, shape in self.mamba2.tensors()}
            for name, shape in Attention.tensors(self):
                shapes[f"{prefix}.self_attn.{name}"] = shape
            shapes[f"{prefix}.pre_ff_layernorm.weight"] = (hidden,)
            shapes |= {f"{prefix}.feed_forward.{name}": shape for name, shape in self._mlp()}
        shapes["model.final_layernorm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def _mlp(self) -> Iterator[tuple[str, Shape]]:
        hidden, width = self.hidden_size, self.intermediate_size
        for name, rows, columns in (
            ("gate_proj", width, hidden),
            ("up_proj", width, hidden),
            ("down_proj", hidden, width),
        ):
            yield f"{name}.weight", (rows, columns)
            if self.mlp_bias:
                yield f"{name}.bias", (rows,)

    def hf_fields(self) -> dict[str, object]:
        fields = super().hf_fields()
        for name in ("layer_types", "num_experts_per_tok"):
            del fields[name]
        shortest, longest = self.time_step_limit
        return {
            **fields,
            "intermediate_size": self.intermediate_size,
            "mamba_d_ssm": self.mamba2.width,
            "mamba_n_heads": self.mamba_n_heads,
            "mamba_d_head": self.mamba_d_head,
            "mamba_n_groups": self.mamba_n_groups,
            "mamba_d_state": self.mamba_d_state,
            "mamba_d_conv": self.mamba_d_conv,
            "mamba_conv_bias": self.mamba_conv_bias,
            "mamba_proj_bias": self.mamba_proj_bias,
            "projectors_bias": self.projectors_bias,
            "mamba_rms_norm": self.mamba_rms_norm,
            "mamba_norm_before_gate": self.mamba_norm_before_gate,
            "time_step_limit": [shortest, _INFINITE if math.isinf(longest) else longest],
            "mlp_bias": self.mlp_bias,
            "rope_parameters": self.rope.hf_fields(),
            **self.multipliers.hf_fields(),
        }


# JSON has no infinity; transformers writes this instead.
_INFINITE = {"__float__": "Infinity"}


def _mamba_heads(fields: ConfigFields, hidden_size: int) -> tuple[int, int]:
    """Read Mamba2's heads and channels per head.

    Their product is ``mamba_d_ssm``, or ``mamba_expand`` times ``hidden_size`` if that is null.
    """
    heads = fields.whole("mamba_n_heads", 128)
    width = fields.whole_or_null("mamba_d_ssm", fields.whole("mamba_expand", 2) * hidden_size, 1024)
    if width % heads:
        raise fields.error("mamba_n_heads", f"is {heads}; it must divide the {width} channels")
    if fields.values.get("mamba_d_head", "auto") == "auto":
        return heads, width // heads
    head_dim = fields.whole("mamba_d_head", width // heads)
    if heads * head_dim != width:
        raise fields.error(
            "mamba_d_head",
            f"is {head_dim}; {width} channels make {heads} heads of {width // heads}",
        )
    return heads, head_dim


def _time_step_limit(fields: ConfigFields) -> tuple[float, float]:
    limit = fields.values.get("time_step_limit")
    if limit is None:
        return 0.0, math.inf
    if isinstance(limit, list):
        ends = [math.inf if end == _INFINITE else end for end in limit]
        if all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
            match ends:
                case [shortest, longest] if 0 <= shortest <= longest:
                    return float(shortest), float(longest)
    raise fields.error(
        "time_step_limit", f"is {excerpt(limit)}; it must hold the shortest step and the longest"
    )


class _MultipliedWeights:
    """Weights that include the multipliers, so that a step applies only the embedding's.

    All other multipliers scale an input or an output of a linear map.  The head's is included in
    the norm before it, because the head may be tied to the embedding.
    """

    def __init__(self, source: WeightSource, config: FalconH1Config, dtype: torch.dtype) -> None:
        self._source = source
        self._precise = state_dtype(dtype)
        by, sizes = config.multipliers, config.mamba2
        bc = sizes.groups * sizes.state
        rows = torch.tensor(by.ssm, dtype=self._precise).repeat_interleave(
            torch.tensor([sizes.width, sizes.width, bc, bc, sizes.heads])
        )
        self._factors: dict[str, Tensor | float] = {
            "mamba.in_proj.weight": rows[:, None] * by.ssm_in,
            "mamba.in_proj.bias": rows,
            "mamba.out_proj.weight": by.ssm_out,
            "mamba.out_proj.bias": by.ssm_out,
            "self_attn.q_proj.weight": by.attention_in,
            "self_attn.k_proj.weight": by.attention_in * by.key,
            "self_attn.k_proj.bias": by.key,
            "self_attn.v_proj.weight": by.attention_in,
            "self_attn.o_proj.weight": by.attention_out,
            "self_attn.o_proj.bias": by.attention_out,
            "feed_forward.gate_proj.weight": by.mlp[0],
            "feed_forward.gate_proj.bias": by.mlp[0],
            "feed_forward.down_proj.weight": by.mlp[1],
            "feed_forward.down_proj.bias": by.mlp[1],
            "model.final_layernorm.weight": by.lm_head,
        }

    def take(self, name: str) -> Tensor:
        tensor = self._source.take(name)
        factor = self._factors.get(".".join(name.split(".")[-3:]), 1.0)
        if isinstance(factor, Tensor):
            factor = factor.to(tensor.device)
        elif factor == 1.0:
            return tensor
        return tensor.to(self._precise) * factor


@dataclass(frozen=True)
class _Layer:
    input_norm: Norm
    mamba: Mamba2Mixer
    attention: Attention
    post_norm: Norm
    mlp: DenseMLP


class FalconH1(HybridLM):
    """The Falcon-H1 model."""

    def __init__(
        self,
        config: FalconH1Config,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        kernels: Kernels | None = None,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._conv_kernel = config.mamba_d_conv
        weights = _MultipliedWeights(source, config, dtype)
        loader = Loader(weights, dtype, device, kernels or kernels_for(device))
        self._embedding = loader.matrix("model.embed_tokens.weight")
        self._layers = [_build_layer(loader, i, config) for i in range(config.num_hidden_layers)]
        self._norm = Norm.rms(loader.precise("model.final_layernorm.weight"), config.rms_norm_eps)
        tied = config.tie_word_embeddings
        self._head = self._embedding if tied else loader.matrix("lm_head.weight")
        self._frequencies = config.rope.frequencies(config.head_dim, dtype, device)

    def _logits(self, input_ids: Tensor, step: Step, kv_pool: HybridLinearKVPool) -> Tensor:
        x = functional.embedding(input_ids, self._embedding)
        x = x.mul_(self.config.multipliers.embedding)
        for layer in self._layers:
            normed = layer.input_norm(x)
            x = x.add_(layer.mamba(normed, step, kv_pool))
            x = x.add_(layer.attention(normed, step, kv_pool))
            if layer is self._layers[-1]:
                x = rows_of_logits(x, step)
            x = x.add_(layer.mlp(layer.post_norm(x)))
        return functional.linear(self._norm(x), self._head)


def _build_layer(loader: Loader, layer_id: int, config: FalconH1Config) -> _Layer:
    prefix, eps = f"model.layers.{layer_id}", config.rms_norm_eps
    return _Layer(
        input_norm=Norm.rms(loader.precise(f"{prefix}.input_layernorm.weight"), eps),
        mamba=Mamba2Mixer(loader, layer_id, f"{prefix}.mamba", config.mamba2),
        attention=Attention(loader, layer_id, f"{prefix}.self_attn", config, rotated=True),
        post_norm=Norm.rms(loader.precise(f"{prefix}.pre_ff_layernorm.weight"), eps),
        mlp=DenseMLP(loader, f"{prefix}.feed_forward", bias=config.mlp_bias),
    )
