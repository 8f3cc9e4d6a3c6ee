"""The bounds that a container, or its owner, declares for its size."""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict, deque
from collections.abc import Callable

import pytest

from hybridbench.probe.hybridbench_probe import containers
from hybridbench.probe.hybridbench_probe.names import Names
from hybridbench.probe.hybridbench_probe.owners import Places


def test_a_bound_beyond_any_memory_is_ignored() -> None:
    """Bounds of several containers are added up, and three of these would exceed 64 bits."""
    for most, bound in ((sys.maxsize, None), (2**45, None), (2**31 - 1, None), (500, 500)):
        cache = functools.lru_cache(maxsize=most)(abs)

        assert containers.own_bound(deque[int](maxlen=most), deque) == bound
        assert containers.limit_among({"rows": [], "maxlen": most}.items()) == bound
        assert containers.lru_cache(cache) == (0, bound)


class Hub:
    """``max_size`` may limit its sessions, or the messages that it takes."""

    def __init__(self, held: int) -> None:
        self.max_size = 100
        self.sessions = dict.fromkeys(range(held))
        self.recent = deque([1], maxlen=8)


class Store:
    MAX_ENTRIES = 100

    def __init__(self, held: int) -> None:
        self.sessions = dict.fromkeys(range(held))


class Slotted:
    __slots__ = ("_capacity", "sessions")

    def __init__(self, held: int) -> None:
        self._capacity = 100
        self.sessions = dict.fromkeys(range(held))


class Lru(OrderedDict[int, None]):
    """The recipe of the standard library's documentation: the limit is in the dict itself."""

    def __init__(self, held: int) -> None:
        super().__init__(dict.fromkeys(range(held)))
        self.maxsize = 100


class Server:
    def __init__(self, held: int) -> None:
        self.sessions = Lru(held)


@pytest.mark.parametrize("kind", [Hub, Store, Slotted, Server])
@pytest.mark.parametrize(("held", "limits"), [(7, 100), (101, None)])
def test_a_number_of_the_owner_is_no_bound_but_perhaps_a_limit(
    kind: Callable[[int], object], held: int, limits: int | None
) -> None:
    names = Names()
    names.read_code(kind.__init__.__code__)
    places = Places(names)
    owner = kind(held)
    layout = places.layout(type(owner))
    assert layout is not None

    places.visit_instance(owner, layout)

    found = places.found()
    assert found["bounds"] == ({f"{layout.name}.recent": 8} if kind is Hub else {})
    assert found["limits"] == ({} if limits is None else {f"{layout.name}.sessions": limits})


def test_a_number_under_a_name_of_the_present_length_is_no_limit() -> None:
    assert containers.limit_among({"size": 7, "cache_size": 7, "rows": []}.items()) is None
