"""Run the largest steps once before any measurement, so that first use does not look like growth.

Allocators keep what the largest step needed.  A worker that meets its largest prompt after an hour
would grow by megabytes at that moment, and a bench would have to explain it.
"""

from __future__ import annotations

import random
import time
from typing import Final

from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.worker.port import ServedEngine

_OUTPUT_TOKENS = 3
_MIXED_ROUNDS = 3
_MIXED_OUTPUT_TOKENS = 12
# Time without a token, in seconds; a copy from the host takes a fraction of it.
_PATIENCE_S: Final = 15.0


def touch_largest_shapes(engine: ServedEngine) -> dict[str, int]:
    """Fill prefill and decode steps to their limits, then mix lengths, then flush.

    The mixture matters as much as the largest step: a heap with blocks of many sizes needs some
    megabytes more than one with a single size, and would take them in its first minutes.

    Return the engine's counters afterwards; the run counts from these values.
    """
    draw = random.Random(0)
    _serve(engine, _largest(engine), _OUTPUT_TOKENS, draw)
    for _ in range(_MIXED_ROUNDS):
        _serve(engine, _mixed(engine, draw), _MIXED_OUTPUT_TOKENS, draw)
    engine.flush_cache()
    return engine.counters.as_dict()


def _serve(
    engine: ServedEngine, prompt_lengths: list[int], output_tokens: int, draw: random.Random
) -> None:
    """Serve one prompt of each length until it finishes, or the engine computes nothing more."""
    vocab_size = engine.vocab_size
    params = SamplingParams(
        max_new_tokens=output_tokens, temperature=1.0, top_p=0.9, ignore_eos=True
    )
    for index, length in enumerate(prompt_lengths):
        prompt = [draw.randrange(vocab_size) for _ in range(length)]
        engine.submit(f"touch-{index}", prompt, params)
    computed, since_s = -1, 0.0
    while engine.has_work:
        engine.step()
        so_far = engine.counters.prompt_tokens + engine.counters.output_tokens
        if so_far != computed:
            computed, since_s = so_far, time.monotonic()
        elif time.monotonic() - since_s > _PATIENCE_S:
            # It may never become idle; the run, which has a verdict for that, is to find out.
            return


def _largest(engine: ServedEngine) -> list[int]:
    """Return the lengths of one prompt of maximum length and of a full batch that fits the KV."""
    config = engine.config
    longest = config.max_request_len - _OUTPUT_TOKENS
    together = max(1, config.kv_tokens // (2 * config.max_running_requests) - _OUTPUT_TOKENS)
    return [longest] + [min(longest, together)] * config.max_running_requests


def _mixed(engine: ServedEngine, lengths: random.Random) -> list[int]:
    """Return the lengths of two full batches of prompts, most of them short."""
    config = engine.config
    longest = max(1, config.max_request_len // 2 - _MIXED_OUTPUT_TOKENS)
    return [
        max(1, int(longest * lengths.random() ** 3)) for _ in range(2 * config.max_running_requests)
    ]
