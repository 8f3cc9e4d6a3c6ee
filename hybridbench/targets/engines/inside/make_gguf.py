"""Make a tiny random Llama in GGUF with a tokenizer of ASCII characters: ``tiny.gguf`` in FOLDER.

Usage: make_gguf.py FOLDER
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase

import gguf
import numpy as np

_WIDTH, _LAYERS, _INNER, _HEADS, _KV_HEADS, _HEAD_WIDTH, _CONTEXT = 64, 2, 128, 2, 1, 32, 4096
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{m['role']}}\n{{m['content']}}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
_NORMAL, _CONTROL = 1, 3


def alphabet() -> list[str]:
    """Return 256 tokens: the ASCII characters, as GPT-2's tokenizer writes them, and letter pairs.

    Letter pairs take the place of the other bytes: random bytes are not UTF-8, and releases before
    September 2026 end such an answer with an error.
    """
    shown = range(33, 127)
    hidden = iter(range(256, 512))
    characters = [chr(byte if byte in shown else next(hidden)) for byte in range(128)]
    pairs = (first + second for first in ascii_lowercase for second in ascii_uppercase)
    return [*characters, *islice(pairs, 128)]


def main(path: Path) -> None:
    """Write the model to ``path``."""
    random = np.random.default_rng(0)
    # The format requires at least one merge, and so a token of two characters.
    normal = [*alphabet(), "ab"]
    control = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_file_type(0)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_HEAD_WIDTH)
    writer.add_vocab_size(len(normal) + len(control))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*normal, *control])
    writer.add_token_types([_NORMAL] * len(normal) + [_CONTROL] * len(control))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(len(normal))
    writer.add_eos_token_id(len(normal) + 1)
    writer.add_chat_template(_TEMPLATE)

    def add(name: str, *shape: int) -> None:
        values = random.standard_normal(shape) * shape[-1] ** -0.5 if shape[1:] else np.ones(shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    add("token_embd", len(normal) + len(control), _WIDTH)
    add("output_norm", _WIDTH)
    add("output", len(normal) + len(control), _WIDTH)
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        add(f"{block}.attn_norm", _WIDTH)
        add(f"{block}.attn_q", _HEADS * _HEAD_WIDTH, _WIDTH)
        add(f"{block}.attn_k", _KV_HEADS * _HEAD_WIDTH, _WIDTH)
        add(f"{block}.attn_v", _KV_HEADS * _HEAD_WIDTH, _WIDTH)
        add(f"{block}.attn_output", _WIDTH, _HEADS * _HEAD_WIDTH)
        add(f"{block}.ffn_norm", _WIDTH)
        add(f"{block}.ffn_gate", _INNER, _WIDTH)
        add(f"{block}.ffn_up", _INNER, _WIDTH)
        add(f"{block}.ffn_down", _WIDTH, _INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    main(folder / "tiny.gguf")
