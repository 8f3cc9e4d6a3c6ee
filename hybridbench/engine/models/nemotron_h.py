"""Nemotron-H: each layer is one of Mamba2, attention, an MLP or routed experts.

Attention has no positional encoding: the recurrent layers determine the order.

Source: the released checkpoints' config.json, and the model of that name in transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

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
from hybridbench.engine.models.layers import Frequencies, Loader, Norm
from hybridbench.engine.models.mamba2 import Mamba2Config, Mamba2Mixer
from hybridbench.engine.models.step import Step, rows_of_logits
from hybridbench.engine.models.weights import WeightSource

_LETTERS: Mapping[str, LayerKind] = {
    "M": "linear_attention",
    "*": "full_attention",
    "-": "mlp",
    "E": "moe",
}
# Layer names in files from older versions of transformers.
_OLD_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}


def pattern(letters: str) -> tuple[LayerKind, ...]:
    """Parse a ``hybrid_override_pattern``: M (Mamba2), * (attention), - (MLP), E (experts)."""
    return tuple(_LETTERS[letter] for letter in letters)


@dataclass(frozen=True, kw_only=True)
class NemotronHConfig(ModelConfig):
    """Nemotron-H's configuration.

    In config.json, ``layer_types`` is ``layers_block_type``, and ``rms_norm_eps`` is
    ``layer_norm_epsilon``.
    """

    model_type = "nemotron_h"
    architecture = "NemotronHForCausalLM"

    mamba_num_heads: int
    mamba_head_dim: int
    n_groups: int
    ssm_state_size: int
    conv_kernel: int = 4
    time_step_min: float = 0.001
    use_conv_bias: bool = True
    use_bias: bool = False
    """For the projections of Mamba2 layers."""
    mlp_bias: bool = False
    mlp_hidden_act: str = "relu2"
    """For MLPs and experts."""
    intermediate_size: int = 0
    n_routed_experts: int = 0
    moe_intermediate_size: int = 0
    moe_shared_expert_intermediate_size: int = 0
    moe_latent_size: int | None = None
    """Width of the routed experts' inputs and outputs; None for the model's."""
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0

    @classmethod
    def from_fields(cls, fields: ConfigFields) -> NemotronHConfig:
        """Read the model that a config.json describes.

        Raises:
            ConfigError: names the file, the key and the supported values in one sentence.
        """
        fields = fields.with_names(
            n_routed_experts="num_local_experts",
            n_groups="mamba_n_groups",
            conv_kernel="mamba_d_conv",
            time_step_min="mamba_dt_min",
            use_conv_bias="mamba_conv_bias",
        )
        heads = fields.whole("num_attention_heads", 32)
        # ``attention_bias`` and ``tie_word_embeddings`` are ignored, as in transformers: attention
        # has no biases, and the head is always stored and used.
        fields.one_of("mamba_hidden_act", "silu", "swish")
        latent = fields.whole("moe_latent_size", 0, least=0)
        config = cls(
            vocab_size=fields.whole("vocab_size", 131_072),
            hidden_size=fields.whole("hidden_size", 4096),
            layer_types=_layers(fields),
            num_attention_heads=heads,
            num_key_value_heads=fields.whole_or_null("num_key_value_heads", heads, 8),
            head_dim=fields.whole("head_dim", fields.whole("attention_head_dim", 128)),
            mamba_num_heads=fields.whole("mamba_num_heads", 128),
            mamba_head_dim=fields.whole("mamba_head_dim", 64),
            n_groups=fields.whole("n_groups", 8),
            ssm_state_size=fields.whole("ssm_state_size", 128),
            conv_kernel=fields.whole("conv_kernel", 4, least=2),
            time_step_min=fields.number("time_step_min", 0.001),
            use_conv_bias=fields.flag("use_conv_bias", True),
            use_bias=fields.flag("use_bias", False),
            mlp_bias=fields.flag("mlp_bias", False),
            mlp_hidden_act=fields.one_of("mlp_hidden_act", *_ACTIVATIONS),
            intermediate_size=fields.whole("intermediate_size", 21_504),
            n_routed_experts=fields.whole("n_routed_experts", 8),
            num_experts_per_tok=fields.whole("num_experts_per_tok", 2),
            moe_intermediate_size=fields.whole("moe_intermediate_size", 7688),
            moe_shared_expert_intermediate_size=fields.whole(
                "moe_shared_expert_intermediate_size", 7688
            ),
            moe_latent_size=latent or None,
            n_group=fields.whole("n_group", 1),
            topk_group=fields.whole("topk_group", 1),
            norm_topk_prob=fields.flag("norm_topk_prob", True),
            routed_scaling_factor=fields.number("routed_scaling_factor", 1.0),
            rms_norm_eps=fields.number("layer_norm_epsilon", 1e-5),
            eos_token_ids=fields.eos_token_ids(),
            max_position_embeddings=fields.whole("max_position_embeddings", 4096),
        )
        _check_sizes(fields, config)
        return config

    @property
    def mamba2(self) -> Mamba2Config:
        """The configuration of a recurrent layer."""
        return Mamba2Config(
            hidden_size=self.hidden_size,
            heads=self.mamba_num_heads,
            head_dim=self.mamba_head_dim,
            groups=self.n_groups,
            state=self.ssm_state_size,
            conv_kernel=self.conv_kernel,
            conv_bias=self.use_conv_bias,
            in_bias=self.use_bias,
            out_bias=self.use_bias,
            time_steps=(self.time_step_min, math.inf),
            norm="after_gate",
            rms_norm_eps=self.rms_norm_eps,
        )

    @property
    def cache_params(self) -> Mamba2CacheParams:
        return Mamba2CacheParams(shape=self.mamba2.state_shape, layers=self.linear_layer_ids)

    def tensors(self) -> dict[str, Shape]:
        """All tensors; each expert has its own."""
        shapes: dict[str, Shape] = {
            "backbone.embeddings.weight": (self.vocab_size, self.hidden_size)
        }
        parts: dict[LayerKind, Callable[[], Iterator[tuple[str, Shape]]]] = {
            "linear_attention": self.mamba2.tensors,
            "full_attention": partial(Attention.tensors, self),
            "mlp": partial(self._mlp, "", self.hidden_size, self.intermediate_size, self.mlp_bias),
            "moe": self._experts,
        }
        for layer, kind in enumerate(self.layer_types):
            prefix = f"backbone.layers.{layer}"
            shapes[f"{prefix}.norm.weight"] = (self.hidden_size,)
            shapes |= {f"{prefix}.mixer.{name}": shape for name, shape in parts[kind]()}
        shapes["backbone.norm_f.weight"] = (self.hidden_size,)
        shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        return shapes

    @staticmethod
    def _mlp(prefix: str, hidden: int, width: int, bias: bool) -> Iterator[tuple[str, Shape]]:
        yield f"{prefix}up_proj.weight", (width, hidden)
        yield f"{prefix}down_proj.weight", (hidden, width)
        if bias:
            yield f"{prefix}up_proj.bias", (width,)
            yield f"{prefix}down_proj.bias", (hidden,)

    def _experts(self) -> Iterator[tuple[str, Shape]]:
        hidden, latent = self.hidden_size, self.moe_latent_size
        yield "gate.weight", (self.n_routed_experts, hidden)
        yield "gate.e_score_correction_bias", (self.n_routed_experts,)
        for expert in range(self.n_routed_experts):
            width = self.moe_intermediate_size
            yield from self._mlp(f"experts.{expert}.", latent or hidden, width, bias=False)
        shared = self.moe_shared_expert_intermediate_size
        yield from self._mlp("shared_experts.", hidden, shared, self.mlp_bias)
        if latent is not None:
            for name, rows, columns in (
                ("fc1_latent_proj", latent, hidden),
                ("fc2_latent_proj", hidden, latent),
            ):
                yield f"{name}.weight", (rows, columns)
                if self.mlp_bias:
                    yield f"{name}.bias", (rows,)

    def hf_fields(self) -> dict[str, object]:
        fields = super().hf_fields()
        renamed = {"layer_types": "layers_block_type", "rms_norm_eps": "layer_norm_epsilon"}
        for name in ("hidden_act", "num_hidden_layers"):
            del fields[name]
        return {
            **{renamed.get(name, name): value for name, value in fields.items()},
            "mamba_hidden_act": "silu",
            "mlp_hidden_act": self.mlp_hidden_act,
            "mamba_num_heads": self.mamba_num_heads,
            "mamba_head_dim": self.mamba_head_dim,
            "n_groups": self.n_groups,
            "ssm_state_size": self.ssm_state_size,
            "conv_kernel": self.conv_kernel,
            "time_step_min": self.time_step_min,
            "use_conv_bias": self.use_conv_bias,
            "use_bias": self.use_bias,
            "mlp_bias": self.mlp_bias,
            "intermediate_size": self.intermediate_size,
            "n_routed_experts": self.n_routed_experts,
            "moe_intermediate_size": self.moe_intermediate_size,
            "moe_shared_expert_intermediate_size": self.moe_shared_expert_intermediate_size,
            "moe_latent_size": self.moe_latent_size,
            "n_group": self.n_group,
            "topk_group": self.topk_group,
            "norm_topk_prob": self.norm_topk_prob,
            "routed_scaling_factor": self.routed_scaling_factor,
        }


def _layers(fields: ConfigFields) -> tuple[LayerKind, ...]:
    names = fields.values.get("layers_block_type", fields.values.get("layer_types"))
    letters = fields.values.get("hybrid_override_pattern")
    if names is None and letters is None:
        return pattern("ME*-")
    if names is None:
        if not isinstance(letters, str) or not letters or set(letters) - _LETTERS.keys():
            raise fields.error(
                "hybrid_override_pattern",
                f"is {excerpt(letters)}; write a letter of {' '.join(_LETTERS)} for each layer, or "
                "layers_block_type",
            )
        return pattern(letters)
    if not isinstance(names, list) or not names:
        raise fields.error("layers_block_type", "must list one kind for each layer")
    known: dict[object, LayerKind] = {kind: kind for kind in _LETTERS.values()}
    known |= {old: known[new] for old, new in _OLD_NAMES.items()}
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise fields.error(
                "layers_block_type",
                f"contains {excerpt(name)}; supported are {', '.join(_LETTERS.values())}",
            )
    return tuple(known[name] for name in names)


def _check_sizes(fields: ConfigFields, config: NemotronHConfig) -> None:
    heads = config.num_attention_heads, config.num_key_value_heads
    fields.require_multiple("num_attention_heads", "num_key_value_heads", heads)
    fields.require_multiple(
        "mamba_num_heads", "n_groups", (config.mamba_num_heads, config.n_groups)
    )
    if "moe" not in config.layer_types:
        return
    experts, groups = config.n_routed_experts, config.n_group
    fields.require_multiple("n_routed_experts", "n_group", (experts, groups))
    reachable = config.topk_group * (experts // groups)
    if config.topk_group > groups:
        raise fields.error("topk_group", f"is {config.topk_group}; there are only {groups} groups")
    if config.num_experts_per_tok > reachable:
        raise fields.error(
            "num_experts_per_tok",
            f"is {config.num_experts_per_tok}; topk_group leaves only {reachable} experts",
        )
    if groups > 1 and experts // groups < 2:
        raise fields.error("n_group", f"is {groups}; a group needs at least 2 of {experts} experts")


_Activation: TypeAlias = Callable[[Tensor], Tensor]


def _relu2(x: Tensor) -> Tensor:
    return functional.relu(x, inplace=True).square_()


_tanh_gelu = partial(functional.gelu, approximate="tanh")
# Keyed by their names in transformers; they may overwrite their input.
_ACTIVATIONS: Mapping[str, _Activation] = {
    "relu2": _relu2,
    "relu": functional.relu_,
    "silu": partial(functional.silu, inplace=True),
    "swish": partial(functional.silu, inplace=True),
    "gelu": functional.gelu,
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
}


class _MLP:
    """Computes ``down(act(up x))``."""

    def __init__(self, loader: Loader, prefix: str, act: _Activation, *, bias: bool) -> None:
        self._act = act
        self._up = loader.matrix(f"{prefix}.up_proj.weight")
        self._down = loader.matrix(f"{prefix}.down_proj.weight")
        self._up_bias = loader.matrix(f"{prefix}.up_proj.bias") if bias else None
        self._down_bias = loader.matrix(f"{prefix}.down_proj.bias") if bias else None

    def __call__(self, x: Tensor, step: Step, kv_pool: HybridLinearKVPool) -> Tensor:
        """[T, h] -> [T, h]; needs neither step nor pool."""
        del step, kv_pool
        return self.of(x)

    def of(self, x: Tensor) -> Tensor:
        """[T, h] -> [T, h]."""
        hidden = self._act(functional.linear(x, self._up, self._up_bias))
        return functional.linear(hidden, self._down, self._down_bias)


class _Experts:
    """Experts chosen by sigmoid scores within groups, plus a shared one for every token."""

    def __init__(self, loader: Loader, prefix: str, config: NemotronHConfig) -> None:
        self._config = config
        self._kernels = loader.kernels
        self._precise = state_dtype(loader.dtype)
        self._gate = loader.precise(f"{prefix}.gate.weight")
        self._correction = loader.precise(f"{prefix}.gate.e_score_correction_bias")
        names = [f"{prefix}.experts.{i}" for i in range(config.n_routed_experts)]
        self._up = torch.stack([loader.matrix(f"{name}.up_proj.weight") for name in names])
        self._down = torch.stack([loader.matrix(f"{name}.down_proj.weight").t() for name in names])
        self._act = _ACTIVATIONS[config.mlp_hidden_act]
        self._shared = _MLP(loader, f"{prefix}.shared_experts", self._act, bias=config.mlp_bias)
        latent, bias = config.moe_latent_size is not None, config.mlp_bias
        self._latent = [
            (
                loader.matrix(f"{prefix}.{name}.weight"),
                loader.matrix(f"{prefix}.{name}.bias") if bias else None,
            )
            for name in ("fc1_latent_proj", "fc2_latent_proj")
            if latent
        ]

    def __call__(self, x: Tensor, step: Step, kv_pool: HybridLinearKVPool) -> Tensor:
        """[T, h] -> [T, h]; needs neither step nor pool."""
        del step, kv_pool
        weights, chosen = self._route(x)
        inner = functional.linear(x, *self._latent[0]) if self._latent else x
        routed = self._kernels.experts_sorted(
            inner, weights, chosen, self._up, self._down, None, self._act
        )
        routed = functional.linear(routed, *self._latent[1]) if self._latent else routed
        return routed + self._shared.of(x)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return routing weights [T, k] and the chosen experts [T, k]."""
        config, tokens = self._config, x.shape[0]
        scores = functional.linear(x.to(self._precise), self._gate).sigmoid_()
        wanted = scores + self._correction
        if config.topk_group < config.n_group:
            by_group = wanted.view(tokens, config.n_group, -1)
            best = by_group.topk(2, dim=-1).values.sum(dim=-1)
            kept = best.topk(config.topk_group, dim=-1).indices
            hidden = torch.ones_like(best, dtype=torch.bool).scatter_(1, kept, False)
            wanted = by_group.masked_fill(hidden.unsqueeze(2), float("-inf")).view(tokens, -1)
        chosen = wanted.topk(config.num_experts_per_tok, dim=-1).indices
        weights = scores.gather(1, chosen)
        if config.norm_topk_prob:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return (weights * config.routed_scaling_factor).to(x.dtype), chosen


