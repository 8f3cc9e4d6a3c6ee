"""Convert text to token ids and back with a byte tokenizer, without a vocabulary.

ASCII is one token per character, everything else one token per byte of UTF-8.  A model with random
weights emits ids of its whole vocabulary, so each id from 128 on has its own character in Unicode's
supplementary planes: an answer sent back in the next turn of a conversation yields the same tokens,
and so hits its prefix in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_ASCII: Final = 128
_FIRST_PLANE: Final = 0x10000
_LAST_CHARACTER: Final = 0x10FFFF


def encode(text: str, vocab_size: int) -> list[int]:
    """The tokens of ``text``, below ``vocab_size`` if that is 256 or more.

    Raises:
        UnicodeEncodeError: it contains a lone surrogate.
    """
    if text.isascii():
        return list(text.encode())
    ids: list[int] = []
    for character in text:
        id_ = ord(character) - _FIRST_PLANE
        if _ASCII <= id_ < vocab_size:
            ids.append(id_)
        else:
            ids.extend(character.encode())
    return ids


def decode(ids: Iterable[int]) -> str:
    """The text of ``ids``, one character per token."""
    return "".join(
        chr(id_ if id_ < _ASCII else min(_FIRST_PLANE + id_, _LAST_CHARACTER)) for id_ in ids
    )


def chat_prompt(messages: Sequence[tuple[str, str]]) -> str:
    """Format (role, text) messages as one prompt, in ChatML.

    The prompt of a conversation begins with the prompt and answers of its earlier turns.
    """
    turns = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)
    return f"{turns}<|im_start|>assistant\n"
