"""The table from a request's row to the KV indices of its positions, and to its state slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hybridbench.engine.memory.indices import IntArray, SlotInput, as_index_array
from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams, MambaPool
from hybridbench.engine.memory.owners import REQ, Owner, OwnershipError
from hybridbench.engine.memory.slots import MambaSlotAllocator, SlotAllocator
from hybridbench.engine.memory.unserved import refuse_unserved


class RowHolder(Protocol):
    """A request as this table sees it."""

    @property
    def rid(self) -> str: ...

    req_pool_idx: int | None
    mamba_pool_idx: int | None


class ReqToTokenPool:
    """Rows 1 to ``size``; row 0 takes the writes of padding.

    Attributes:
        req_to_token: int32 (size + 1, max_context_len): KV index of each position of each row.
    """

    def __init__(
        self,
        size: int,
        max_context_len: int,
        device: str | torch.device = "cpu",
        enable_memory_saver: bool = False,
    ) -> None:
        refuse_unserved(enable_memory_saver=enable_memory_saver)
        self.size = size
        self.max_context_len = max_context_len
        self.device = torch.device(device)
        self.rows = SlotAllocator(size, device, "request rows")
        # full() writes every page now; zeros() would let the process grow with first use.
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

        A request that has one (a continuing chunk) keeps it.

        Returns:
            The row of each request, in order.
        """
        needy = [req for req in reqs if req.req_pool_idx is None]
        taken = self.rows.alloc(len(needy), REQ)
        if taken is None:
            return None
        for req, row in zip(needy, taken, strict=True):
            req.req_pool_idx = row
        return [_row_of(req) for req in reqs]

    def free(self, req: RowHolder, owner: Owner = REQ) -> None:
        """Take the row of ``req``, a request or whoever ``owner`` stands for, back.

        Raises:
            OwnershipError: it has none, or the row is not ``owner``'s.
        """
        self.rows.free([_row_of(req)], owner)
        req.req_pool_idx = None

    def transfer(self, row: int, giver: Owner, taker: Owner) -> None:
        """Record that ``taker`` now holds ``row`` and must free it.

        Raises:
            OwnershipError: it is not ``giver``'s; nothing was changed.
        """
        self.rows.transfer([row], giver, taker)

    def clear(self) -> None:
        """Forget all rows; the table's contents become meaningless."""
        self.rows.clear()


class HybridReqToTokenPool(ReqToTokenPool):
    """The same for hybrid models: a request also gets a state slot.

    Attributes:
        mamba_pool: the states themselves.
        mamba_allocator: who holds which state slot.
        req_index_to_mamba_index_mapping: int32 (size + 1): row -> state slot, 0 where none.
    """

    def __init__(  # noqa: PLR0913 - the field's signature, so its callers fit
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
        enable_memory_saver: bool = False,
        enable_mamba_extra_buffer: bool = False,
        enable_mamba_extra_buffer_lazy: bool = False,
        enable_overlap_schedule: bool = True,
        start_layer: int | None = None,
    ) -> None:
        """Make the table, and the states unless they are given.

        Args:
            size: request rows.
            mamba_size: state slots.
            max_context_len: positions of a row.
            device: where index tensors given to the allocators live, and a pool made here.
            mamba_pool: the states; None has them made from ``cache_params``.
            cache_params: shape, types and layers of the states to make.
            mamba_layer_ids: layers that have a state, if not those of ``cache_params``.
            mamba_spec_state_size, speculative_num_draft_tokens: as for ``MambaPool``.
            enable_memory_saver, enable_mamba_extra_buffer, enable_mamba_extra_buffer_lazy,
                start_layer: not served.
            enable_overlap_schedule: sizes the extra buffer, so it changes nothing without one.

        Raises:
            ValueError: neither states nor what to make them from, too few of them, or a switch
                that is not served.
        """
        del enable_overlap_schedule
        refuse_unserved(
            enable_mamba_extra_buffer=enable_mamba_extra_buffer,
            enable_mamba_extra_buffer_lazy=enable_mamba_extra_buffer_lazy,
            enable_memory_saver=enable_memory_saver,
            start_layer=bool(start_layer),
        )
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
        super().__init__(size, max_context_len, device)
        self.mamba_pool = mamba_pool
        self.mamba_map = mamba_pool.mamba_map
        self.mamba_allocator = MambaSlotAllocator(mamba_size, device)
        self.req_index_to_mamba_index_mapping: NDArray[np.int32] = np.zeros(
            size + 1, dtype=np.int32
        )

    def alloc(self, reqs: Sequence[RowHolder]) -> list[int] | None:
        """Rows as above, and a state slot for each request without one; None if either is short."""
        needy = [req for req in reqs if req.mamba_pool_idx is None]
        slots = self._alloc_states(len(needy))
        if slots is None:
            return None
        rows = super().alloc(reqs)
        if rows is None:
            self.mamba_allocator.free(slots, REQ)
            return None
        for req, slot in zip(needy, slots, strict=True):
            req.mamba_pool_idx = slot
        for req, row in zip(reqs, rows, strict=True):
            if req.mamba_pool_idx is not None:
                self._map_state(row, int(req.mamba_pool_idx))
        return rows

    def free(self, req: RowHolder, owner: Owner = REQ) -> None:
        """Take a row back; the state slot that goes with it is free_mamba_cache's matter."""
        row = _row_of(req)
        super().free(req, owner)
        # A stale entry would let a later batch write into a slot that has a new holder.
        self._map_state(row, 0)

    def free_mamba_cache(self, req: RowHolder, *, owner: Owner = REQ) -> None:
        """Take the state slot of ``req``, a request or whoever ``owner`` stands for, back.

        Raises:
            OwnershipError: it has none (a second call), or the slot is not ``owner``'s.
        """
        slot = req.mamba_pool_idx
        if slot is None:
            raise OwnershipError(f"request {req.rid} holds no state slot to give back")
        self.mamba_allocator.free([slot], owner)
        self.forget_mamba_cache(req)

    def forget_mamba_cache(self, req: RowHolder) -> None:
        """The request's state slot has another holder now: neither it nor its row names it."""
        req.mamba_pool_idx = None
        if req.req_pool_idx is not None:
            self._map_state(req.req_pool_idx, 0)

    def get_mamba_indices(self, rows: SlotInput) -> IntArray:
        """State slot of each row, int64; 0 (the dump) for a row without one."""
        mapped = self.req_index_to_mamba_index_mapping[as_index_array(rows, self.device)]
        return mapped.astype(np.int64)

    def clear(self) -> None:
        """Forget all rows and all state slots."""
        super().clear()
        self.mamba_allocator.clear()
        self.req_index_to_mamba_index_mapping[:] = 0

    def _map_state(self, row: int, slot: int) -> None:
        """From now on the state of ``row`` is in ``slot``; 0 says that it has none."""
        self.req_index_to_mamba_index_mapping[row] = slot

    def _alloc_states(self, need_size: int) -> list[int] | None:
        slots: list[int] = []
        for _ in range(need_size):
            # One by one, because only single allocations are served from an open group.
            taken = self.mamba_allocator.alloc(1, REQ)
            if taken is None:
                self.mamba_allocator.free(slots, REQ)
                return None
            slots += taken
        return slots


def _row_of(req: RowHolder) -> int:
    if req.req_pool_idx is None:
        raise OwnershipError(f"request {req.rid} has no row")
    return req.req_pool_idx
