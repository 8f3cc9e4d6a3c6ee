"""The bounds that a container, or its owner, declares for its size."""

from __future__ import annotations

import functools
import sys
from collections import deque

from hybridbench.probe.hybridbench_probe import containers


def test_a_bound_beyond_any_memory_is_ignored() -> None:
    """Bounds of several containers are added up, and three of these would exceed 64 bits."""
    for most, bound in ((sys.maxsize, None), (2**45, None), (2**31 - 1, None), (500, 500)):
        cache = functools.lru_cache(maxsize=most)(abs)

        assert containers.own_bound(deque[int](maxlen=most), deque) == bound
        assert containers.bound_of_owner({"rows": [], "maxlen": most}) == bound
        assert containers.lru_cache(cache) == (0, bound)
