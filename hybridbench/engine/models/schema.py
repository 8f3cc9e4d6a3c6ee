"""Names and shapes of all tensors of a checkpoint, as the released files spell them."""

from __future__ import annotations

from collections.abc import Iterator

from hybridbench.engine.models.config import ModelConfig

Shape = tuple[int, ...]


def checkpoint_schema(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor that a model of this shape needs, experts one by one, in order of depth."""
    schema: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size)
    }
    for layer, kind in enumerate(config.layer_types):
        prefix = f"model.layers.{layer}"
        schema[f"{prefix}.input_layernorm.weight"] = (config.hidden_size,)
        mixer = _linear_attn if kind == "linear_attention" else _self_attn
        for name, shape in mixer(config):
            schema[f"{prefix}.{name}"] = shape
        schema[f"{prefix}.post_attention_layernorm.weight"] = (config.hidden_size,)
        mlp = _dense_mlp if layer in config.dense_layers else _sparse_mlp
        for name, shape in mlp(config):
            schema[f"{prefix}.mlp.{name}"] = shape
    schema["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        schema["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return schema


def _linear_attn(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    yield "linear_attn.in_proj_qkvz.weight", (config.conv_dim + config.value_dim, hidden)
    yield "linear_attn.in_proj_ba.weight", (2 * heads, hidden)
    yield "linear_attn.conv1d.weight", (config.conv_dim, 1, config.linear_conv_kernel_dim)
    yield "linear_attn.A_log", (heads,)
    yield "linear_attn.dt_bias", (heads,)
    yield "linear_attn.norm.weight", (config.linear_value_head_dim,)
    yield "linear_attn.out_proj.weight", (hidden, config.value_dim)


def _self_attn(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    hidden, head_dim = config.hidden_size, config.head_dim
    query, key = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    # The query projection also makes the output gate: per head, query rows then gate rows.
    for name, rows, columns in (
        ("q_proj", 2 * query, hidden),
        ("k_proj", key, hidden),
        ("v_proj", key, hidden),
        ("o_proj", hidden, query),
    ):
        yield f"self_attn.{name}.weight", (rows, columns)
        if config.attention_bias:
            yield f"self_attn.{name}.bias", (rows,)
    yield "self_attn.q_norm.weight", (head_dim,)
    yield "self_attn.k_norm.weight", (head_dim,)


def _sparse_mlp(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    hidden = config.hidden_size
    yield "gate.weight", (config.num_experts, hidden)
    for expert in range(config.num_experts):
        for name, shape in _gated_unit(hidden, config.moe_intermediate_size):
            yield f"experts.{expert}.{name}", shape
    for name, shape in _gated_unit(hidden, config.shared_expert_intermediate_size):
        yield f"shared_expert.{name}", shape
    yield "shared_expert_gate.weight", (1, hidden)


def _dense_mlp(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    return _gated_unit(config.hidden_size, config.intermediate_size)


def _gated_unit(hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
    yield "gate_proj.weight", (width, hidden)
    yield "up_proj.weight", (width, hidden)
    yield "down_proj.weight", (hidden, width)
