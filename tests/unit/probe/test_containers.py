"""The bounds that a container, or its owner, declares for its size."""

from __future__ import annotations

import functools
import sys
from collections import deque

import pytest

from hybridbench.probe.hybridbench_probe import containers
from hybridbench.probe.hybridbench_probe.names import Names
from hybridbench.probe.hybridbench_probe.owners import Places


def test_a_bound_beyond_any_memory_is_ignored() -> None:
    """Bounds of several containers are added up, and three of these would exceed 64 bits."""
    for most, bound in ((sys.maxsize, None), (2**45, None), (2**31 - 1, None), (500, 500)):
        cache = functools.lru_cache(maxsize=most)(abs)

        assert containers.own_bound(deque[int](maxlen=most), deque) == bound
        assert containers.bound_of_owner({"rows": [], "maxlen": most}) == bound
        assert containers.lru_cache(cache) == (0, bound)


class Hub:
    """``max_size`` may limit its sessions, or the messages that it takes."""

    def __init__(self, held: int) -> None:
        self.max_size = 100
        self.sessions = dict.fromkeys(range(held))
        self.recent = deque([1], maxlen=8)


@pytest.mark.parametrize(("held", "limits"), [(7, 100), (101, None)])
def test_a_number_of_the_owner_is_no_bound_but_perhaps_a_limit(
    held: int, limits: int | None
) -> None:
    names = Names()
    names.read_code(Hub.__init__.__code__)
    places = Places(names)
    layout = places.layout(Hub)
    assert layout is not None

    places.visit_instance(Hub(held), layout)

    found = places.found()
    assert found["bounds"] == {f"{layout.name}.recent": 8}
    assert found["limits"] == ({} if limits is None else {f"{layout.name}.sessions": limits})
