"""Record decode steps once per batch size as CUDA graphs, and replay them.

A decode step of a small model spends more time on launching kernels than the device spends running
them.  A CUDA graph launches all of a step's kernels in one call; it uses the same memory each time,
so the inputs of a step are copied to fixed addresses, and a batch is padded to one of the
recorded sizes with requests in slot 0.

Source: SGLang's ``CudaGraphRunner``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.step import DecodeInputs
from hybridbench.foundation.units import format_bytes


class GraphedModel(Protocol):
    """The model interface that the runner needs."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...

    def decode_inputs(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> DecodeInputs:
        """Return the inputs that ``decode`` needs for a decode batch, in host memory."""

    def decode(self, inputs: DecodeInputs, kv_pool: HybridLinearKVPool) -> Tensor:
        """Return logits [B, vocab], without reading host memory or waiting."""


class GraphRecorder(Protocol):
    """Records work for a device."""

    def host_buffer(self, size: int) -> Tensor:
        """[size] int64 zeros in host memory that can be copied to the device asynchronously."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run ``work`` and record it; calling the result runs it again on the same memory."""

    def pool_bytes(self) -> int:
        """Device memory that all recordings share for intermediate results."""


class CudaGraphRecorder:
    """CUDA graphs that share one memory pool, which is freed with the last of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def host_buffer(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64, pin_memory=True)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        # The first call compiles kernels and allocates the libraries' scratch memory, both of
        # which are forbidden during capture.
        beside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(beside):
            work()
        torch.cuda.current_stream(self._device).wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        return graph.replay

    def pool_bytes(self) -> int:
        pool = tuple(self._pool)
        return sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
            if tuple(segment["segment_pool_id"]) == pool
        )


class CudaGraphRunner:
    """Decodes batches, up to the largest recorded size, by replaying a recording."""

    def __init__(
        self,
        model: GraphedModel,
        kv_pool: HybridLinearKVPool,
        recorder: GraphRecorder,
        max_bs: int,
        max_context_len: int,
    ) -> None:
        """Record a graph for each batch size; this writes only to slot 0 of the pools.

        Args:
            model: the model to record.
            kv_pool: the pools that the model reads and writes.
            recorder: records for the model's device.
            max_bs: requests in the largest recorded batch.
            max_context_len: maximum number of tokens of a request.
        """
        self._model = model
        self._kv_pool = kv_pool
        self._sizes = capture_bs(max_bs)
        largest = model.decode_inputs(_padding(max_bs), kv_pool)
        # A padding request has one slot per kind of attention; a real one, one per token.
        slots = len(largest.kv_indices) * max_context_len
        words = largest.rows.numel() + slots + 1
        self._host = recorder.host_buffer(words)
        self._inputs = torch.zeros(words, dtype=torch.int64, device=model.device)
        vocab = model.config.vocab_size
        self._logits = torch.empty(max_bs, vocab, dtype=model.dtype, device=model.device)
        self.replays = 0
        # Record the largest first: the others then reuse its scratch memory in the pool.
        self._graphs = {size: self._capture(size, recorder) for size in reversed(self._sizes)}
        self.pool_bytes = recorder.pool_bytes()

    @property
    def note(self) -> str:
        """A sentence for a run to print: the largest batch size, and the graphs' memory."""
        return (
            f"decode steps of up to {self._sizes[-1]} requests replay CUDA graphs, "
            f"whose memory pool takes {format_bytes(self.pool_bytes)}"
        )

    def can_run(self, batch: ForwardBatch) -> bool:
        """Whether a recording fits ``batch``."""
        return batch.mode == "decode" and batch.batch_size <= self._sizes[-1]

    def replay(self, batch: ForwardBatch) -> Tensor:
        """Logits [B, vocab] of a decode batch, valid until the next replay."""
        size = next(size for size in self._sizes if size >= batch.batch_size)
        self._bring(batch, size)
        self._graphs[size]()
        self.replays += 1
        return self._logits[: batch.batch_size]

    def _capture(self, size: int, recorder: GraphRecorder) -> Callable[[], None]:
        inputs = self._bring(_padding(size), size)

        def work() -> None:
            self._logits[:size].copy_(self._model.decode(inputs, self._kv_pool))

        return recorder.record(work)

    def _bring(self, batch: ForwardBatch, size: int) -> DecodeInputs:
        """Copy a step's inputs to the addresses that the graph of ``size`` reads; return them."""
        inputs = self._model.decode_inputs(batch, self._kv_pool).padded(size)
        height, cells = len(inputs.rows), inputs.rows.numel()
        end = cells + len(inputs.kv_indices)
        # The previous step has completed, so nothing reads the buffer any more.
        self._host[:end].copy_(torch.cat((inputs.rows.view(-1), inputs.kv_indices)))
        self._inputs[:end].copy_(self._host[:end], non_blocking=True)
        return DecodeInputs(self._inputs[:cells].view(height, size), self._inputs[cells:])


def capture_bs(max_bs: int) -> tuple[int, ...]:
    """The batch sizes to record, up to ``max_bs``: few, but dense enough to limit padding."""
    ladder = (1, 2, 4, *range(8, max_bs, 8))
    return (*(size for size in ladder if size < max_bs), max_bs)


def _padding(requests: int) -> ForwardBatch:
    """A decode batch of one-token requests, all in slot 0."""
    zeros = np.zeros(requests, dtype=np.int64)
    return ForwardBatch(
        mode="decode",
        input_ids=zeros,
        positions=zeros,
        extend_lens=[1] * requests,
        prefix_lens=[0] * requests,
        seq_lens=[1] * requests,
        out_cache_loc=zeros,
        kv_indices=zeros,
        mamba_indices=zeros,
    )
