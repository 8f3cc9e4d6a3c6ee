"""sglang#27256: a group of frees is flushed but not emptied, and flushed again later.

The frees of a step are collected in a group and reach the free list when the step ends.  The review
asked what happens if the end of a group does not empty it: every later end frees the same pages
again, although they belong to another owner by then.
"""

from __future__ import annotations

import numpy as np

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.base_pages import BaseTokenToKVPoolAllocator
from hybridbench.engine.memory.owners import FREE, RESERVED

TRUTH = Truth()
# By the id of an allocator: how many entries of its group were freed before; none are removed.
_REPLAYED: dict[int, int] = {}


def free_group_end(self: BaseTokenToKVPoolAllocator) -> None:
    """Free everything that has been freed since the engine began, each time."""
    self.is_not_in_free_group = True
    if not self._group:
        return
    again = _REPLAYED.get(id(self), 0)
    TRUTH.add("tokens_freed_again", sum(map(len, self._group[:again])) * self.page_size)
    _REPLAYED[id(self)] = len(self._group)
    pages = np.concatenate(self._group)
    self._ledger.move(pages, RESERVED, FREE)
    self._give_back(pages)


DEFECT = Defect(
    slug="free-group-replay",
    source="sglang#27256",
    symptom="More KV is free than exists: what one step freed is freed again by every later step.",
    profile="chat-churn",
    signature=Signature(
        verdicts=("INVARIANT",),
        kinds=("negative-residual", "engine-residual", "more-free-than-exist"),
        subject="kv",
        event="step after a request has ended",
        rate="all KV tokens that were ever freed",
        harm="tokens_freed_again",
        # The report counts the pages in the free list at one moment.
        counted="surplus",
        at_most=True,
        quick_s=0.0,
    ),
    patches=(
        Patch(
            BaseTokenToKVPoolAllocator, "free_group_end", free_group_end, fingerprint="287a43b6d74c"
        ),
    ),
    harmed="No user: found in review.",
    cure="The end of a group empties it.",
    overrides=(("engine.check_owners", "false"),),
    truth=TRUTH,
    corrupts=True,
)
