"""The part that all model families share: one step from index arrays to logits.

A decode step is computed only from ``DecodeInputs``, which are on the device.  It reads nothing on
the host and never waits, so it can be recorded (``cuda_graph_runner.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor

from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.kernels.index_arrays import to_device
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.models.layers import Frequencies
from hybridbench.engine.models.step import (
    DecodeInputs,
    DecodeStep,
    Step,
    decode_inputs,
    plan_step,
)

StepT = TypeVar("StepT")


class CausalLM(ABC, Generic[StepT]):
    """A model that owns only its weights; everything about requests is in the pools it is given."""

    dtype: torch.dtype
    device: torch.device

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> Tensor:
        """Return logits [B, vocab] after the last new token of each request, owned by the caller.

        Writes keys, values and states of the new tokens into the pools, by slot.  For a verify
        batch, returns [T, vocab], after every new token, and writes the states into the pool's
        draft buffers.
        """
        if batch.mode == "decode":
            return self.decode(self.decode_inputs(batch, kv_pool).to(self.device), kv_pool)
        input_ids = to_device(batch.input_ids, self.device)
        return self._logits(input_ids, self._plan(batch, kv_pool), kv_pool)

    def decode_inputs(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> DecodeInputs:
        """Build the inputs of ``decode`` for a decode batch, on the host."""
        del kv_pool  # In most families all attention layers store and see the same tokens.
        return decode_inputs(batch)

    @torch.inference_mode()
    def decode(self, inputs: DecodeInputs, kv_pool: HybridLinearKVPool) -> Tensor:
        """Run ``forward`` for a decode batch whose inputs are on the device."""
        return self._logits(inputs.input_ids, self._plan_decode(inputs), kv_pool)

    @abstractmethod
    def _plan(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> StepT:
        """Build what all layers share in a step other than decode."""

    @abstractmethod
    def _plan_decode(self, inputs: DecodeInputs) -> StepT:
        """Build the same for a decode step, on the device."""

    @abstractmethod
    def _logits(self, input_ids: Tensor, step: StepT, kv_pool: HybridLinearKVPool) -> Tensor:
        """Run tokens [T] through all layers."""


class HybridLM(CausalLM[Step]):
    """A model whose attention layers all have full attention, with or without recurrent layers."""

    _frequencies: Frequencies
    _conv_kernel: int
    """Width of the recurrent layers' convolutions, in tokens."""

    def _plan(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> Step:
        del kv_pool
        return plan_step(batch, self._frequencies, self.dtype, self._conv_kernel)

    def _plan_decode(self, inputs: DecodeInputs) -> Step:
        return DecodeStep.build(inputs, self._frequencies, self.dtype)
