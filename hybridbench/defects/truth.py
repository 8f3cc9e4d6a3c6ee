"""What a defect really did, counted where it happens: the answer that no detector may look at.

The worker hands the counts over when it leaves, and the parent stores them in a file of their own
(``truth.json``), which neither the analysis nor a report reads.  Only ``hybridbench selftest``
compares it with what was found.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

OWNER_LEDGER: Final = "owner-ledger"
"""Under this name stands what the allocators' own account would have refused, slots by pool, of a
worker whose allocators only count (``engine.check_owners``)."""


class Truth:
    """Counts by name; each defect owns one, and its replacements write to it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, what: str, count: int = 1) -> None:
        """``count`` more of ``what`` happened."""
        self._counts[what] += count

    def counts(self) -> dict[str, int]:
        """Everything counted so far, by name."""
        return dict(sorted(self._counts.items()))

    def clear(self) -> None:
        """Forget everything, for a new engine in the same process."""
        self._counts.clear()
