"""The table that maps a request's row to the KV indices of its positions and to its state slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hybridbench.engine.memory.indices import IntArray, SlotInput, as_index_array
from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams, MambaPool
from hybridbench.engine.memory.owners import REQ, TRACK, Owner, OwnershipError
from hybridbench.engine.memory.slots import MambaSlotAllocator, SlotAllocator

NOT_TAKEN = -1
"""In a track buffer: an entry without a slot."""


class RowRecord(Protocol):
    """The fields of a request's record that this table writes.

    Attributes:
        req_pool_idx: its row.
        mamba_pool_idx: its state slot.
        mamba_ping_pong_track_buffer: slots for copies of that state at lengths worth caching, -1
            for a slot not allocated; None before the first ``alloc``.  Only a table with extra
            buffers uses this and the next two.
        mamba_next_track_idx: the buffer entry for the next copy (with the lazy strategy, of the
            last complete copy).
        mamba_last_track_seqlen: length of the last complete copy; None without one.
    """

    req_pool_idx: int | None
    mamba_pool_idx: int | None
    mamba_ping_pong_track_buffer: list[int] | None
    mamba_next_track_idx: int
    mamba_last_track_seqlen: int | None


class RowHolder(Protocol):
    """A request, or a session between two turns: a name for messages, and the record."""

    @property
    def rid(self) -> str: ...

    @property
    def kv(self) -> RowRecord: ...


class ReqToTokenPool:
    """A table with rows 1 to ``size``; row 0 receives the writes of padding.

    Attributes:
        req_to_token: int32 (size + 1, max_context_len): KV index of each position of each row.
    """

    def __init__(
        self,
        size: int,
        max_context_len: int,
        device: str | torch.device = "cpu",
        *,
        check_owners: bool = True,
    ) -> None:
        self.size = size
        self.max_context_len = max_context_len
        self.device = torch.device(device)
        self.rows = SlotAllocator(size, device, "request rows", check_owners=check_owners)
        # full() touches every page now; with zeros() the process would grow on first use.
        self.req_to_token: NDArray[np.int32] = np.full(
            (size + 1, max_context_len), 0, dtype=np.int32
        )

    @property
    def free_slots(self) -> deque[int]:
        """The free rows, next one first."""
        return self.rows.free_slots

    def write(
        self,
        indices: tuple[int | IntArray, slice[int, int, None] | IntArray],
        values: IntArray | NDArray[np.int32] | torch.Tensor,
    ) -> None:
        """Set ``req_to_token[indices]``: (row, slice(start, end)) or (rows, positions)."""
        self.req_to_token[indices] = values

    def available_size(self) -> int:
        """Free rows."""
        return self.rows.available_size()

    def held(self, owner: Owner) -> int:
        """Rows that ``owner`` holds."""
        return self.rows.held(owner)

    def alloc(self, reqs: Sequence[RowHolder]) -> list[int] | None:
        """Give a row to each request that has none; None, and nothing taken, if there are too few.

        A request that has one (its prefill continues) keeps it.

        Returns:
            The row of each request, in order.
        """
        needy = [req for req in reqs if req.kv.req_pool_idx is None]
        taken = self.rows.alloc(len(needy), REQ)
        if taken is None:
            return None
        for req, row in zip(needy, taken, strict=True):
            req.kv.req_pool_idx = row
        return [_row_of(req) for req in reqs]

    def free(self, req: RowHolder, owner: Owner = REQ) -> None:
        """Free the row of ``req``, which is a request or a session, depending on ``owner``.

        Raises:
            OwnershipError: it has no row, or the row is not ``owner``'s.
        """
        self.rows.free([_row_of(req)], owner)
        req.kv.req_pool_idx = None

    def transfer(self, row: int, giver: Owner, taker: Owner) -> None:
        """Record that ``taker`` now holds ``row`` and must free it.

        Raises:
            OwnershipError: it is not ``giver``'s; nothing was changed.
        """
        self.rows.transfer([row], giver, taker)

    def clear(self) -> None:
        """Free all rows; the table's contents become meaningless."""
        self.rows.clear()


