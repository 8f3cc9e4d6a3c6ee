"""Reads a Hugging Face config.json, in its old and its new spelling, into a ModelConfig.

Older files have ``rope_theta``, ``partial_rotary_factor`` and ``full_attention_interval`` at the
top level; newer ones ``rope_parameters`` and ``layer_types``.  Defaults are the architecture's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hybridbench.engine.models.config import LayerKind, ModelConfig, layer_pattern
from hybridbench.errors import ConfigError
from hybridbench.foreign import DOCUMENT_BYTES_MAX, ForeignDataError, read_json

MODEL_TYPE = "qwen3_next"
ARCHITECTURE = "Qwen3NextForCausalLM"

# Beyond any model, and still within what a tensor's index can hold.
_SIZE_MAX = 2**31 - 1
_LAYERS_MAX = 10_000
_SHOWN_CHARS = 60

_Value = TypeVar("_Value", int, float, bool, str)
_KINDS: Mapping[str, LayerKind] = {
    "linear_attention": "linear_attention",
    "full_attention": "full_attention",
}


def read_hf_config(directory: Path) -> ModelConfig:
    """The model of the checkpoint in ``directory``.

    Raises:
        ConfigError: one sentence with the file, the key, and what is supported.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"{directory}: there is no config.json; give a Hugging Face checkpoint directory or "
            "the name of a preset."
        )
    fields = _Fields(path, _read_object(path))
    _check_architecture(fields)
    layer_types = _layer_types(fields)
    theta, rotary_factor = _rope(fields)
    hidden_size = fields.whole("hidden_size", 2048)
    heads = fields.whole("num_attention_heads", 16)
    config = ModelConfig(
        vocab_size=fields.whole("vocab_size", 151_936),
        hidden_size=hidden_size,
        layer_types=layer_types,
        num_attention_heads=heads,
        num_key_value_heads=fields.whole("num_key_value_heads", 2),
        head_dim=fields.whole("head_dim", 256),
        linear_num_key_heads=fields.whole("linear_num_key_heads", 16),
        linear_num_value_heads=fields.whole("linear_num_value_heads", 32),
        linear_key_head_dim=fields.whole("linear_key_head_dim", 128),
        linear_value_head_dim=fields.whole("linear_value_head_dim", 128),
        linear_conv_kernel_dim=fields.whole("linear_conv_kernel_dim", 4, least=2),
        num_experts=fields.whole("num_experts", 512, least=0),
        num_experts_per_tok=fields.whole("num_experts_per_tok", 10),
        moe_intermediate_size=fields.whole("moe_intermediate_size", 512),
        shared_expert_intermediate_size=fields.whole("shared_expert_intermediate_size", 512),
        norm_topk_prob=fields.flag("norm_topk_prob", True),
        dense_layers=_dense_layers(fields, len(layer_types)),
        intermediate_size=fields.whole("intermediate_size", 5632, least=0),
        rope_theta=theta,
        partial_rotary_factor=rotary_factor,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        attention_bias=fields.flag("attention_bias", False),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        eos_token_ids=_eos_token_ids(directory, fields),
        max_position_embeddings=fields.whole("max_position_embeddings", 32_768),
    )
    _check_ratios(fields, config)
    return config


