"""sglang#27586: the mapping of a full page still names a window page that was freed.

The KV of sliding layers is freed once the window has passed it; that of full layers stays.  The
entry in the mapping from full to window pages was not cleared with it.  When the full page is
freed, its window page is freed again: it is in the free list twice, or taken from another request.

As at the time, the engine's allocators do not check owners.  See also sglang#25805.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.indices import IntArray, SlotInput, as_index_array
from hybridbench.engine.memory.owners import Owner
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator

TRUTH = Truth()
_healthy_take_pages = SWATokenToKVPoolAllocator._take_pages
_healthy_move_swa = SWATokenToKVPoolAllocator.move_swa


class StaleEntries:
    """The window page that each full page still names although it was freed."""

    def __init__(self) -> None:
        self._swa_page_of: dict[int, int] = {}

    def freed(self, pages: IntArray, swa_pages: IntArray) -> None:
        """Record that the entries of ``pages`` were freed, and count those freed before."""
        again = 0
        for page, swa_page in zip(pages.tolist(), swa_pages.tolist(), strict=True):
            again += self._swa_page_of.get(page) == swa_page
            self._swa_page_of[page] = swa_page
        TRUTH.add("pages_freed_twice", again)

    def written(self, pages: IntArray) -> None:
        """The entries of ``pages`` were rewritten."""
        for page in pages.tolist():
            self._swa_page_of.pop(page, None)

    def clear(self) -> None:
        """Forget the pages of an engine that no longer exists."""
        self._swa_page_of.clear()


_STALE = StaleEntries()


def _free_swa_pages(self: SWATokenToKVPoolAllocator, pages: IntArray, owner: Owner) -> None:
    """Before #27586 the mapping was left unchanged."""
    mapped, swa_pages = self._mapped(pages)
    _STALE.freed(mapped, swa_pages)
    self.swa_attn_allocator.free_page_numbers(swa_pages, owner)


def _take_pages(self: SWATokenToKVPoolAllocator, count: int, owner: Owner) -> IntArray | None:
    """Take the pages as usual, and note which entries are no longer stale."""
    pages = _healthy_take_pages(self, count, owner)
    if pages is not None:
        _STALE.written(pages)
    return pages


def _move_swa(
    self: SWATokenToKVPoolAllocator,
    source: SlotInput,
    target: SlotInput,
    giver: Owner,
    taker: Owner,
) -> None:
    """Move as usual, and note which entries are no longer stale."""
    _healthy_move_swa(self, source, target, giver, taker)
    for moved in (source, target):
        _STALE.written(as_index_array(moved, self.device) // self.page_size)


DEFECT = Defect(
    slug="swa-stale-mapping",
    source="sglang#27586",
    symptom="The window pool reports more free pages than exist: a page that left its window is "
    "freed again together with its full page, and later two requests write to it.",
    profile="swa-churn",
    signature=Signature(
        verdicts=("INVARIANT",),
        kinds=("negative-residual",),
        subject="swa",
        event="full page freed after its window page",
        rate="1 surplus window page",
        harm="pages_freed_twice",
        counted="surplus",
        # Found in seconds; a busy machine needs the rest for the profile's minimum counts.
        quick_s=40.0,
    ),
    patches=(
        Patch(
            SWATokenToKVPoolAllocator,
            "_free_swa_pages",
            _free_swa_pages,
            fingerprint="b76e10ecbfb3",
        ),
        Patch(SWATokenToKVPoolAllocator, "move_swa", _move_swa, fingerprint="774a938c0e69"),
        Patch(SWATokenToKVPoolAllocator, "_take_pages", _take_pages, fingerprint="7831578e36d7"),
    ),
    harmed="Models with sliding windows under churn: a crash after some 2,000 requests.",
    cure="The mapping is cleared with the page that it names.",
    # Pages in the free list twice make the window pool seem larger than it is: within seconds no
    # node loses its window part or is evicted, and fewer prompts are prefilled in chunks.
    overrides=(
        ("engine.check_owners", "false"),
        ("assert_coverage.swa_tombstones", "0"),
        ("assert_coverage.prefill_chunks", "5"),
        ("assert_coverage.evict_leaf", "0"),
    ),
    truth=TRUTH,
    corrupts=True,
)
