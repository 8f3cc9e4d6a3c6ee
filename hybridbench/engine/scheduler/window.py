"""Free, between steps, the window-pool KV that running requests hold before their windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator
from hybridbench.engine.req import Req, ReqKv
from hybridbench.engine.scheduler.pools import Pools


class WindowRelease:
    """Frees the window-pool KV of positions that no later step of their request will read."""

    def __init__(
        self, pools: Pools, allocator: SWATokenToKVPoolAllocator, counters: EngineCounters
    ) -> None:
        self._pools = pools
        self._allocator = allocator
        self._counters = counters

    def release(self, reqs: Sequence[Req]) -> None:
        """Free the positions that have left the windows of ``reqs`` since the last call.

        Once a request reads only its own positions, the window part of its shared prefix is
        unlocked as well.  Steps in flight do not read the freed positions.
        """
        behind = [self._leave_behind(req.kv) for req in reqs]
        freed = [positions for positions in behind if len(positions)]
        if freed:
            self._allocator.free_swa(np.concatenate(freed))
            self._counters.swa_releases += len(freed)
            self._counters.swa_released_tokens += sum(map(len, freed))

    def _leave_behind(self, kv: ReqKv) -> IntArray:
        """Advance ``swa_evicted_seqlen``; return the locations of the own positions it passes."""
        start, end = kv.swa_held_from, self._window_start(kv.kv_committed_len)
        if end >= kv.cache_protected_len:
            self._unlock_window(kv)
        kv.swa_evicted_seqlen = max(kv.swa_evicted_seqlen, end)
        row = self._pools.req_to_token_pool.req_to_token[kv.row]
        behind: IntArray = row[start:end].astype(np.int64)
        return behind

    def _window_start(self, committed_len: int) -> int:
        """Return the first position that is still needed, rounded down to a page border.

        A retracted turn recomputes its last token, and the tree takes whole pages.  A resumed
        window may therefore end a token, or a page, before ``committed_len``.
        """
        page_size = self._pools.page_size
        wanted = committed_len - self._pools.sliding_window_size - (page_size - 1)
        return max(0, wanted // page_size * page_size)

    def _unlock_window(self, kv: ReqKv) -> None:
        """Unlock the window part of the prefix, since the request now owns its whole window."""
        receipt, node = kv.lock_receipt, kv.last_node
        if receipt is not None and node is not None and receipt.swa_locked_len:
            kv.lock_receipt = self._pools.tree_cache.dec_swa_lock_only(node, receipt)
