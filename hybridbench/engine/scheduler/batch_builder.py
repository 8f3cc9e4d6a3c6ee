"""Allocate the slots that a step writes and build its forward batch, once it is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.decode import decode_room_needed
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.engine.scheduler.schedule_batch import ScheduleBatch
from hybridbench.engine.scheduler.tracking import StateTracker


class BatchBuilder:
    """Allocates the slots of one step and builds its forward batch from host arrays."""

    def __init__(self, pools: Pools, page_size: int, tracker: StateTracker) -> None:
        self._pools = pools
        self._page_size = page_size
        self._tracker = tracker

    def extend(self, reqs: Sequence[Req]) -> ForwardBatch | None:
        """Allocate rows, state slots and KV positions for a prefill step of ``reqs``.

        None if an allocation failed although admission saw room.  The requests' records hold the
        slots allocated before the failure, and the caller must release them.
        """
        fresh = [req for req in reqs if req.kv.req_pool_idx is None]
        if not self._take_rows(fresh):
            return None
        prefix_lens = [req.kv.kv_committed_len for req in reqs]
        extend_lens = [req.extend_input_len for req in reqs]
        out_cache_loc = self._alloc_extend(reqs, prefix_lens, extend_lens)
        if out_cache_loc is None:
            return None
        self._write_rows(reqs, extend_lens, out_cache_loc)
        self._clear_fresh_states(reqs, prefix_lens)
        seq_lens = [req.kv.kv_allocated_len for req in reqs]
        spans = list(zip(reqs, prefix_lens, seq_lens, strict=True))
        rows = [req.kv.row for req in reqs]
        tracked = self._tracker.extend(reqs, prefix_lens)
        return ForwardBatch(
            mode="extend",
            input_ids=np.array(
                list(chain.from_iterable(req.fill_ids[a:b] for req, a, b in spans)), dtype=np.int64
            ),
            positions=np.concatenate([np.arange(a, b) for _, a, b in spans]),
            extend_lens=extend_lens,
            prefix_lens=prefix_lens,
            seq_lens=seq_lens,
            out_cache_loc=out_cache_loc,
            kv_indices=self._kv_indices(rows, seq_lens),
            mamba_indices=self._state_slots(rows),
            mamba_track_seqlens=tracked.mamba_track_seqlens,
            mamba_track_indices=tracked.mamba_track_indices,
        )

    def decode(
        self, reqs: Sequence[Req], in_flight: ScheduleBatch | None = None
    ) -> ForwardBatch | None:
        """Allocate one more KV position per request; None, with nothing taken, if room is short.

        The last token of a request in ``in_flight`` is not known yet, so ``input_ids`` holds
        ``-1 - row`` instead, where row is the request's row in that batch.  The new position
        follows all allocated ones, whose steps run first.
        """
        records = [req.kv for req in reqs]
        allocated = np.array([kv.kv_allocated_len for kv in records], dtype=np.int64)
        rows = np.array([kv.req_pool_idx for kv in records], dtype=np.int64)
        if not self._pools.make_kv_room(decode_room_needed(reqs, self._page_size)):
            return None
        out_cache_loc = self._alloc_decode(rows, allocated)
        if out_cache_loc is None:
            return None
        self._pools.req_to_token_pool.write((rows, allocated), out_cache_loc)
        for kv in records:
            kv.kv_allocated_len += 1
        seq_lens: list[int] = (allocated + 1).tolist()
        tracked = self._tracker.decode(reqs, seq_lens)
        return ForwardBatch(
            mode="decode",
            input_ids=np.array(_last_tokens(reqs, in_flight), dtype=np.int64),
            positions=allocated,
            extend_lens=[1] * len(reqs),
            prefix_lens=allocated.tolist(),
            seq_lens=seq_lens,
            out_cache_loc=out_cache_loc,
            kv_indices=self._kv_indices(rows.tolist(), seq_lens),
            mamba_indices=self._state_slots(rows),
            mamba_track_seqlens=tracked.mamba_track_seqlens,
            mamba_track_indices=tracked.mamba_track_indices,
        )

    def _alloc_decode(self, rows: IntArray, allocated: IntArray) -> IntArray | None:
        """Allocate one position after the ``allocated`` ones of each row; None if room is short."""
        allocator = self._pools.token_to_kv_pool_allocator
        if self._page_size == 1:
            return allocator.alloc(len(rows))
        # Uses only arrays: a list passed to an allocator would cost a conversion per step.
        last_loc = self._pools.req_to_token_pool.req_to_token[rows, allocated - 1]
        return allocator.alloc_decode(allocated + 1, last_loc.astype(np.int64))

    def verify(self, reqs: Sequence[Req], drafts: Sequence[Sequence[int]]) -> ForwardBatch | None:
        """Allocate KV positions for each request's last token and its draft tokens.

        None, with nothing taken, if room is short.
        """
        begins = [req.kv.kv_allocated_len for req in reqs]
        ends = [a + 1 + len(guesses) for a, guesses in zip(begins, drafts, strict=True)]
        if not self.reserve(reqs, ends):
            return None
        return self.chains(reqs, begins, [req.output_ids[-1] for req in reqs], drafts)

    def reserve(self, reqs: Sequence[Req], ends: Sequence[int]) -> bool:
        """Allocate KV positions up to ``ends``; False, with nothing taken, if room is short."""
        short = [
            (req, end) for req, end in zip(reqs, ends, strict=True) if end > req.kv.kv_allocated_len
        ]
        if not short:
            return True
        needy = [req for req, _ in short]
        begins = [req.kv.kv_allocated_len for req in needy]
        lengths = [end - req.kv.kv_allocated_len for req, end in short]
        locations = self._alloc_extend(needy, begins, lengths)
        if locations is None:
            return False
        self._write_rows(needy, lengths, locations)
        return True

    def chains(
        self,
        reqs: Sequence[Req],
        begins: list[int],
        last_tokens: Sequence[int],
        drafts: Sequence[Sequence[int]],
    ) -> ForwardBatch:
        """Build a verify step from chains with allocated positions, starting at ``begins``."""
        extend_lens = [1 + len(guesses) for guesses in drafts]
        seq_lens = [a + n for a, n in zip(begins, extend_lens, strict=True)]
        rows = [req.kv.row for req in reqs]
        positions = np.concatenate([np.arange(a, b) for a, b in zip(begins, seq_lens, strict=True)])
        table = self._pools.req_to_token_pool.req_to_token
        pairs = zip(last_tokens, drafts, strict=True)
        return ForwardBatch(
            mode="verify",
            input_ids=np.array(
                list(chain.from_iterable((last, *guesses) for last, guesses in pairs)),
                dtype=np.int64,
            ),
            positions=positions,
            extend_lens=extend_lens,
            prefix_lens=begins,
            seq_lens=seq_lens,
            out_cache_loc=table[np.repeat(rows, extend_lens), positions].astype(np.int64),
            kv_indices=self._kv_indices(rows, seq_lens),
            mamba_indices=self._state_slots(rows),
        )

    def _take_rows(self, fresh: Sequence[Req]) -> bool:
        """Allocate a row and state slots for each, and write the matched prefix into the row."""
        pools = self._pools
        pools.make_mamba_room(sum(map(pools.state_slots_wanted, fresh)))
        if pools.req_to_token_pool.alloc(fresh) is None:
            return False
        for req in fresh:
            kv = req.kv
            prefix_len = len(kv.prefix_indices)
            pools.req_to_token_pool.write((kv.row, slice(0, prefix_len)), kv.prefix_indices)
            kv.cache_protected_len = kv.kv_committed_len = kv.kv_allocated_len = prefix_len
        return True

    def _alloc_extend(
        self, reqs: Sequence[Req], prefix_lens: list[int], extend_lens: list[int]
    ) -> npt.NDArray[np.int64] | None:
        table = self._pools.req_to_token_pool.req_to_token
        last_loc = [
            int(table[req.kv.row, prefix - 1]) if prefix else -1
            for req, prefix in zip(reqs, prefix_lens, strict=True)
        ]
        seq_lens = [a + b for a, b in zip(prefix_lens, extend_lens, strict=True)]
        if not self._pools.make_kv_room(
            _tokens_in(seq_lens, self._page_size) - _tokens_in(prefix_lens, self._page_size)
        ):
            return None
        return self._pools.token_to_kv_pool_allocator.alloc_extend(
            prefix_lens, seq_lens, last_loc, sum(extend_lens)
        )

    def _write_rows(
        self, reqs: Sequence[Req], lengths: Sequence[int], out_cache_loc: npt.NDArray[np.int64]
    ) -> None:
        taken = 0
        for req, length in zip(reqs, lengths, strict=True):
            kv = req.kv
            end = kv.kv_allocated_len + length
            self._pools.req_to_token_pool.write(
                (kv.row, slice(kv.kv_allocated_len, end)), out_cache_loc[taken : taken + length]
            )
            taken += length
            kv.kv_allocated_len = end

    def _clear_fresh_states(self, reqs: Sequence[Req], prefix_lens: list[int]) -> None:
        """Clear the states of requests that start at position 0, since slots keep old contents."""
        if not self._pools.has_states:
            return
        dirty = [
            req.kv.state_slot for req, prefix in zip(reqs, prefix_lens, strict=True) if prefix == 0
        ]
        if dirty:
            self._pools.mamba_pool.clear_slots(dirty)

    def _kv_indices(self, rows: list[int], seq_lens: list[int]) -> npt.NDArray[np.int64]:
        table = self._pools.req_to_token_pool.req_to_token
        parts = [table[row, :length] for row, length in zip(rows, seq_lens, strict=True)]
        return np.concatenate(parts, dtype=np.int64)

    def _state_slots(self, rows: list[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the state slot of each row from the row map; the dump slot without states.

        As in SGLang, slots come from the map, not the requests: on a device this is one gather by
        rows that are already there.  ``InvariantChecker`` compares the map with the requests.
        """
        hybrid_rows = self._pools.hybrid_rows
        if hybrid_rows is None:
            return np.zeros(len(rows), dtype=np.int64)
        return hybrid_rows.get_mamba_indices(rows)


