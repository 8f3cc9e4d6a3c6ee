"""Data that all layers of one step share: index tensors and kernel plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.forward_batch import ForwardBatch, IndexArray
from hybridbench.engine.kernels.causal_conv1d.reference import ConvPlan
from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from hybridbench.engine.kernels.index_arrays import to_device
from hybridbench.engine.kernels.paged_attention.reference import DecodePlan, ExtendPlan, seen_slots
from hybridbench.engine.memory.mamba_pool import MambaState, SpeculativeState
from hybridbench.engine.models.layers import Frequencies, Rotation

# Rows of ``DecodeInputs``: three for the step, then three for each kind of attention.
_OF_STEP = 3
_OF_ATTENTION = 3


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Everything that a decode step reads besides weights and pools, in two int64 tensors.

    Few tensors of known sizes need few copies to the device, and let a recorded step find each
    step's inputs at the same addresses.
    """

    rows: Tensor
    """[3 + 3 K, B]: tokens, positions, state slots; then, for each of K kinds of attention layers,
    the slots for the new keys and values, and the start in ``kv_indices`` and the number of each
    request's visible slots."""
    kv_indices: Tensor
    """[n]: KV slots of all positions, request after request, kind after kind."""

    @property
    def input_ids(self) -> Tensor:
        """Token ids, [B]."""
        return self.rows[0]

    @property
    def positions(self) -> Tensor:
        """Positions of the tokens, [B]."""
        return self.rows[1]

    @property
    def slots(self) -> Tensor:
        """State slots, [B]."""
        return self.rows[2]

    def out_cache_loc(self, kind: int = 0) -> Tensor:
        """Return the KV slots of the new tokens, [B]."""
        return self.rows[_OF_STEP + _OF_ATTENTION * kind]

    def seen(self, kind: int = 0) -> tuple[Tensor, Tensor]:
        """Return the start in ``kv_indices`` and the number of visible slots per request."""
        row = _OF_STEP + _OF_ATTENTION * kind
        return self.rows[row + 1], self.rows[row + 2]

    def padded(self, size: int) -> DecodeInputs:
        """Return the inputs padded to a batch of ``size``.

        The added requests have one token, and read and write slot 0.
        """
        height, batch = self.rows.shape
        rows = self.rows.new_zeros(height, size)
        rows[:, :batch] = self.rows
        # The added requests' visible slot comes after all others.
        rows[_OF_STEP + 1 :: _OF_ATTENTION, batch:] = len(self.kv_indices)
        rows[_OF_STEP + 2 :: _OF_ATTENTION, batch:] = 1
        return DecodeInputs(rows, functional.pad(self.kv_indices, (0, 1)))

    def to(self, device: torch.device) -> DecodeInputs:
        """Return the inputs on ``device``."""
        rows, kv_indices = (
            to_device(each.numpy(), device) for each in (self.rows, self.kv_indices)
        )
        return DecodeInputs(rows, kv_indices)


class KindOfAttention(NamedTuple):
    """How the attention layers of one kind store and see tokens; a model may have several."""

    locations: Callable[[IndexArray], IndexArray]
    """Maps locations in the KV pool to those of this kind's layers."""
    window: int | None
    """Number of tokens that a query sees, including its own; None for all."""


ALL_TOKENS = KindOfAttention(lambda locations: locations, None)


def decode_inputs(
    batch: ForwardBatch, kinds: Sequence[KindOfAttention] = (ALL_TOKENS,)
) -> DecodeInputs:
    """Build the inputs of a decode batch, on the host."""
    rows: list[IndexArray] = [batch.input_ids, batch.positions, batch.mamba_indices]
    slots: list[IndexArray] = []
    for number, kind in enumerate(kinds):
        starts, lens = seen_slots(batch.seq_lens, kind.window)
        rows += [kind.locations(batch.out_cache_loc), starts + number * len(batch.kv_indices), lens]
        slots.append(kind.locations(batch.kv_indices))
    kv_indices = slots[0] if len(slots) == 1 else np.concatenate(slots)
    return DecodeInputs(torch.from_numpy(np.stack(rows)), torch.from_numpy(kv_indices))


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """What the layers share in a step of one new token per request."""

    rotation: Rotation
    out_cache_loc: Tensor
    """[B] int64."""
    slots: Tensor
    """[B] int64, state slots."""
    attention: DecodePlan

    @classmethod
    def build(
        cls, inputs: DecodeInputs, frequencies: Frequencies, dtype: torch.dtype
    ) -> DecodeStep:
        """Plan a decode step for a model with one kind of attention."""
        return cls(
            rotation=Rotation.build(inputs.positions, frequencies, dtype),
            out_cache_loc=inputs.out_cache_loc(),
            slots=inputs.slots,
            attention=DecodePlan(*inputs.seen(), inputs.kv_indices, dtype),
        )


