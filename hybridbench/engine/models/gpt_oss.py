"""gpt-oss: experts, and attention with sinks that alternates between sliding and full.

KV before a sliding window is not read again, and the two-pool ``SWAKVPool`` does not keep it.

Source: the released checkpoints' config.json, and the model of that name in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.forward_batch import ForwardBatch, IndexArray
from hybridbench.engine.kernels.dispatch import Kernels, kernels_for
from hybridbench.engine.kernels.index_arrays import to_device
from hybridbench.engine.kernels.moe.reference import clamped_swiglu
from hybridbench.engine.kernels.paged_attention.reference import (
    DecodePlan,
    ExtendPlan,
)
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.swa_pool import SWAKVPool
from hybridbench.engine.models.causal_lm import CausalLM
from hybridbench.engine.models.config import LayerKind, ModelConfig, Shape, state_dtype
from hybridbench.engine.models.hf_config import ConfigFields
from hybridbench.engine.models.layers import Loader, Norm, Rotation
from hybridbench.engine.models.rope import Rope, Yarn, read_rope
from hybridbench.engine.models.step import (
    ALL_TOKENS,
    DecodeInputs,
    KindOfAttention,
    decode_inputs,
    verified_chains,
)
from hybridbench.engine.models.weights import WeightSource


@dataclass(frozen=True, kw_only=True)
class GptOssConfig(ModelConfig):
    """gpt-oss's configuration; ``intermediate_size`` is the width of one expert."""

    model_type = "gpt_oss"
    architecture = "GptOssForCausalLM"

    intermediate_size: int
    num_local_experts: int
    sliding_window: int = 128
    rope: Rope = field(default_factory=lambda: Rope(rope_theta=150_000.0))
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0

    @classmethod
    def from_fields(cls, fields: ConfigFields) -> GptOssConfig:
        """Read the model that a config.json describes.

        Raises:
            ConfigError: names the file, the key and the supported values in one sentence.
        """
        fields = fields.with_names(num_local_experts="num_experts")
        layers = fields.layers(36)
        layer_types = fields.layer_types(layers, "sliding_attention", "full_attention")
        hidden_size = fields.whole("hidden_size", 2880)
        heads = fields.whole("num_attention_heads", 64)
        head_dim = fields.whole("head_dim", 64)
        if "sliding_attention" in (layer_types or ("sliding_attention",)) and (
            fields.values.get("sliding_window", 128) is None
        ):
            raise fields.error("sliding_window", "is null, but some layers are sliding_attention")
        longest = fields.whole("max_position_embeddings", 131_072)
        rope = read_rope(fields, head_dim, longest, theta=150_000.0, unset=Yarn())
        config = cls(
            vocab_size=fields.whole("vocab_size", 201_088),
            hidden_size=hidden_size,
            layer_types=layer_types or alternating(layers),
            num_attention_heads=heads,
            num_key_value_heads=fields.whole("num_key_value_heads", 8),
            head_dim=head_dim,
            sliding_window=fields.whole("sliding_window", 128),
            num_local_experts=fields.whole("num_local_experts", 128),
            num_experts_per_tok=fields.whole("num_experts_per_tok", 4),
            intermediate_size=fields.whole("intermediate_size", 2880),
            swiglu_alpha=fields.number("swiglu_alpha", 1.702),
            swiglu_limit=fields.number("swiglu_limit", 7.0),
            rope=rope,
            rms_norm_eps=fields.number("rms_norm_eps", 1e-5),
            attention_bias=fields.flag("attention_bias", True),
            tie_word_embeddings=fields.flag("tie_word_embeddings", False),
            eos_token_ids=fields.eos_token_ids(),
            max_position_embeddings=rope.longest_context(longest),
        )
        fields.require_multiple(
            "num_attention_heads", "num_key_value_heads", (heads, config.num_key_value_heads)
        )
        if config.head_dim % 2:
            raise fields.error(
                "head_dim",
                f"is {config.head_dim}; it must be even, as channels are rotated in pairs",
            )
        if config.num_experts_per_tok > config.num_local_experts:
            raise fields.error(
                "num_experts_per_tok",
                f"is {config.num_experts_per_tok}; there are only {config.num_local_experts} "
                "experts",
            )
        return config

    def tensors(self) -> dict[str, Shape]:
        """All tensors; an expert tensor stacks all experts of a layer."""
        hidden = self.hidden_size
        shapes: dict[str, Shape] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_hidden_layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in self._layer()}
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def _layer(self) -> Iterator[tuple[str, Shape]]:
        hidden, experts, width = self.hidden_size, self.num_local_experts, self.intermediate_size
        query, key = (
            heads * self.head_dim for heads in (self.num_attention_heads, self.num_key_value_heads)
        )
        yield "input_layernorm.weight", (hidden,)
        for name, rows, columns in (
            ("q_proj", query, hidden),
            ("k_proj", key, hidden),
            ("v_proj", key, hidden),
            ("o_proj", hidden, query),
        ):
            yield f"self_attn.{name}.weight", (rows, columns)
            if self.attention_bias:
                yield f"self_attn.{name}.bias", (rows,)
        yield "self_attn.sinks", (self.num_attention_heads,)
        yield "post_attention_layernorm.weight", (hidden,)
        yield "mlp.router.weight", (experts, hidden)
        yield "mlp.router.bias", (experts,)
        yield "mlp.experts.gate_up_proj", (experts, hidden, 2 * width)
        yield "mlp.experts.gate_up_proj_bias", (experts, 2 * width)
        yield "mlp.experts.down_proj", (experts, width, hidden)
        yield "mlp.experts.down_proj_bias", (experts, hidden)

    def hf_fields(self) -> dict[str, object]:
        return {
            **super().hf_fields(),
            "sliding_window": self.sliding_window,
            "num_local_experts": self.num_local_experts,
            "intermediate_size": self.intermediate_size,
            "swiglu_alpha": self.swiglu_alpha,
            "swiglu_limit": self.swiglu_limit,
            "rope_parameters": self.rope.hf_fields(),
        }

    def random_values(self, name: str, noise: Tensor) -> Tensor:
        """Scale matrices by their fan-in, keep norms near identity and sinks of noticeable size."""
        if name.endswith("norm.weight"):
            return noise.mul_(0.1).add_(1.0)
        if name.endswith("bias"):
            return noise.mul_(0.02)
        if name.endswith(("sinks", "embed_tokens.weight")):
            return noise
        # Expert matrices are stored as [inputs, outputs], other matrices as [outputs, inputs].
        return noise.mul_(noise.shape[1] ** -0.5)