def resolve_future_token_ids(forward: ForwardBatch, token_ids: Sequence[int]) -> ForwardBatch:
    """Return ``forward`` with every future replaced by its token.

    Args:
        forward: a batch whose ``input_ids`` may hold a future, ``-1 - row``, for an unknown token.
        token_ids: the tokens of the previous batch, by row.

    Raises:
        IndexError: a future refers to a row that the previous batch did not have.
    """
    input_ids = forward.input_ids
    is_future = input_ids < 0
    if not is_future.any():
        return forward
    resolved = input_ids.copy()
    resolved[is_future] = np.asarray(token_ids, dtype=np.int64)[-1 - input_ids[is_future]]
    return replace(forward, input_ids=resolved)


def _last_tokens(reqs: Sequence[Req], in_flight: ScheduleBatch | None) -> list[int]:
    if in_flight is None:
        return [req.output_ids[-1] for req in reqs]
    futures = {id(record): -1 - row for row, record in enumerate(in_flight.records)}
    return [
        req.output_ids[-1] if (future := futures.get(id(req.kv))) is None else future
        for req in reqs
    ]


def _tokens_in(lengths: Sequence[int], page_size: int) -> int:
    """Return the tokens that requests of these lengths hold, in whole pages."""
    return sum(ceil_align(length, page_size) for length in lengths)
