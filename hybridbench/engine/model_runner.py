"""Run one step: launch a forward batch through the model, then turn its logits into tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from hybridbench.engine.cuda_graph_runner import CudaGraphRunner
from hybridbench.engine.forward_batch import NOT_TRACKED, ForwardBatch
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.next_token import NextTokens, choose_next_tokens, logprobs_of
from hybridbench.engine.sampling_params import SamplingParams


class LanguageModel(Protocol):
    """The model interface that a runner needs."""

    @property
    def config(self) -> ModelConfig: ...

    def forward(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> Tensor:
        """Return logits [B, vocab] after each request's last new token, and update the pools.

        A "verify" batch returns [T, vocab] and leaves the state slots unchanged.
        """


class ModelRunner:
    """Runs a model on its pools; owns no request and no slot."""

    def __init__(
        self,
        model: LanguageModel,
        kv_pool: HybridLinearKVPool,
        graphs: CudaGraphRunner | None = None,
    ) -> None:
        """``graphs`` runs the decode batches that fit one of its recordings."""
        self._model = model
        self._kv_pool = kv_pool
        self._graphs = graphs

    @property
    def graph_replays(self) -> int:
        """Steps replayed so far."""
        return 0 if self._graphs is None else self._graphs.replays

    @property
    def graphs_note(self) -> str:
        """A sentence about the recordings, for a run to print; empty without any."""
        return "" if self._graphs is None else self._graphs.note

    def launch(self, batch: ForwardBatch) -> Tensor:
        """Logits of ``batch``, valid until the next launch.

        On a CUDA device they are still being computed when this returns.
        """
        if self._graphs is not None and self._graphs.can_run(batch):
            logits = self._graphs.replay(batch)
        else:
            logits = self._model.forward(batch, self._kv_pool)
        self._track_decoded(batch)
        return logits

    def next_tokens(
        self, batch: ForwardBatch, logits: Tensor, params: Sequence[SamplingParams]
    ) -> NextTokens:
        """Wait for the ``logits`` of ``batch``, and return the next token of each request.

        ``params`` are in the order of the requests.  For a "verify" batch, return the token after
        each of the [T] new ones, request after request.
        """
        if batch.mode == "verify":
            each = zip(params, batch.extend_lens, strict=True)
            params = [own for own, length in each for _ in range(length)]
            ids = choose_next_tokens(logits, params, (batch.positions + 1).tolist())
        else:
            ids = choose_next_tokens(logits, params, batch.seq_lens)
        return NextTokens(ids, logprobs_of(logits, params, ids))

    def _track_decoded(self, batch: ForwardBatch) -> None:
        """Save copies of the states that a decode step has advanced to a length to keep.

        This is done after all layers have run, so that all layers of a copy are at the same length.
        In a prefill the model saves the copies, since the length may lie in the middle of the step.
        """
        seqlens, targets = batch.mamba_track_seqlens, batch.mamba_track_indices
        if batch.mode != "decode" or seqlens is None or targets is None:
            return
        assert self._kv_pool.mamba_pool is not None, "a batch with tracked states has a state pool"
        due = np.flatnonzero(np.asarray(seqlens) != NOT_TRACKED)
        self._kv_pool.mamba_pool.copy_from(batch.mamba_indices[due], targets[due])
