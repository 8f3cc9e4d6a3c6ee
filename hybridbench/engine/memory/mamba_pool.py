"""The recurrent state of Mamba and gated-delta-net layers: one slot is one request's whole state.

Slot 0 is the dump: padded tokens write there, and nothing reads it.  Memory is laid out by slot
(all layers of a slot are adjacent), so copying or clearing a slot is one block move; the
tensors exposed to the model are permuted views with the layer first, as in other engines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridbench.engine.kernels.dispatch import Kernels, kernels_for
from hybridbench.engine.memory.indices import SlotInput, as_index_tensor
from hybridbench.engine.memory.pinned import to_device, to_host


@dataclass(frozen=True)
class Mamba2StateShape:
    """Shapes of one layer's state in one slot.

    Attributes:
        conv: one (conv_dim, kernel - 1) per convolution; every model family here has one.
        temporal: (heads, K, V) of the recurrent state.
        conv_kernel: width of the convolution.
    """

    conv: tuple[tuple[int, int], ...]
    temporal: tuple[int, int, int]
    conv_kernel: int

    @staticmethod
    def create(  # noqa: PLR0913 - SGLang's signature, for its callers
        *,
        tp_world_size: int = 1,
        intermediate_size: int,
        n_groups: int,
        num_heads: int,
        head_dim: int,
        state_size: int,
        conv_kernel: int,
    ) -> Mamba2StateShape:
        """The shape of a Mamba2 layer: conv over x, B and C; temporal (heads, head_dim, state)."""
        if num_heads % tp_world_size != 0:
            raise ValueError(f"{num_heads} heads do not divide by {tp_world_size} ranks")
        conv_dim = (intermediate_size + 2 * n_groups * state_size) // tp_world_size
        return Mamba2StateShape(
            conv=((conv_dim, conv_kernel - 1),),
            temporal=(num_heads // tp_world_size, head_dim, state_size),
            conv_kernel=conv_kernel,
        )

    @staticmethod
    def gated_delta_net(
        *,
        num_k_heads: int,
        num_v_heads: int,
        head_k_dim: int,
        head_v_dim: int,
        conv_kernel: int,
    ) -> Mamba2StateShape:
        """The shape of a gated-delta-net layer: conv over q, k and v; temporal (HV, K, V)."""
        conv_dim = 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim
        return Mamba2StateShape(
            conv=((conv_dim, conv_kernel - 1),),
            temporal=(num_v_heads, head_k_dim, head_v_dim),
            conv_kernel=conv_kernel,
        )


@dataclass(frozen=True)
class Mamba2StateDType:
    """Dtypes of the two parts of a state, to override the model's."""

    conv: torch.dtype
    temporal: torch.dtype


@dataclass(frozen=True)
class Mamba2CacheParams:
    """The model properties that a pool needs.

    Attributes:
        shape: shape of one layer's state.
        layers: the layers that have a state.
        dtype: dtypes of the state; None lets the pool choose.
    """

    shape: Mamba2StateShape
    layers: Sequence[int]
    dtype: Mamba2StateDType | None = None


@dataclass(frozen=True)
class MambaState:
    """Views of a pool: of all layers (layer dimension first) or of one layer (without it).

    Attributes:
        conv: list of ([layers,] size + 1, conv_dim, kernel - 1), in the model's dtype.
        temporal: ([layers,] size + 1, heads, K, V), float32, or float64 for a float64 model, or
            the dtype of the cache params.
    """

    conv: list[Tensor]
    temporal: Tensor


@dataclass(frozen=True)
class SpeculativeState:
    """One layer's states after each token of the chains that one step verifies.

    They last for one step and have no owner: the first dimension is the position in the chain,
    the second the request's row in the batch.

    Attributes:
        intermediate_conv_window: list of (draft tokens, rows, conv_dim, kernel - 1).
        intermediate_ssm: (draft tokens, rows, heads, K, V).
    """

    intermediate_conv_window: list[Tensor]
    intermediate_ssm: Tensor


class MambaHostCopy(NamedTuple):
    """States of some slots on the host, owned by this record's holder; slots in dimension 1."""

    conv: list[Tensor]
    temporal: Tensor


