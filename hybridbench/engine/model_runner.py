"""Runs one step: a forward batch through the model, and logits into tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from torch import Tensor

from hybridbench.engine.forward_batch import NOT_TRACKED, ForwardBatch, ForwardMode
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.next_token import NextTokens, choose_next_tokens, logprobs_of
from hybridbench.engine.sampling_params import SamplingParams


class LanguageModel(Protocol):
    """What a runner needs of a model."""

    @property
    def config(self) -> ModelConfig: ...

    def forward(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> Tensor:
        """Logits [B, vocab] after each request's last new token; advances the pools by slot.

        A batch of mode "verify" wants [T, vocab], and leaves the state slots as they are.
        """


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest steps that a scheduler may ask for.

    ``context_len`` is the longest a request may become, ``draft_tokens`` the longest chain of a
    verifying step, in tokens; 0 if nothing is drafted.  With ``tracks_states`` a prefill may copy a
    state out of its middle, which takes one more chunk for each request at most.
    """

    running_requests: int
    prefill_tokens: int
    context_len: int
    draft_tokens: int = 0
    tracks_states: bool = False


class ModelRunner:
    """The model and the pools it works in; holds no request and no slot."""

    def __init__(self, model: LanguageModel, kv_pool: HybridLinearKVPool) -> None:
        self._model = model
        self._kv_pool = kv_pool

    def next_tokens(self, batch: ForwardBatch, params: Sequence[SamplingParams]) -> NextTokens:
        """The next token of each request of ``batch``; ``params`` in the same order.

        Of a verifying batch the token after each of the [T] new ones, request after request.
        """
        logits = self._model.forward(batch, self._kv_pool)
        if batch.mode == "verify":
            each = zip(params, batch.extend_lens, strict=True)
            params = [own for own, length in each for _ in range(length)]
            ids = choose_next_tokens(logits, params, (batch.positions + 1).tolist())
        else:
            self._track_decoded(batch)
            ids = choose_next_tokens(logits, params, batch.seq_lens)
        return NextTokens(ids, logprobs_of(logits, params, ids))

    def _track_decoded(self, batch: ForwardBatch) -> None:
        """Copy the states that a decode step has brought to a length worth keeping.

        After all layers, so that a copy is of one length.  In a prefill the model does it itself,
        since the place may be in the middle of the step.
        """
        seqlens, targets = batch.mamba_track_seqlens, batch.mamba_track_indices
        if batch.mode != "decode" or seqlens is None or targets is None:
            return
        assert self._kv_pool.mamba_pool is not None, "a batch with tracked states has a state pool"
        due = np.flatnonzero(np.asarray(seqlens) != NOT_TRACKED)
        self._kv_pool.mamba_pool.copy_from(batch.mamba_indices[due], targets[due])

    def touch_largest(self, limits: StepLimits) -> None:
        """Run the largest shapes once, so that scratch memory is at its peak before it is judged.

        All of it happens in slot 0 of the pools, which nobody reads in earnest.
        """
        # Sampling with filters takes more scratch than greedy choice.
        params = SamplingParams(temperature=1.0, top_p=0.5)
        batches = _largest_batches(limits, self._kv_pool.size)
        if limits.tracks_states:
            batches = [_with_tracking(b) if b.mode == "extend" else b for b in batches]
        for batch in batches:
            self.next_tokens(batch, [params] * batch.batch_size)


def _largest_batches(limits: StepLimits, kv_tokens: int) -> list[ForwardBatch]:
    """Prefills and decodes at their limits; together no longer than the pool."""
    context_len = min(limits.context_len, kv_tokens)
    requests = limits.running_requests
    new = min(limits.prefill_tokens, context_len)
    share = max(1, min(context_len, kv_tokens // requests))
    each = max(1, min(limits.prefill_tokens // requests, share))
    batches = [
        # One long prompt, at the end of the longest context.
        _dump_batch("extend", [new], [context_len - new]),
        # As many prompts as fit, each after as long a prefix as the pool has room for.
        _dump_batch("extend", [each] * requests, [share - each] * requests),
        _dump_batch("decode", [1] * requests, [share - 1] * requests),
        _dump_batch("decode", [1], [context_len - 1]),
    ]
    if limits.draft_tokens:
        chain = min(limits.draft_tokens, share)
        batches.append(_dump_batch("verify", [chain] * requests, [share - chain] * requests))
    return batches


def _with_tracking(batch: ForwardBatch) -> ForwardBatch:
    """The same batch, with the state after each request's first new token copied to slot 0."""
    return replace(
        batch,
        mamba_track_seqlens=[prefix + 1 for prefix in batch.prefix_lens],
        mamba_track_indices=np.zeros_like(batch.mamba_indices),
    )


def _dump_batch(mode: ForwardMode, extend_lens: list[int], prefix_lens: list[int]) -> ForwardBatch:
    """A batch of token 0 whose every slot is the dump slot."""
    seq_lens = [p + n for p, n in zip(prefix_lens, extend_lens, strict=True)]
    spans = zip(prefix_lens, seq_lens, strict=True)
    positions = np.concatenate([np.arange(begin, end, dtype=np.int64) for begin, end in spans])
    return ForwardBatch(
        mode=mode,
        input_ids=np.zeros(len(positions), dtype=np.int64),
        positions=positions,
        extend_lens=extend_lens,
        prefix_lens=prefix_lens,
        seq_lens=seq_lens,
        out_cache_loc=np.zeros(len(positions), dtype=np.int64),
        kv_indices=np.zeros(sum(seq_lens), dtype=np.int64),
        mamba_indices=np.zeros(len(seq_lens), dtype=np.int64),
    )
