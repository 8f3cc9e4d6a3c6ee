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

    They are few and of known sizes, so that one copy moves them to the device, and a recorded step
    finds the next step's inputs at the same addresses.
    """

    rows: Tensor
    """[3 + 3 K, B]: tokens, positions, state slots; then for each of K kinds of attention layers
    where it stores the new keys and values, where in ``kv_indices`` a request's visible slots
    begin, and how many there are."""
    kv_indices: Tensor
    """[n]: KV slots of all positions, request after request, kind after kind."""

    @property
    def input_ids(self) -> Tensor:
        """[B]."""
        return self.rows[0]

    @property
    def positions(self) -> Tensor:
        """[B]."""
        return self.rows[1]

    @property
    def slots(self) -> Tensor:
        """[B], state slots."""
        return self.rows[2]

    def out_cache_loc(self, kind: int = 0) -> Tensor:
        """[B], the KV slots of the new tokens."""
        return self.rows[_OF_STEP + _OF_ATTENTION * kind]

    def seen(self, kind: int = 0) -> tuple[Tensor, Tensor]:
        """[B] each: where in ``kv_indices`` a request's visible slots begin, and how many."""
        row = _OF_STEP + _OF_ATTENTION * kind
        return self.rows[row + 1], self.rows[row + 2]

    def padded(self, size: int) -> DecodeInputs:
        """The inputs padded to a batch of ``size``; the added requests have one token, and read
        and write slot 0.
        """
        height, batch = self.rows.shape
        rows = self.rows.new_zeros(height, size)
        rows[:, :batch] = self.rows
        # Their visible slot is after all others.
        rows[_OF_STEP + 1 :: _OF_ATTENTION, batch:] = len(self.kv_indices)
        rows[_OF_STEP + 2 :: _OF_ATTENTION, batch:] = 1
        return DecodeInputs(rows, functional.pad(self.kv_indices, (0, 1)))

    def to(self, device: torch.device) -> DecodeInputs:
        """The same on ``device``."""
        rows, kv_indices = (
            to_device(each.numpy(), device) for each in (self.rows, self.kv_indices)
        )
        return DecodeInputs(rows, kv_indices)


class KindOfAttention(NamedTuple):
    """How attention layers of one kind store and see tokens, if a model has several kinds."""

    locations: Callable[[IndexArray], IndexArray]
    """Maps locations in the KV pool to those of this kind's layers."""
    window: int | None
    """Number of tokens that a query sees, itself included; None is all."""


ALL_TOKENS = KindOfAttention(lambda locations: locations, None)


def decode_inputs(
    batch: ForwardBatch, kinds: Sequence[KindOfAttention] = (ALL_TOKENS,)
) -> DecodeInputs:
    """The inputs of a decode batch, on the host."""
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
    """One new token for each request."""

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
        """The plans of a decode step for a model with one kind of attention."""
        return cls(
            rotation=Rotation.build(inputs.positions, frequencies, dtype),
            out_cache_loc=inputs.out_cache_loc(),
            slots=inputs.slots,
            attention=DecodePlan(*inputs.seen(), inputs.kv_indices, dtype),
        )


@dataclass(frozen=True, slots=True)
class ChainPlace:
    """One position in the chains of a verify step, for the requests with chains that long."""

    tokens: Tensor
    """[b] int64, indices into the step's T tokens."""
    rows: Tensor
    """[b] int64, indices into its B requests."""


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """A chain of new tokens for each request, of which only the first is known to be right.

    Attention sees a batch of T decodes, some sharing a row.  The recurrent layers advance one
    position at a time, so that each state is computed exactly as in decoding.
    """

    rotation: Rotation
    out_cache_loc: Tensor
    """[T] int64."""
    slots: Tensor
    """[B] int64, state slots; all chains have a first position, in the order of the batch."""
    places: tuple[ChainPlace, ...]
    attention: DecodePlan

    @classmethod
    def build(cls, batch: ForwardBatch, frequencies: Frequencies, dtype: torch.dtype) -> VerifyStep:
        """The plans of a verify batch, on the device of ``frequencies``."""
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
    """For each position of all chains: its tokens, and the states before and after them.

    Each position continues from the states of the previous one, the first from the slots.
    """
    windows, temporal = drafts.intermediate_conv_window[0], drafts.intermediate_ssm
    source = StateRows(state.conv[0], state.temporal, step.slots)
    for number, place in enumerate(step.places):
        if number:
            source = StateRows(windows[number - 1], temporal[number - 1], place.rows)
        yield place.tokens, source, StateRows(windows[number], temporal[number], place.rows)


def verified_chains(batch: ForwardBatch) -> tuple[list[int], IndexArray]:
    """A verify batch as T decodes: the number of tokens that each sees, [T], and their KV slots,
    concatenated.
    """
    lens = np.asarray(batch.extend_lens, dtype=np.int64)
    starts = np.cumsum(batch.seq_lens) - np.asarray(batch.seq_lens)
    begins = np.repeat(starts, lens).tolist()
    seen: list[int] = (batch.positions + 1).tolist()
    each = [batch.kv_indices[a : a + n] for a, n in zip(begins, seen, strict=True)]
    return seen, np.concatenate(each)


@dataclass(frozen=True, slots=True)
class ExtendStep:
    """Several new tokens for each request, after prefixes of any length."""

    rotation: Rotation
    out_cache_loc: Tensor
    """[T] int64."""
    slots: Tensor
    """[B] int64, state slots."""
    sorted_slots: Tensor
    """[B] int64: the same, in the order of the chunk plan."""
    last_rows: Tensor
    """[B] int64: the last new token of each request."""
    attention: ExtendPlan
    last_rotation: Rotation
    """For ``last_rows``."""
    last_attention: DecodePlan
    """For the same rows."""
    conv: ConvPlan
    chunks: ChunkPlan
    track_slots: Tensor | None
    """[S] int64: the slots for the additional states of the two plans; None without any."""

    @classmethod
    def build(
        cls, batch: ForwardBatch, frequencies: Frequencies, dtype: torch.dtype, conv_kernel: int
    ) -> ExtendStep:
        """The plans of a prefill batch, on the device of ``frequencies``."""
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
    """The plans of a batch other than decode, on the device of ``frequencies``."""
    if batch.mode == "verify":
        return VerifyStep.build(batch, frequencies, dtype)
    return ExtendStep.build(batch, frequencies, dtype, conv_kernel)


def rows_of_logits(x: Tensor, step: Step) -> Tensor:
    """The rows of [T, h] whose logits are wanted: in a prefill the last of each request, [B, h].

    Layers above the last one that stores keys, values or states need no others.
    """
    return x.index_select(0, step.last_rows) if isinstance(step, ExtendStep) else x


def _tracked(batch: ForwardBatch, device: torch.device) -> tuple[list[int] | None, Tensor | None]:
    """New tokens of each request after which to save a state (0: none), and the slots for it."""
    seqlens, slots = batch.mamba_track_seqlens, batch.mamba_track_indices
    if seqlens is None or slots is None:
        return None, None
    offsets = [
        seqlen - prefix if seqlen > 0 else 0
        for seqlen, prefix in zip(seqlens, batch.prefix_lens, strict=True)
    ]
    return offsets, to_device(slots[np.array(offsets) > 0], device)