class MambaPool:
    """Conv and recurrent state of every slot; slots 0 (dump) to ``size``.

    All memory is allocated and written at construction, so that a process does not grow later
    on the first use of a slot.
    """

    def __init__(  # noqa: PLR0913 - SGLang's signature, for its callers
        self,
        size: int,
        cache_params: Mamba2CacheParams,
        mamba_layer_ids: Sequence[int],
        device: str | torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        spec_state_size: int = 0,
        speculative_num_draft_tokens: int | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        """Allocate all slots.

        Args:
            size: slots, without the dump.
            cache_params: shape of a state, and its dtypes if they differ from the model's.
            mamba_layer_ids: layers of the model that have a state.
            device: device of the states.
            dtype: the model's dtype.
            spec_state_size: maximum number of requests in a verify step.
            speculative_num_draft_tokens: tokens per request in a verify step; None allocates no
                buffers for intermediate states.
            kernels: replace the device's kernels.
        """
        if size < 1:
            raise ValueError(f"a state pool needs at least 1 slot, not {size}")
        self.size = size
        self.device = torch.device(device)
        self._kernels = kernels or kernels_for(self.device)
        self.dtype = dtype
        self.cache_params = cache_params
        self.mamba_map = {layer_id: row for row, layer_id in enumerate(mamba_layer_ids)}
        layers = len(self.mamba_map)
        types = cache_params.dtype or _state_dtype(dtype)
        shape = cache_params.shape
        self._by_slot = [
            self._touched((size + 1, layers, *conv), types.conv) for conv in shape.conv
        ]
        self._by_slot.append(self._touched((size + 1, layers, *shape.temporal), types.temporal))
        layer_first = [blocks.transpose(0, 1) for blocks in self._by_slot]
        self.mamba_cache = MambaState(conv=layer_first[:-1], temporal=layer_first[-1])
        self._layer_views = {
            layer_id: MambaState(
                conv=[conv[row] for conv in self.mamba_cache.conv],
                temporal=self.mamba_cache.temporal[row],
            )
            for layer_id, row in self.mamba_map.items()
        }
        self._drafted: list[Tensor] = []
        self._draft_views: dict[int, SpeculativeState] = {}
        if speculative_num_draft_tokens is not None:
            self._make_draft_buffers(speculative_num_draft_tokens, spec_state_size)
        self._host_bytes = self._raw_views() if self.device.type == "cpu" and layers else None

    def mamba2_layer_cache(self, layer_id: int) -> MambaState:
        """Views of one layer, slot dimension first; writes to them change the pool.

        Raises:
            ValueError: the layer has no recurrent state.
        """
        try:
            return self._layer_views[layer_id]
        except KeyError:
            known = sorted(self.mamba_map)
            raise ValueError(
                f"{layer_id=} has no recurrent state; layers with one: {known}"
            ) from None

    def mamba2_draft_cache(self, layer_id: int) -> SpeculativeState:
        """Views of one layer's buffers for draft chains.

        Raises:
            KeyError: the layer has no recurrent state, or there are no draft buffers.
        """
        return self._draft_views[layer_id]

    def update_mamba_state_after_verify(
        self, slots: Sequence[int], accepted_steps: Sequence[int]
    ) -> None:
        """Copy the state after the last accepted token of each chain into its request's slot.

        Until then the slots hold the states before the chains: the verify step does not write
        to them.  Source: SGLang's update_mamba_state_after_mtp_verify.

        Args:
            slots: the requests' slots, in the order of the batch's rows.
            accepted_steps: the position of the last accepted token in each chain, from 0.
        """
        self._keep_drafted(slots, accepted_steps, range(len(slots)))

    def track_mamba_state_after_verify(
        self, track_indices: Sequence[int], places: Sequence[int], steps_to_track: Sequence[int]
    ) -> None:
        """Save states from within chains, at the lengths where decoding would have saved them.

        Args:
            track_indices: the slots to write.
            places: the batch rows of these requests.
            steps_to_track: the position in each chain of the token after which to save the state.
        """
        self._keep_drafted(track_indices, steps_to_track, places)

    def copy_from(self, src: SlotInput, dst: SlotInput) -> None:
        """Overwrite the state in ``dst`` with that in ``src``; the caller holds both."""
        if self._host_bytes is not None and isinstance(src, int) and isinstance(dst, int):
            # A block move through a byte view costs a tenth of the same copy with tensor calls.
            for raw in self._host_bytes:
                raw[dst] = raw[src]
            return
        self._kernels.copy_states(self._by_slot, self._rows(dst), self._by_slot, self._rows(src))

    def clear_slots(self, idx: SlotInput) -> None:
        """Zero the state in ``idx``, so that a new holder does not inherit the old one's."""
        if self._host_bytes is not None and isinstance(idx, int):
            for raw in self._host_bytes:
                raw[idx] = 0
            return
        rows = self._rows(idx)
        for blocks in self._by_slot:
            blocks[rows] = 0

    def get_cpu_copy(self, indices: SlotInput) -> MambaHostCopy:
        """A host copy of the states in ``indices``, owned by the caller."""
        rows = self._rows(indices)
        copies = to_host([blocks[rows].transpose(0, 1) for blocks in self._by_slot])
        return MambaHostCopy(conv=copies[:-1], temporal=copies[-1])

    def load_cpu_copy(self, copy: tuple[list[Tensor], Tensor], indices: SlotInput) -> None:
        """Write a host copy to ``indices``, in the order of the copy."""
        rows = self._rows(indices)
        conv, temporal = copy
        for blocks, saved in zip(self._by_slot, [*conv, temporal], strict=True):
            blocks[rows] = to_device(saved.transpose(0, 1), blocks.device)

    def mem_usage_bytes(self) -> int:
        """Bytes of all slots, including the dump slot and the draft buffers."""
        return sum(blocks.nbytes for blocks in (*self._by_slot, *self._drafted))

    def slot_bytes(self) -> int:
        """Bytes of one slot over all layers."""
        return sum(blocks.nbytes for blocks in self._by_slot) // (self.size + 1)

    def _make_draft_buffers(self, draft_tokens: int, rows: int) -> None:
        if draft_tokens < 1 or rows < 1:
            raise ValueError(
                f"draft buffers need at least 1 token and 1 request, not {draft_tokens} and {rows}"
            )
        self._drafted = [
            self._touched((draft_tokens, rows, *blocks.shape[1:]), blocks.dtype)
            for blocks in self._by_slot
        ]
        self._draft_views = {
            layer_id: SpeculativeState(
                intermediate_conv_window=[conv[:, :, row] for conv in self._drafted[:-1]],
                intermediate_ssm=self._drafted[-1][:, :, row],
            )
            for layer_id, row in self.mamba_map.items()
        }

    def _keep_drafted(
        self, slots: Sequence[int], steps: Sequence[int], places: Sequence[int]
    ) -> None:
        """Copy the states after ``steps`` of the chains at ``places`` into ``slots``."""
        chains = self._drafted[0].shape[1]
        rows = [step * chains + place for step, place in zip(steps, places, strict=True)]
        drafted = [states.flatten(0, 1) for states in self._drafted]
        self._kernels.copy_states(self._by_slot, self._rows(slots), drafted, self._rows(rows))

    def _rows(self, indices: SlotInput) -> Tensor:
        return as_index_tensor(indices, self.device)

    def _touched(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        # zeros() would map the pages lazily; writing makes them resident now.
        return torch.empty(shape, dtype=dtype, device=self.device).zero_()

    def _raw_views(self) -> list[NDArray[np.uint8]]:
        return [
            blocks.view(self.size + 1, math.prod(blocks.shape[1:])).view(torch.uint8).numpy()
            for blocks in self._by_slot
        ]


def _state_dtype(dtype: torch.dtype) -> Mamba2StateDType:
    # The delta rule sums thousands of steps into the state; half precision would drift.
    temporal = torch.float64 if dtype == torch.float64 else torch.float32
    return Mamba2StateDType(conv=dtype, temporal=temporal)
