"""What all layers of one step share: index tensors and the plans of the kernels."""

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
from hybridbench.engine.kernels.paged_attention.reference import DecodePlan, ExtendPlan, seen_slots
from hybridbench.engine.memory.mamba_pool import MambaState, SpeculativeState
from hybridbench.engine.models.layers import Frequencies, Rotation

# Rows of ``DecodeInputs``: three of the step, then three for each kind of attention.
_OF_STEP = 3
_OF_ATTENTION = 3


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """All that a decode step reads beside weights and pools, in two tensors of int64.

    They are few and of known sizes, so that one copy brings them to the device, and a recorded step
    finds those of the next step in the same place.
    """

    rows: Tensor
    """[3 + 3 K, B]: tokens, positions, state slots; then for each of K kinds of attention layers
    where it stores the new keys and values, where in ``kv_indices`` the slots begin that a request
    sees, and how many they are."""
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
        """[B] each: where in ``kv_indices`` the slots that a request sees begin; how many."""
        row = _OF_STEP + _OF_ATTENTION * kind
        return self.rows[row + 1], self.rows[row + 2]

    def padded(self, size: int) -> DecodeInputs:
        """The same for a batch of ``size``; the requests that are added see slot 0, write to it,
        and have one token.
        """
        height, batch = self.rows.shape
        rows = self.rows.new_zeros(height, size)
        rows[:, :batch] = self.rows
        # The slot that they see stands behind all others.
        rows[_OF_STEP + 1 :: _OF_ATTENTION, batch:] = len(self.kv_indices)
        rows[_OF_STEP + 2 :: _OF_ATTENTION, batch:] = 1
        return DecodeInputs(rows, functional.pad(self.kv_indices, (0, 1)))

    def to(self, device: torch.device) -> DecodeInputs:
        """The same on ``device``."""
        return DecodeInputs(self.rows.to(device), self.kv_indices.to(device))


class KindOfAttention(NamedTuple):
    """What attention layers of one kind store and see, where a model has several kinds."""

    locations: Callable[[IndexArray], IndexArray]
    """From locations in the KV pool to those of this kind's layers."""
    window: int | None
    """The tokens that a query sees, its own included; None is all."""


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
        """The plans of a decode step of a model with one kind of attention."""
        return cls(
            rotation=Rotation.build(inputs.positions, frequencies, dtype),
            out_cache_loc=inputs.out_cache_loc(),
            slots=inputs.slots,
            attention=DecodePlan(*inputs.seen(), inputs.kv_indices, dtype),
        )


@dataclass(frozen=True, slots=True)
class ChainPlace:
    """One place of the chains that a step verifies: the requests whose chains are that long."""

    tokens: Tensor
    """[b] int64 into the step's T tokens."""
    rows: Tensor
    """[b] int64 into its B requests."""


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """A chain of new tokens for each request, of which only the first is known to be right.

    To attention it is a batch of T decodes, some of them on one row.  The recurrent layers go from
    place to place, so that each state is computed exactly as decoding would.
    """

    rotation: Rotation
    out_cache_loc: Tensor
    """[T] int64."""
    slots: Tensor
    """[B] int64, state slots; all chains have a first place, in the order of the batch."""
    places: tuple[ChainPlace, ...]
    attention: DecodePlan

    @classmethod
    def build(cls, batch: ForwardBatch, frequencies: Frequencies, dtype: torch.dtype) -> VerifyStep:
        """The plans of a verifying batch, on the device of ``frequencies``."""
        device = frequencies.radians.device
        positions = torch.from_numpy(batch.positions).to(device)
        lens = np.asarray(batch.extend_lens, dtype=np.int64)
        first = np.cumsum(lens) - lens
        places = []
        for place in range(int(lens.max())):
            rows = np.flatnonzero(lens > place)
            places.append(
                ChainPlace(
                    tokens=torch.from_numpy(first[rows] + place).to(device),
                    rows=torch.from_numpy(rows).to(device),
                )
            )
        seen, kv_indices = verified_chains(batch)
        return cls(
            rotation=Rotation.build(positions, frequencies, dtype),
            out_cache_loc=torch.from_numpy(batch.out_cache_loc).to(device),
            slots=torch.from_numpy(batch.mamba_indices).to(device),
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
    """For each place of all chains: its tokens, and the states before and after them.

    Each place continues from the states of the place before it, the first from the slots.
    """
    windows, temporal = drafts.intermediate_conv_window[0], drafts.intermediate_ssm
    source = StateRows(state.conv[0], state.temporal, step.slots)
    for number, place in enumerate(step.places):
        if number:
            source = StateRows(windows[number - 1], temporal[number - 1], place.rows)
        yield place.tokens, source, StateRows(windows[number], temporal[number], place.rows)


def verified_chains(batch: ForwardBatch) -> tuple[list[int], IndexArray]:
    """A verifying batch as T decodes: what each sees, [T], and the KV slots of that, one after
    the other.
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
    """[B] int64: the same in the order of the chunk plan."""
    last_rows: Tensor
    """[B] int64: the last new token of each request."""
    attention: ExtendPlan
    last_rotation: Rotation
    """Of ``last_rows``."""
    last_attention: DecodePlan
    """What those see."""
    conv: ConvPlan
    chunks: ChunkPlan
    track_slots: Tensor | None
    """[S] int64: where the states go that the two plans want besides; None if they want none."""

    @classmethod
    def build(
        cls, batch: ForwardBatch, frequencies: Frequencies, dtype: torch.dtype, conv_kernel: int
    ) -> ExtendStep:
        """The plans of a prefill batch, on the device of ``frequencies``."""
        device = frequencies.radians.device
        positions = torch.from_numpy(batch.positions).to(device)
        slots = torch.from_numpy(batch.mamba_indices).to(device)
        offsets, track_slots = _tracked(batch, device)
        conv = ConvPlan.build(batch.extend_lens, conv_kernel, device, offsets)
        chunks = ChunkPlan.build(
            batch.extend_lens, conv.output_starts, device, track_offsets=offsets
        )
        rotation = Rotation.build(positions, frequencies, dtype)
        last_rows = torch.from_numpy(np.cumsum(batch.extend_lens) - 1).to(device)
        return cls(
            rotation=rotation,
            out_cache_loc=torch.from_numpy(batch.out_cache_loc).to(device),
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
    """The plans of a batch that does not decode, on the device of ``frequencies``."""
    if batch.mode == "verify":
        return VerifyStep.build(batch, frequencies, dtype)
    return ExtendStep.build(batch, frequencies, dtype, conv_kernel)


def rows_of_logits(x: Tensor, step: Step) -> Tensor:
    """Of [T, h] the rows whose logits are wanted: of a prefill the last of each request, [B, h].

    The layers above the last that stores keys, values or states need no others.
    """
    return x.index_select(0, step.last_rows) if isinstance(step, ExtendStep) else x


def _tracked(batch: ForwardBatch, device: torch.device) -> tuple[list[int] | None, Tensor | None]:
    """After how many new tokens of each request a state is wanted (0: none), and in which slots."""
    seqlens, slots = batch.mamba_track_seqlens, batch.mamba_track_indices
    if seqlens is None or slots is None:
        return None, None
    offsets = [
        seqlen - prefix if seqlen > 0 else 0
        for seqlen, prefix in zip(seqlens, batch.prefix_lens, strict=True)
    ]
    return offsets, torch.from_numpy(slots[np.array(offsets) > 0]).to(device)
