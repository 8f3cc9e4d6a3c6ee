"""How the next token of a request is chosen, and when the request is done."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hybridbench.foundation.errors import UsageError

ALL_TOKENS = -1
"""The value of ``top_k`` that disables the filter."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters, validated at construction and immutable afterwards.

    Args:
        max_new_tokens: output length at which the request finishes.
        temperature: divides the logits; 0 takes the most probable token.
        top_k: sample from the k most probable tokens only; -1 disables the filter.
        top_p: sample from the smallest set of most probable tokens whose mass reaches top_p.
        stop_token_ids: a request ends after one of these, unless ``ignore_eos``.
        ignore_eos: always run to ``max_new_tokens``.
        seed: selects the request's random stream.  The token at a position depends only on the
            logits, the seed and the position, never on the other requests of the step.
        logprobs: at each position, list this many most probable tokens with their logprobs, in
            addition to that of the output token itself; None computes none.

    Raises:
        UsageError: names the first invalid value, in one sentence.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = ALL_TOKENS
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1.")
        if not (self.temperature >= 0.0 and math.isfinite(self.temperature)):
            raise UsageError(
                f"temperature is {self.temperature}; it must be a finite number, 0 or more "
                "(0 is greedy)."
            )
        if self.top_k != ALL_TOKENS and self.top_k < 1:
            raise UsageError(f"top_k is {self.top_k}; it must be at least 1, or -1 for all tokens.")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top_p is {self.top_p}; it must be above 0 and at most 1.")
        negative = [token for token in self.stop_token_ids if token < 0]
        if negative:
            raise UsageError(f"stop_token_ids contains {negative[0]}; token ids are 0 or more.")
        if self.logprobs is not None and self.logprobs < 0:
            raise UsageError(f"logprobs is {self.logprobs}; it must be 0 or more, or None.")

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always chosen, without randomness."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def is_filtered(self) -> bool:
        """Whether tokens are sampled from only a part of the vocabulary."""
        return not self.is_greedy and (self.top_k != ALL_TOKENS or self.top_p < 1.0)