def alternating(layers: int) -> tuple[LayerKind, ...]:
    """Return layers of alternating sliding and full attention, as in the released models."""
    return tuple("full_attention" if i % 2 else "sliding_attention" for i in range(layers))


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers share in one step."""

    rotation: Rotation
    full_loc: Tensor
    """[T] int64: where layers with full attention store the new tokens."""
    sliding_loc: Tensor
    """[T] int64: where layers with a sliding window store them."""
    last_rows: Tensor | None
    """[B] int64, the rows that need logits; None for all."""
    full: DecodePlan | ExtendPlan
    sliding: DecodePlan | ExtendPlan


class _Attention:
    """Grouped-query attention with a sink per head: a logit that enters only the denominator."""

    def __init__(self, loader: Loader, layer_id: int, config: GptOssConfig) -> None:
        prefix = f"model.layers.{layer_id}.self_attn"
        self._layer_id = layer_id
        self._kernels = loader.kernels
        self._heads, self._key_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = config.head_dim
        self._slides = config.layer_types[layer_id] == "sliding_attention"
        parts = [f"{prefix}.{part}_proj" for part in "qkv"]
        self._in = loader.matrix(*(f"{part}.weight" for part in parts))
        self._out = loader.matrix(f"{prefix}.o_proj.weight")
        self._in_bias: Tensor | None = None
        self._out_bias: Tensor | None = None
        if config.attention_bias:
            self._in_bias = loader.matrix(*(f"{part}.bias" for part in parts))
            self._out_bias = loader.matrix(f"{prefix}.o_proj.bias")
        self._sinks = loader.matrix(f"{prefix}.sinks")

    def __call__(self, x: Tensor, step: _Step, kv_pool: HybridLinearKVPool) -> Tensor:
        """[T, h] -> [T, h]; stores the new keys and values in the pool first."""
        tokens = x.shape[0]
        qkv = functional.linear(x, self._in, self._in_bias)
        qkv = qkv.view(tokens, self._heads + 2 * self._key_heads, self._head_dim)
        step.rotation.apply_(qkv[:, : self._heads + self._key_heads])
        q, k, v = torch.split(qkv, [self._heads, self._key_heads, self._key_heads], dim=1)
        plan, loc = (step.sliding, step.sliding_loc) if self._slides else (step.full, step.full_loc)
        kv_pool.set_kv_buffer(self._layer_id, loc, k, v)
        keys, values = kv_pool.get_kv_buffer(self._layer_id)
        if isinstance(plan, ExtendPlan):
            mixed = self._kernels.extend_attention(q, keys, values, plan, self._sinks)
        else:
            mixed = self._kernels.decode_attention(q, keys, values, plan, self._sinks)
        return functional.linear(mixed.reshape(tokens, -1), self._out, self._out_bias)


class _Experts:
    """Routed experts with biases.  Stored gate and up rows are interleaved; here they are split."""

    def __init__(self, loader: Loader, prefix: str, config: GptOssConfig) -> None:
        self._kernels = loader.kernels
        self._top_k = config.num_experts_per_tok
        self._alpha, self._limit = config.swiglu_alpha, config.swiglu_limit
        self._precise = state_dtype(loader.dtype)
        self._router = loader.matrix(f"{prefix}.router.weight")
        self._router_bias = loader.matrix(f"{prefix}.router.bias")
        gate_up = loader.matrix(f"{prefix}.experts.gate_up_proj").transpose(1, 2)
        self._gate_up = torch.cat((gate_up[:, ::2], gate_up[:, 1::2]), dim=1).contiguous()
        bias = loader.matrix(f"{prefix}.experts.gate_up_proj_bias")
        self._gate_up_bias = torch.cat((bias[:, ::2], bias[:, 1::2]), dim=1)
        self._down = loader.matrix(f"{prefix}.experts.down_proj")
        self._down_bias = loader.matrix(f"{prefix}.experts.down_proj_bias")

    def __call__(self, x: Tensor) -> Tensor:
        """[T, h] -> [T, h]."""
        scores = functional.linear(x, self._router, self._router_bias).to(self._precise)
        weights, chosen = self._kernels.route(scores, self._top_k, True)
        return self._kernels.experts_sorted(
            x,
            weights.to(x.dtype),
            chosen,
            self._gate_up,
            self._down,
            (self._gate_up_bias, self._down_bias),
            self._unit,
        )

    def _unit(self, both: Tensor) -> Tensor:
        return clamped_swiglu(both, self._alpha, self._limit)


@dataclass(frozen=True)
class _Layer:
    input_norm: Norm
    mixer: _Attention
    post_norm: Norm
    mlp: _Experts


class GptOss(CausalLM[_Step]):
    """The gpt-oss model."""

    def __init__(
        self,
        config: GptOssConfig,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        kernels: Kernels | None = None,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        loader = Loader(source, dtype, device, kernels or kernels_for(device))
        self._embedding = loader.matrix("model.embed_tokens.weight")
        self._layers = [
            _Layer(
                input_norm=_norm(loader, f"{prefix}.input_layernorm.weight", config),
                mixer=_Attention(loader, i, config),
                post_norm=_norm(loader, f"{prefix}.post_attention_layernorm.weight", config),
                mlp=_Experts(loader, f"{prefix}.mlp", config),
            )
            for i, prefix in enumerate(f"model.layers.{i}" for i in range(config.num_hidden_layers))
        ]
        self._norm = _norm(loader, "model.norm.weight", config)
        tied = config.tie_word_embeddings
        self._head = self._embedding if tied else loader.matrix("lm_head.weight")
        self._frequencies = config.rope.frequencies(config.head_dim, dtype, device)

    def decode_inputs(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> DecodeInputs:
        sliding = KindOfAttention(_window_locations(kv_pool), self.config.sliding_window)
        return decode_inputs(batch, (ALL_TOKENS, sliding))

    def _logits(self, input_ids: Tensor, step: _Step, kv_pool: HybridLinearKVPool) -> Tensor:
        x = functional.embedding(input_ids, self._embedding)
        for layer in self._layers:
            x = x.add_(layer.mixer(layer.input_norm(x), step, kv_pool))
            if step.last_rows is not None and layer is self._layers[-1]:
                # Only rows that need logits continue.
                x = x.index_select(0, step.last_rows)
            x = x.add_(layer.mlp(layer.post_norm(x)))
        return functional.linear(self._norm(x), self._head)

    def _plan(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> _Step:
        device, window = self.device, self.config.sliding_window
        in_window = _window_locations(kv_pool)
        full: DecodePlan | ExtendPlan
        sliding: DecodePlan | ExtendPlan
        last_rows = None
        if batch.mode == "extend":
            lens = batch.extend_lens, batch.prefix_lens
            last_rows = to_device(np.cumsum(batch.extend_lens) - 1, device)
            full = ExtendPlan.build(*lens, batch.kv_indices, device)
            sliding = ExtendPlan.build(*lens, in_window(batch.kv_indices), device, window)
        else:
            seen, kv_indices = verified_chains(batch)
            full = DecodePlan.build(seen, kv_indices, self.dtype, device)
            sliding = DecodePlan.build(seen, in_window(kv_indices), self.dtype, device, window)
        positions = to_device(batch.positions, device)
        return _Step(
            rotation=Rotation.build(positions, self._frequencies, self.dtype),
            full_loc=to_device(batch.out_cache_loc, device),
            sliding_loc=to_device(in_window(batch.out_cache_loc), device),
            last_rows=last_rows,
            full=full,
            sliding=sliding,
        )

    def _plan_decode(self, inputs: DecodeInputs) -> _Step:
        full, sliding = (
            DecodePlan(*inputs.seen(kind), inputs.kv_indices, self.dtype) for kind in range(2)
        )
        return _Step(
            rotation=Rotation.build(inputs.positions, self._frequencies, self.dtype),
            full_loc=inputs.out_cache_loc(0),
            sliding_loc=inputs.out_cache_loc(1),
            last_rows=None,
            full=full,
            sliding=sliding,
        )


def _window_locations(kv_pool: HybridLinearKVPool) -> Callable[[IndexArray], IndexArray]:
    """Return the function that maps KV locations to those of the sliding layers."""
    if isinstance(kv_pool, SWAKVPool):
        return kv_pool.translate_loc_from_full_to_swa
    return lambda locations: locations


def _norm(loader: Loader, name: str, config: GptOssConfig) -> Norm:
    return Norm.rms(loader.precise(name), config.rms_norm_eps)