@dataclass(frozen=True)
class _Fields:
    """The keys of one JSON object; what is absent or null takes the architecture's default."""

    path: Path
    values: Mapping[str, object]

    def whole(self, key: str, default: int, least: int = 1) -> int:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(
                key, f"is {_excerpt(value)}; it must be a whole number, {least} or more"
            )
        if value > _SIZE_MAX:
            raise self.error(key, f"is {value}; no model has more than {_SIZE_MAX}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, f"is {_excerpt(value)}; it must be a number above 0")
        if not 0 < value < float("inf"):
            raise self.error(key, f"is {value}; it must be a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {_excerpt(value)}; it must be true or false")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        value = self.values.get(key)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise self.error(key, f"is {_excerpt(value)}; it must hold whole numbers")
        return tuple(items)

    def error(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self.path}: {key} {what}.")


def _read_object(path: Path) -> Mapping[str, object]:
    try:
        values = read_json(path, DOCUMENT_BYTES_MAX)
    except ForeignDataError as error:
        raise ConfigError(f"{path}: cannot be read as JSON: it {error}.") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: is not a JSON object.")
    return values


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _check_architecture(fields: _Fields) -> None:
    architectures = fields.values.get("architectures")
    if isinstance(architectures, list) and architectures and ARCHITECTURE not in architectures:
        raise fields.error(
            "architectures", f"names {_excerpt(architectures[0])}; only {ARCHITECTURE} is supported"
        )
    model_type = fields.values.get("model_type")
    if model_type != MODEL_TYPE:
        raise fields.error(
            "model_type", f"is {_excerpt(model_type)}; only {MODEL_TYPE!r} is supported"
        )
    activation = fields.values.get("hidden_act", "silu")
    if activation != "silu":
        raise fields.error("hidden_act", f"is {_excerpt(activation)}; only 'silu' is supported")


def _layer_types(fields: _Fields) -> tuple[LayerKind, ...]:
    layers = fields.whole("num_hidden_layers", 48)
    if layers > _LAYERS_MAX:
        raise fields.error("num_hidden_layers", f"is {layers}; at most {_LAYERS_MAX} are supported")
    names = fields.values.get("layer_types")
    if names is None:
        return layer_pattern(layers, fields.whole("full_attention_interval", 4))
    if not isinstance(names, list) or len(names) != layers:
        raise fields.error("layer_types", f"must list one kind for each of the {layers} layers")
    unknown = [name for name in names if not isinstance(name, str) or name not in _KINDS]
    if unknown:
        raise fields.error(
            "layer_types", f"contains {_excerpt(unknown[0])}; supported are {' and '.join(_KINDS)}"
        )
    return tuple(_KINDS[name] for name in names)


def _rope(fields: _Fields) -> tuple[float, float]:
    """Base and rotated fraction."""
    parameters = fields.values.get("rope_parameters") or {}
    if not isinstance(parameters, dict):
        raise fields.error("rope_parameters", "must be an object")
    old_scaling = fields.values.get("rope_scaling")
    scaling = old_scaling if isinstance(old_scaling, dict) else parameters
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default":
        key = "rope_scaling" if scaling is old_scaling else "rope_parameters"
        raise fields.error(key, f"asks for rope_type {_excerpt(kind)}; only 'default' is supported")
    nested = _Fields(fields.path, parameters)
    theta = nested.number("rope_theta", fields.number("rope_theta", 10_000.0))
    factor = nested.number("partial_rotary_factor", fields.number("partial_rotary_factor", 0.25))
    if factor > 1.0:
        raise fields.error("partial_rotary_factor", f"is {factor}; it must be at most 1")
    return theta, factor


def _dense_layers(fields: _Fields, layers: int) -> frozenset[int]:
    named = set(fields.integers("mlp_only_layers"))
    step = fields.whole("decoder_sparse_step", 1)
    if fields.whole("num_experts", 512, least=0) == 0:
        return frozenset(range(layers))
    return frozenset(i for i in range(layers) if i in named or (i + 1) % step)


def _eos_token_ids(directory: Path, fields: _Fields) -> tuple[int, ...]:
    """generation_config.json wins where it says something, as in the library that writes it."""
    path = directory / "generation_config.json"
    generation = _Fields(path, _read_object(path) if path.is_file() else {})
    return generation.integers("eos_token_id") or fields.integers("eos_token_id")


def _check_ratios(fields: _Fields, config: ModelConfig) -> None:
    for many, few in (
        ("num_attention_heads", "num_key_value_heads"),
        ("linear_num_value_heads", "linear_num_key_heads"),
    ):
        sizes = {
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "linear_num_value_heads": config.linear_num_value_heads,
            "linear_num_key_heads": config.linear_num_key_heads,
        }
        if sizes[many] % sizes[few]:
            raise fields.error(
                many, f"is {sizes[many]}; it must be a multiple of {few} {sizes[few]}"
            )
    if config.rotary_dim % 2:
        raise fields.error(
            "partial_rotary_factor",
            f"leaves {config.rotary_dim} of {config.head_dim} channels; an even number is rotated",
        )
    if len(config.dense_layers) < len(config.layer_types) and (
        config.num_experts_per_tok > config.num_experts
    ):
        raise fields.error(
            "num_experts_per_tok",
            f"is {config.num_experts_per_tok}; there are only {config.num_experts} experts",
        )
