"""Make tiny random checkpoints with a byte-level tokenizer: ``llama`` and ``qwen3next`` in FOLDER.

Usage: make_checkpoints.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

_VOCAB_SIZE = 320
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{m['role']}}\n{{m['content']}}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
_SPECIAL = ("<|pad|>", "<|eos|>", "<|bos|>", "<|im_start|>", "<|im_end|>")


def byte_tokenizer() -> Any:
    """Build a tokenizer: one token per byte, special tokens, and names to fill the vocabulary."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *_SPECIAL]
    tokens += [f"<x{index}>" for index in range(len(tokens), _VOCAB_SIZE)]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, eos, bos, *further = _SPECIAL
    wrap: Any = PreTrainedTokenizerFast
    wrapped = wrap(tokenizer_object=tokenizer, pad_token=pad, eos_token=eos, bos_token=bos)
    wrapped.add_special_tokens({"additional_special_tokens": further})
    wrapped.chat_template = _TEMPLATE
    return wrapped


def main(folder: Path) -> None:
    """Write both models; a model is ready once its ``config.json``, written last, exists."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    shared = {
        "vocab_size": _VOCAB_SIZE,
        "hidden_size": 128,
        "intermediate_size": 256,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    llama = LlamaConfig(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32, **shared
    )
    hybrid = Qwen3NextConfig(
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        # vLLM's CPU kernel accepts no smaller dimension.
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        **shared,
    )
    made: tuple[tuple[str, Any], ...] = (
        ("llama", LlamaForCausalLM(llama)),
        ("qwen3next", Qwen3NextForCausalLM(hybrid)),
    )
    for name, model in made:
        model.float().save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    path = folder / "qwen3next" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    # SGLang reads both keys from the file itself.
    config |= {"full_attention_interval": 4, "rope_theta": 10000.0}
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
