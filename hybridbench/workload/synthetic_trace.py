"""A small trace in the Mooncake format, generated from a seed, for the README and for tests.

Run as a module with the output path; profiles/README.md has the command.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

from hybridbench.workload.trace import BLOCK_TOKENS

ROWS: Final = 400
SEED: Final = 20250101
_MEAN_GAP_MS: Final = 1500.0
_OPEN_CHATS: Final = 12
_MAX_INPUT: Final = 60_000


@dataclass(slots=True)
class _Chat:
    """A chat: the ids of its full blocks so far, its length in tokens, and its turns left."""

    blocks: list[int] = field(default_factory=list)
    length: int = 0
    turns_left: int = 0


def synthetic_rows(rows: int = ROWS, seed: int = SEED) -> Iterator[dict[str, object]]:
    """Yield chats on one shared system prompt; each turn repeats all full blocks before it."""
    random = Random(seed)
    fresh = count(1)
    chats: list[_Chat] = []
    time_ms = 0.0
    for _ in range(rows):
        chat = _next_chat(chats, random)
        chat.length += round(random.lognormvariate(7.6, 0.9))
        while len(chat.blocks) < chat.length // BLOCK_TOKENS:
            chat.blocks.append(next(fresh))
        ragged = [next(fresh)] if chat.length % BLOCK_TOKENS else []
        output = max(1, min(2000, round(random.lognormvariate(5.5, 0.8))))
        yield {
            "timestamp": round(time_ms),
            "input_length": chat.length,
            "output_length": output,
            "hash_ids": chat.blocks + ragged,
        }
        chat.length += output
        chat.turns_left -= 1
        if chat.turns_left == 0 or chat.length > _MAX_INPUT:
            chats.remove(chat)
        time_ms += random.expovariate(1 / _MEAN_GAP_MS)


def write_synthetic_trace(path: Path, rows: int = ROWS, seed: int = SEED) -> None:
    """Write the trace to ``path``, one object per line; the same seed gives the same bytes."""
    lines = (json.dumps(row) + "\n" for row in synthetic_rows(rows, seed))
    path.write_text("".join(lines), encoding="utf-8")


def _next_chat(chats: list[_Chat], random: Random) -> _Chat:
    if len(chats) >= _OPEN_CHATS or (chats and random.random() < 0.5):
        return random.choice(chats)
    # Block 0 is the system prompt of all chats.
    chat = _Chat(blocks=[0], length=BLOCK_TOKENS, turns_left=random.randint(1, 6))
    chats.append(chat)
    return chat


if __name__ == "__main__":
    write_synthetic_trace(Path(sys.argv[1]))
