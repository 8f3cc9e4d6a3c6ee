"""sglang#12224: the KV slot of a token that came too late is freed in two places.

With overlapped scheduling the next decode step is already planned when a request turns out to have
ended, so it holds one slot more than it has tokens.  Both the code that takes the results of that
step and the code that ends the request free it.  Allocators of the time kept no account of holders:
the slot stands twice in the free list, is handed out to two requests, and more is available than
there is.

The single step form is put back here: the slot of the late step is taken when the request ends, and
freed as it was then.  The allocator's account is switched off with it, as there was none.  See also
sglang#6888 and #9068.
"""

from __future__ import annotations

import numpy as np

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.free_list import FreeList
from hybridbench.engine.memory.indices import IntArray, SlotInput, as_index_array
from hybridbench.engine.memory.owners import FREE, REQ, Owner
from hybridbench.engine.memory.pages import BaseTokenToKVPoolAllocator
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.release import RequestRelease

TRUTH = Truth()


def _give_back_kv(self: RequestRelease, req: Req, *, is_insert: bool) -> None:
    """A request that ended by itself has the slot of one more step, and both sides free that."""
    late = _slot_of_late_step(self, req) if req.finished else None
    self._pools.cache_finished_req(req, is_insert=is_insert)
    req.kv.is_locked = False
    if late is not None:
        self._pools.token_to_kv_pool_allocator.free(late)
        TRUTH.add("slots_freed_twice")
        TRUTH.add("finishes")


def _slot_of_late_step(release: RequestRelease, req: Req) -> IntArray | None:
    """What the step after the last one would write: allocated, and in the request's row."""
    pools, kv = release._pools, req.kv
    last = pools.req_to_token_pool.req_to_token[kv.row, kv.kv_allocated_len - 1]
    late = pools.token_to_kv_pool_allocator.alloc_decode([kv.kv_allocated_len + 1], [int(last)])
    if late is not None:
        pools.req_to_token_pool.write((kv.row, slice(kv.kv_allocated_len, None)), late)
        kv.kv_allocated_len += 1
    return late


def _free(self: BaseTokenToKVPoolAllocator, idx: SlotInput, owner: Owner = REQ) -> None:
    """Before there was an account of holders: whatever is given goes to the free list."""
    pages = as_index_array(idx, self.device) // self.page_size
    self._ledger.move(pages, owner, FREE)
    self._give_back(pages)


def _transfer(self: BaseTokenToKVPoolAllocator, idx: SlotInput, giver: Owner, taker: Owner) -> None:
    """No account, so nothing to refuse."""
    self._ledger.move(as_index_array(idx, self.device) // self.page_size, giver, taker)


def _put(self: FreeList, numbers: IntArray) -> None:
    """The list was a tensor that grew: a ring would drop an entry for each one too many."""
    self._ring = np.concatenate((self.snapshot(), numbers))
    self._head = 0
    self._count = self.size = len(self._ring)


DEFECT = Defect(
    slug="overlap-late-token-double-free",
    source="sglang#12224",
    symptom="More KV is available than there is: each finished request leaves a slot in the free "
    "list twice, and later two requests write to it.",
    profile="steady-decode",
    signature=Signature(
        verdicts=("INVARIANT",),
        kinds=("negative-residual", "engine-residual", "more-free-than-exist"),
        subject="kv",
        event="request that ends by itself",
        rate="1 slot more than there is, for each",
        drivers=("finishes", "finish_length"),
        harm="slots_freed_twice",
        per="finishes",
    ),
    patches=(
        Patch(RequestRelease, "_give_back_kv", _give_back_kv, fingerprint="c729e5de0f72"),
        Patch(BaseTokenToKVPoolAllocator, "free", _free, fingerprint="0a52398cbe8a"),
        Patch(BaseTokenToKVPoolAllocator, "transfer", _transfer, fingerprint="aa9977cbdf70"),
        Patch(FreeList, "put", _put, fingerprint="cfbb238fa68a"),
    ),
    harmed="Servers with overlapped scheduling, which is on unless switched off.",
    cure="One side frees the late slot, the other leaves it alone.",
    truth=TRUTH,
    corrupts=True,
)
