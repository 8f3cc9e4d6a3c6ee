"""What a defect really did, counted where it happens; no detector may read it.

The worker sends the counts when it exits, and the parent stores them in a separate file
(``truth.json``), which neither the analysis nor a report reads.  Only ``hybridbench selftest``
compares it with what was found.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

OWNER_LEDGER: Final = "owner-ledger"
"""Name of the counts that a worker with ``engine.check_owners: false`` reports: how many slots per
pool the allocators' ownership checks would have refused."""


class Truth:
    """Counts by name; each defect owns one, and its replacements write to it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, what: str, count: int = 1) -> None:
        """Add ``count`` to the count of ``what``."""
        self._counts[what] += count

    def counts(self) -> dict[str, int]:
        """Everything counted so far, by name."""
        return dict(sorted(self._counts.items()))

    def clear(self) -> None:
        """Forget everything, for a new engine in the same process."""
        self._counts.clear()