class HybridReqToTokenPool(ReqToTokenPool):
    """The table for hybrid models, where a request also has a state slot.

    With ``enable_mamba_extra_buffer`` it also has a track buffer: n slots (owner TRACK) in which
    steps save copies of the state, in turn, at lengths worth caching.  Without overlapped
    scheduling, n is 1.  With it, n is 2, since a step planned before the previous results are known
    must not overwrite a copy that those results may need.  In the lazy strategy, the second slot is
    allocated only when a copy is due while the first slot holds a complete one; once the new copy
    is complete, the slot of the old one is freed.

    Attributes:
        mamba_pool: the states themselves.
        mamba_allocator: allocates the state slots, and records their owners.
        req_index_to_mamba_index_mapping: int32 (size + 1): row -> state slot, 0 for none.
        mamba_ping_pong_track_buffer_size: n; 0 without the extra buffer.
        req_index_to_mamba_ping_pong_track_buffer_mapping: int32 (size + 1, n): row -> its buffer,
            0 for a row without one, -1 for a slot not allocated.
    """

    def __init__(  # noqa: PLR0913 - SGLang's signature, for its callers
        self,
        size: int,
        mamba_size: int,
        max_context_len: int,
        device: str | torch.device,
        mamba_pool: MambaPool | None = None,
        *,
        cache_params: Mamba2CacheParams | None = None,
        mamba_layer_ids: Sequence[int] | None = None,
        mamba_spec_state_size: int = 0,
        speculative_num_draft_tokens: int | None = None,
        enable_mamba_extra_buffer: bool = False,
        enable_mamba_extra_buffer_lazy: bool = False,
        enable_overlap_schedule: bool = True,
        check_owners: bool = True,
    ) -> None:
        """Create the table, and the state pool unless it is given.

        Args:
            size: request rows.
            mamba_size: state slots.
            max_context_len: positions of a row.
            device: device of a state pool created here, and of index tensors for the allocators.
            mamba_pool: the states; None creates them from ``cache_params``.
            cache_params: shape, dtypes and layers of the states to create.
            mamba_layer_ids: layers that have a state, if not those of ``cache_params``.
            mamba_spec_state_size, speculative_num_draft_tokens: as for ``MambaPool``.
            enable_mamba_extra_buffer: give each request a track buffer.
            enable_mamba_extra_buffer_lazy: allocate its second slot only while it is needed; no
                effect on a buffer of one.
            enable_overlap_schedule: determines the size of the extra buffer; no effect without one.
            check_owners: refuse to free or transfer what the giver does not hold.

        Raises:
            ValueError: neither states nor cache params are given, or the pool is too small.
        """
        if mamba_pool is None:
            if cache_params is None:
                raise ValueError("a hybrid table needs mamba_pool, or cache_params to make one")
            mamba_pool = MambaPool(
                mamba_size,
                cache_params,
                cache_params.layers if mamba_layer_ids is None else mamba_layer_ids,
                device,
                spec_state_size=mamba_spec_state_size,
                speculative_num_draft_tokens=speculative_num_draft_tokens,
            )
        if mamba_size > mamba_pool.size:
            raise ValueError(f"{mamba_size} state slots do not fit a pool of {mamba_pool.size}")
        super().__init__(size, max_context_len, device, check_owners=check_owners)
        self.mamba_pool = mamba_pool
        self.mamba_map = mamba_pool.mamba_map
        self.mamba_allocator = MambaSlotAllocator(mamba_size, device, check_owners=check_owners)
        self.req_index_to_mamba_index_mapping: NDArray[np.int32] = np.zeros(
            size + 1, dtype=np.int32
        )
        self.enable_mamba_extra_buffer = enable_mamba_extra_buffer
        in_buffer = (2 if enable_overlap_schedule else 1) if enable_mamba_extra_buffer else 0
        self.mamba_ping_pong_track_buffer_size = in_buffer
        self.enable_mamba_extra_buffer_lazy = enable_mamba_extra_buffer_lazy and in_buffer == 2
        self.req_index_to_mamba_ping_pong_track_buffer_mapping: NDArray[np.int32] = np.zeros(
            (size + 1, in_buffer), dtype=np.int32
        )

    @property
    def track_slots_at_alloc(self) -> int:
        """Track-buffer slots that a request gets together with its row."""
        return 1 if self.enable_mamba_extra_buffer_lazy else self.mamba_ping_pong_track_buffer_size

    def alloc(self, reqs: Sequence[RowHolder]) -> list[int] | None:
        """Allocate rows, and missing state slots and track buffers; None if anything is short.

        A request that already has a state slot or a track buffer keeps it.
        """
        needy = [req for req in reqs if req.kv.mamba_pool_idx is None]
        untracked = self._without_buffer(reqs)
        slots = self._alloc_states(len(needy), REQ)
        if slots is None:
            return None
        tracks = self._alloc_states(self.track_slots_at_alloc * len(untracked), TRACK)
        rows = None if tracks is None else super().alloc(reqs)
        if tracks is None or rows is None:
            self.mamba_allocator.free(slots, REQ)
            self.mamba_allocator.free(tracks or [], TRACK)
            return None
        for req, slot in zip(needy, slots, strict=True):
            req.kv.mamba_pool_idx = slot
        for req, row in zip(reqs, rows, strict=True):
            if req.kv.mamba_pool_idx is not None:
                self._map_state(row, int(req.kv.mamba_pool_idx))
        self._give_buffers(untracked, tracks)
        return rows

    def free(self, req: RowHolder, owner: Owner = REQ) -> None:
        """Free a row; the request's state slot is freed by ``free_mamba_cache``."""
        row = _row_of(req)
        super().free(req, owner)
        # A stale entry would let a later batch write into a slot that has a new holder.
        self._map_state(row, 0)
        self.req_index_to_mamba_ping_pong_track_buffer_mapping[row] = 0

    def free_mamba_cache(
        self,
        req: RowHolder,
        mamba_ping_pong_track_buffer_to_keep: int | None = None,
        *,
        owner: Owner = REQ,
    ) -> None:
        """Free the state slot and the track buffer of ``req``.

        Args:
            req: a request or a session, depending on ``owner``; has no state slot afterwards.
            mamba_ping_pong_track_buffer_to_keep: the buffer entry whose slot now has another
                holder and is not freed.
            owner: the owner of the slots; a request's buffer belongs to TRACK.

        Raises:
            OwnershipError: ``req`` has no state slot, or a slot is not ``owner``'s.
        """
        slot = req.kv.mamba_pool_idx
        if slot is None:
            raise OwnershipError(f"request {req.rid} holds no state slot to free")
        self.mamba_allocator.free([slot], owner)
        self.forget_mamba_cache(req)
        if self.enable_mamba_extra_buffer:
            self._free_track_buffer(
                req, mamba_ping_pong_track_buffer_to_keep, track_buffer_owner(owner)
            )

    def forget_mamba_cache(self, req: RowHolder) -> None:
        """Drop all references to the request's state slot, which has another holder now."""
        req.kv.mamba_pool_idx = None
        if req.kv.req_pool_idx is not None:
            self._map_state(req.kv.req_pool_idx, 0)

    def get_mamba_ping_pong_other_idx(self, mamba_next_track_idx: int) -> int:
        """The other entry of a buffer of two; the same one in a buffer of one."""
        return 1 - mamba_next_track_idx if self.mamba_ping_pong_track_buffer_size == 2 else 0

    def get_mamba_ping_pong_keep_idx(self, req: RowHolder) -> int:
        """The buffer entry of the last complete copy, if there is one."""
        if self.enable_mamba_extra_buffer_lazy:
            return req.kv.mamba_next_track_idx
        return self.get_mamba_ping_pong_other_idx(req.kv.mamba_next_track_idx)

    def donate_mamba_ping_pong_slot(self, req: RowHolder, new_slot: int) -> int:
        """Replace the slot of the last complete copy with ``new_slot``; return the old slot.

        The caller does the accounting: it allocates ``new_slot`` for TRACK, and transfers the old
        slot.
        """
        keep_idx = self.get_mamba_ping_pong_keep_idx(req)
        donated = _buffer_of(req)[keep_idx]
        self.set_mamba_ping_pong_slot(req, keep_idx, new_slot)
        return donated

    def set_mamba_ping_pong_slot(self, req: RowHolder, idx: int, slot: int) -> None:
        """Set entry ``idx`` of an admitted request's buffer to ``slot``."""
        _buffer_of(req)[idx] = slot
        self.req_index_to_mamba_ping_pong_track_buffer_mapping[_row_of(req), idx] = slot

    def take_track_slot(self, req: RowHolder) -> int | None:
        """The slot for the next step's copy; None if it must be allocated and none is free.

        The last complete copy is preserved, except in a buffer of one, where it is overwritten.
        """
        idx = req.kv.mamba_next_track_idx
        if self.enable_mamba_extra_buffer_lazy and req.kv.mamba_last_track_seqlen is not None:
            idx = self.get_mamba_ping_pong_other_idx(idx)
            if _buffer_of(req)[idx] == NOT_TAKEN:
                taken = self.mamba_allocator.alloc(1, TRACK)
                if taken is None:
                    return None
                self.set_mamba_ping_pong_slot(req, idx, taken[0])
        return int(self.req_index_to_mamba_ping_pong_track_buffer_mapping[_row_of(req), idx])

    def complete_track(self, req: RowHolder, seqlen: int) -> None:
        """Record that a step has saved a copy after ``seqlen`` tokens; it becomes the one to keep.

        In the lazy strategy this frees the slot of the previous copy.
        """
        idx = req.kv.mamba_next_track_idx
        other = self.get_mamba_ping_pong_other_idx(idx)
        if not self.enable_mamba_extra_buffer_lazy:
            req.kv.mamba_next_track_idx = other
        elif _buffer_of(req)[other] != NOT_TAKEN:
            self.mamba_allocator.free([_buffer_of(req)[idx]], TRACK)
            self.set_mamba_ping_pong_slot(req, idx, NOT_TAKEN)
            req.kv.mamba_next_track_idx = other
        req.kv.mamba_last_track_seqlen = seqlen

    def get_mamba_indices(self, rows: SlotInput) -> IntArray:
        """State slot of each row, int64; 0 (the dump) for a row without one."""
        mapped = self.req_index_to_mamba_index_mapping[as_index_array(rows, self.device)]
        return mapped.astype(np.int64)

    def clear(self) -> None:
        """Forget all rows and all state slots."""
        super().clear()
        self.mamba_allocator.clear()
        self.req_index_to_mamba_index_mapping[:] = 0
        self.req_index_to_mamba_ping_pong_track_buffer_mapping[:] = 0

    def _map_state(self, row: int, slot: int) -> None:
        """Map ``row`` to state slot ``slot``; 0 for none."""
        self.req_index_to_mamba_index_mapping[row] = slot

    def _without_buffer(self, reqs: Sequence[RowHolder]) -> list[RowHolder]:
        if not self.enable_mamba_extra_buffer:
            return []
        return [req for req in reqs if req.kv.mamba_ping_pong_track_buffer is None]

    def _give_buffers(self, reqs: Sequence[RowHolder], slots: list[int]) -> None:
        """Write ``slots`` into new buffers of ``reqs``, which have rows; the rest is NOT_TAKEN."""
        each = self.track_slots_at_alloc
        missing = [NOT_TAKEN] * (self.mamba_ping_pong_track_buffer_size - each)
        for place, req in enumerate(reqs):
            buffer = slots[place * each : (place + 1) * each] + missing
            req.kv.mamba_ping_pong_track_buffer = buffer
            req.kv.mamba_next_track_idx = 0
            req.kv.mamba_last_track_seqlen = None
            self.req_index_to_mamba_ping_pong_track_buffer_mapping[_row_of(req)] = buffer

    def _free_track_buffer(self, req: RowHolder, keep_idx: int | None, owner: Owner) -> None:
        """Free the buffer's slots except ``keep_idx``, and drop all references to the buffer."""
        buffer = req.kv.mamba_ping_pong_track_buffer
        if buffer is None:
            return
        slots = [slot for idx, slot in enumerate(buffer) if idx != keep_idx and slot != NOT_TAKEN]
        self.mamba_allocator.free(slots, owner)
        # A remaining reference would make the next alloc skip this request (sglang#26941).
        req.kv.mamba_ping_pong_track_buffer = None
        req.kv.mamba_next_track_idx = 0
        req.kv.mamba_last_track_seqlen = None
        if req.kv.req_pool_idx is not None:
            self.req_index_to_mamba_ping_pong_track_buffer_mapping[req.kv.req_pool_idx] = 0

    def _alloc_states(self, need_size: int, owner: Owner) -> list[int] | None:
        slots: list[int] = []
        for _ in range(need_size):
            # One by one, because an open group serves only single allocations.
            taken = self.mamba_allocator.alloc(1, owner)
            if taken is None:
                self.mamba_allocator.free(slots, owner)
                return None
            slots += taken
        return slots


def track_buffer_owner(holder: Owner) -> Owner:
    """The owner of ``holder``'s track buffer: TRACK for a request, else ``holder`` itself."""
    return TRACK if holder == REQ else holder


def _buffer_of(req: RowHolder) -> list[int]:
    buffer = req.kv.mamba_ping_pong_track_buffer
    if buffer is None:
        raise OwnershipError(f"request {req.rid} has no track buffer")
    return buffer


def _row_of(req: RowHolder) -> int:
    if req.kv.req_pool_idx is None:
        raise OwnershipError(f"request {req.rid} has no row")
    return req.kv.req_pool_idx