@dataclass(frozen=True, slots=True)
class ChainPlace:
    """One position in the chains of a verify step, for all chains that reach it."""

    tokens: Tensor
    """[b] int64, indices into the step's T tokens."""
    rows: Tensor
    """[b] int64, indices into its B requests."""


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """A chain of new tokens per request: its last token, then unverified draft tokens.

    Attention treats them as a batch of T decodes, some of which share a row.  Recurrent layers
    advance one position at a time, so that each state is computed exactly as in decoding.
    """

    rotation: Rotation
    out_cache_loc: Tensor
    """[T] int64."""
    slots: Tensor
    """[B] int64, state slots in batch order, for the first position of the chains."""
    places: tuple[ChainPlace, ...]
    attention: DecodePlan

    @classmethod
    def build(cls, batch: ForwardBatch, frequencies: Frequencies, dtype: torch.dtype) -> VerifyStep:
        """Plan a verify batch, on the device of ``frequencies``."""
        device = frequencies.radians.device
        positions = to_device(batch.positions, device)
        lens = np.asarray(batch.extend_lens, dtype=np.int64)
        first = np.cumsum(lens) - lens
        places = []
        for place in range(int(lens.max())):
            rows = np.flatnonzero(lens > place)
            places.append(
                ChainPlace(
                    tokens=to_device(first[rows] + place, device),
                    rows=to_device(rows, device),
                )
            )
        seen, kv_indices = verified_chains(batch)
        return cls(
            rotation=Rotation.build(positions, frequencies, dtype),
            out_cache_loc=to_device(batch.out_cache_loc, device),
            slots=to_device(batch.mamba_indices, device),
            places=tuple(places),
            attention=DecodePlan.build(seen, kv_indices, dtype, device),
        )


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows of a layer's conv windows and recurrent states."""

    conv: Tensor
    temporal: Tensor
    rows: Tensor


def chain_places(
    step: VerifyStep, state: MambaState, drafts: SpeculativeState
) -> Iterator[tuple[Tensor, StateRows, StateRows]]:
    """Yield, for each position of the chains, its tokens and the states before and after them.

    The first position continues from the slots, each later one from the previous one's states.
    """
    windows, temporal = drafts.intermediate_conv_window[0], drafts.intermediate_ssm
    source = StateRows(state.conv[0], state.temporal, step.slots)
    for number, place in enumerate(step.places):
        if number:
            source = StateRows(windows[number - 1], temporal[number - 1], place.rows)
        yield place.tokens, source, StateRows(windows[number], temporal[number], place.rows)


def verified_chains(batch: ForwardBatch) -> tuple[list[int], IndexArray]:
    """Split a verify batch into T decodes.

    Returns:
        The number of tokens that each decode sees, [T], and their KV slots, concatenated.
    """
    lens = np.asarray(batch.extend_lens, dtype=np.int64)
    starts = np.cumsum(batch.seq_lens) - np.asarray(batch.seq_lens)
    begins = np.repeat(starts, lens).tolist()
    seen: list[int] = (batch.positions + 1).tolist()
    each = [batch.kv_indices[a : a + n] for a, n in zip(begins, seen, strict=True)]
    return seen, np.concatenate(each)


@dataclass(frozen=True, slots=True)
class ExtendStep:
    """What the layers share in a step of several new tokens per request, after any prefix."""

    rotation: Rotation
    out_cache_loc: Tensor
    """[T] int64."""
    slots: Tensor
    """[B] int64, state slots."""
    sorted_slots: Tensor
    """[B] int64, state slots in the order of the chunk plan."""
    last_rows: Tensor
    """[B] int64: row of each request's last new token."""
    attention: ExtendPlan
    last_rotation: Rotation
    """For ``last_rows``."""
    last_attention: DecodePlan
    """For ``last_rows``."""
    conv: ConvPlan
    chunks: ChunkPlan
    track_slots: Tensor | None
    """[S] int64: slots for the states that both plans save; None if they save none."""

    @classmethod
    def build(
        cls, batch: ForwardBatch, frequencies: Frequencies, dtype: torch.dtype, conv_kernel: int
    ) -> ExtendStep:
        """Plan a prefill batch, on the device of ``frequencies``."""
        device = frequencies.radians.device
        positions = to_device(batch.positions, device)
        slots = to_device(batch.mamba_indices, device)
        offsets, track_slots = _tracked(batch, device)
        conv = ConvPlan.build(batch.extend_lens, conv_kernel, device, offsets)
        chunks = ChunkPlan.build(
            batch.extend_lens, conv.output_starts, device, track_offsets=offsets
        )
        rotation = Rotation.build(positions, frequencies, dtype)
        last_rows = to_device(np.cumsum(batch.extend_lens) - 1, device)
        return cls(
            rotation=rotation,
            out_cache_loc=to_device(batch.out_cache_loc, device),
            slots=slots,
            sorted_slots=slots.index_select(0, chunks.order),
            last_rows=last_rows,
            last_rotation=rotation.of_rows(last_rows),
            last_attention=DecodePlan.build(batch.seq_lens, batch.kv_indices, dtype, device),
            attention=ExtendPlan.build(
                batch.extend_lens, batch.prefix_lens, batch.kv_indices, device
            ),
            conv=conv,
            chunks=chunks,
            track_slots=track_slots,
        )


Step: TypeAlias = ExtendStep | DecodeStep | VerifyStep


def plan_step(
    batch: ForwardBatch, frequencies: Frequencies, dtype: torch.dtype, conv_kernel: int
) -> ExtendStep | VerifyStep:
    """Plan a prefill or verify batch, on the device of ``frequencies``."""
    if batch.mode == "verify":
        return VerifyStep.build(batch, frequencies, dtype)
    return ExtendStep.build(batch, frequencies, dtype, conv_kernel)


def rows_of_logits(x: Tensor, step: Step) -> Tensor:
    """Return the rows of [T, h] that need logits: in a prefill the last of each request, [B, h].

    Layers above the last one that stores keys, values or states need only these rows.
    """
    return x.index_select(0, step.last_rows) if isinstance(step, ExtendStep) else x


def _tracked(batch: ForwardBatch, device: torch.device) -> tuple[list[int] | None, Tensor | None]:
    """Return how many new tokens precede each state to save (0: none), and the slots for them."""
    seqlens, slots = batch.mamba_track_seqlens, batch.mamba_track_indices
    if seqlens is None or slots is None:
        return None, None
    offsets = [
        seqlen - prefix if seqlen > 0 else 0
        for seqlen, prefix in zip(seqlens, batch.prefix_lens, strict=True)
    ]
    return offsets, to_device(slots[np.array(offsets) > 0], device)
