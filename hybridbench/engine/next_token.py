"""Turn logits into one token per request: greedy, or drawn from the request's random stream.

Also computes logprobs for the requests that ask for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hybridbench.engine.sampling_params import ALL_TOKENS, SamplingParams

_WORD = (1 << 64) - 1
# Number of most probable tokens examined before falling back to the whole vocabulary.
_FIRST_LOOK = 256


class TokenLogprobs(NamedTuple):
    """Log-probabilities (natural log) of the model's softmax at one position of an output,
    before temperature, filters and sampling.
    """

    logprob: float
    """The log-probability of the chosen token."""
    best: list[tuple[int, float]]
    """The most probable tokens, best first."""


class NextTokens(NamedTuple):
    """The tokens that a step chose."""

    ids: list[int]
    """A token for each row of the step's logits."""
    logprobs: dict[int, TokenLogprobs]
    """Logprobs by row, only for the requests that ask for them."""


def choose_next_tokens(
    logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]
) -> list[int]:
    """Choose one token per row.

    Args:
        logits: [B, vocab].
        params: how each row is sampled.
        positions: the position of the next token in each request; it keys the random draw, so a
            token does not depend on which other requests share the step.
    """
    tokens = _most_likely(logits)
    drawn = [row for row, request in enumerate(params) if not request.is_greedy]
    if not drawn:
        return tokens
    chosen = [params[row] for row in drawn]
    rows = logits if len(drawn) == len(params) else logits[drawn]
    uniforms = [uniform(params[row].seed, positions[row]) for row in drawn]
    for row, token in zip(drawn, _draw(rows, chosen, uniforms).tolist(), strict=True):
        tokens[row] = token
    return tokens


def logprobs_of(
    logits: Tensor, params: Sequence[SamplingParams], chosen: Sequence[int]
) -> dict[int, TokenLogprobs]:
    """Logprobs by row, computed in float32, for the requests that ask for them.

    Args:
        logits: [B, vocab].
        params: the parameters of each row; ``logprobs`` is the number of most probable tokens to
            list.
        chosen: the token of each row.
    """
    wanted = {row: own.logprobs for row, own in enumerate(params) if own.logprobs is not None}
    if not wanted:
        return {}
    rows = list(wanted)
    logprobs = logits[rows].float().log_softmax(dim=-1)
    tokens = torch.tensor([[chosen[row]] for row in rows], device=logits.device)
    best = logprobs.topk(min(max(wanted.values()), logits.shape[1]), dim=-1)
    table = zip(
        wanted.items(),
        logprobs.gather(1, tokens).squeeze(1).tolist(),
        best.indices.tolist(),
        best.values.tolist(),
        strict=True,
    )
    return {
        row: TokenLogprobs(own, list(zip(ids[:count], values[:count], strict=True)))
        for (row, count), own, ids, values in table
    }


def _most_likely(logits: Tensor) -> list[int]:
    """The index of each row's largest logit; the first one on ties."""
    tokens: list[int]
    if logits.device.type == "cpu" and logits.dtype != torch.bfloat16:
        # Numpy takes a tenth of the time.
        tokens = logits.numpy().argmax(axis=-1).tolist()
    else:
        tokens = logits.argmax(dim=-1).tolist()
    return tokens


def uniform(seed: int, position: int) -> float:
    """A pseudo-random number in [0, 1), a pure function of its arguments; a multiple of 2^-40.

    Two rounds of a 64-bit mixer over a counter.  Source: Steele et al. 2014, SplitMix64.
    """
    return (_mix(_mix(seed & _WORD) ^ (position & _WORD)) >> 24) * 2.0**-40


def _mix(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def _draw(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    """[n] tokens: the first whose cumulative probability exceeds the row's uniform number."""
    precise = torch.promote_types(logits.dtype, torch.float32)
    # The dtype may round the smallest temperatures to 0 and the largest to infinity.
    range_ = torch.finfo(precise)
    bounded = [min(max(p.temperature, range_.tiny), range_.max) for p in params]
    temperatures = logits.new_tensor(bounded, dtype=precise)
    # A tiny temperature may overflow the division; shifted logits then only reach -inf.
    shifted = logits.to(precise) - logits.amax(dim=-1, keepdim=True)
    probabilities = (shifted / temperatures.unsqueeze(1)).softmax(dim=-1)
    if any(p.top_k != ALL_TOKENS or p.top_p < 1.0 for p in params):
        floor = _floor(probabilities, params)
        probabilities = probabilities.where(probabilities >= floor, 0.0)
    cumulated = probabilities.cumsum(dim=-1)
    targets = cumulated[:, -1:] * cumulated.new_tensor(uniforms).unsqueeze(1)
    places = torch.searchsorted(cumulated, targets, right=True).squeeze(1)
    # Rounding may put a target past the end; then take the last token with a probability above 0.
    last = torch.searchsorted(cumulated, cumulated[:, -1:].contiguous()).squeeze(1)
    return torch.minimum(places, last)


def _floor(probabilities: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """[n, 1]: the smallest probability that top_k and top_p keep.

    Equal probabilities are kept or dropped together, so their order does not matter.
    """
    vocab = probabilities.shape[1]
    top_k = [min(p.top_k, vocab) if p.top_k != ALL_TOKENS else vocab for p in params]
    limited = [k for k in top_k if k < vocab]
    width = min(vocab, max([_FIRST_LOOK, *limited]))
    floor, complete = _floor_among(probabilities, top_k, params, width)
    if not complete:
        floor, _ = _floor_among(probabilities, top_k, params, vocab)
    return floor


def _floor_among(
    probabilities: Tensor, top_k: Sequence[int], params: Sequence[SamplingParams], width: int
) -> tuple[Tensor, bool]:
    """The floor among the ``width`` most probable tokens, and whether it is final."""
    values = probabilities.topk(width, dim=-1).values
    ranks = torch.arange(width, device=values.device)
    allowed = ranks < torch.tensor(top_k, device=values.device).unsqueeze(1)
    values = values.where(allowed, 0.0)
    before = values.cumsum(dim=-1) - values
    # top_p is a share of the mass that top_k keeps.
    mass = before[:, -1:] + values[:, -1:]
    whole = None
    if any(k > width for k in top_k):
        whole = torch.tensor([k > width for k in top_k], device=values.device).unsqueeze(1)
        mass = mass.where(~whole, 1.0)
    limit = mass * values.new_tensor([p.top_p for p in params]).unsqueeze(1)
    # Always keep the first token: the smallest values of top_p round to 0.
    kept = allowed & ((before < limit) | (ranks == 0))
    floor = values.gather(1, kept.sum(dim=-1, keepdim=True) - 1)
    return floor, whole is None or not bool((whole & kept[:, -1:]).any())