class NemotronH(HybridLM):
    """The Nemotron-H model."""

    def __init__(
        self,
        config: NemotronHConfig,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        kernels: Kernels | None = None,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._conv_kernel = config.conv_kernel
        loader = Loader(source, dtype, device, kernels or kernels_for(device))
        self._embedding = loader.matrix("backbone.embeddings.weight")
        self._layers = [
            (
                _norm(loader, f"backbone.layers.{i}.norm.weight", config),
                _mixer(loader, i, config),
            )
            for i in range(config.num_hidden_layers)
        ]
        storing = [i for i, kind in enumerate(config.layer_types) if kind not in ("mlp", "moe")]
        # From this layer on, no layer reads other tokens.
        self._top = max(storing, default=-1) + 1
        self._norm = _norm(loader, "backbone.norm_f.weight", config)
        self._head = loader.matrix("lm_head.weight")
        # No channel is rotated.
        self._frequencies = Frequencies(torch.empty(0, dtype=state_dtype(dtype), device=device))

    def _logits(self, input_ids: Tensor, step: Step, kv_pool: HybridLinearKVPool) -> Tensor:
        x = functional.embedding(input_ids, self._embedding)
        for norm, mixer in self._layers[: self._top]:
            x = x.add_(mixer(norm(x), step, kv_pool))
        x = rows_of_logits(x, step)
        for norm, mixer in self._layers[self._top :]:
            x = x.add_(mixer(norm(x), step, kv_pool))
        return functional.linear(self._norm(x), self._head)


def _mixer(
    loader: Loader, layer_id: int, config: NemotronHConfig
) -> Mamba2Mixer | Attention | _MLP | _Experts:
    prefix = f"backbone.layers.{layer_id}.mixer"
    kind = config.layer_types[layer_id]
    if kind == "linear_attention":
        return Mamba2Mixer(loader, layer_id, prefix, config.mamba2)
    if kind == "full_attention":
        return Attention(loader, layer_id, prefix, config, rotated=False)
    if kind == "mlp":
        return _MLP(loader, prefix, _ACTIVATIONS[config.mlp_hidden_act], bias=config.mlp_bias)
    return _Experts(loader, prefix, config)


def _norm(loader: Loader, name: str, config: NemotronHConfig) -> Norm:
    return Norm.rms(loader.precise(name), config.rms_norm_eps)
