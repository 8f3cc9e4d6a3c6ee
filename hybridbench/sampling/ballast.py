"""Long-lived objects for a young process: a serving engine holds about a million of them.

The collector runs a full collection when what survived since the last one exceeds a quarter of what
is old, so how often garbage is found depends on how much is *not* garbage.
"""

from __future__ import annotations


class Ballast:
    """Holds small objects that the collector tracks, about 90 bytes each, until dropped."""

    def __init__(self, objects: int) -> None:
        if objects < 0:
            raise ValueError(f"ballast of {objects} objects; it must be 0 or more")
        # Each inner list is tracked, and visited by every full collection.
        self._held: list[list[int]] = [[index] for index in range(objects)]

    @property
    def held(self) -> list[list[int]]:
        """All of them, for a look at the heap that must leave them out."""
        return self._held

    def __len__(self) -> int:
        return len(self._held)
