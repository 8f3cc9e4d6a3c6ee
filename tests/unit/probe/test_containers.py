"""The bounds that a container, or its owner, declares for its size."""

from __future__ import annotations

import functools
import heapq
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

import pytest

from hybridbench.probe.hybridbench_probe import containers, raw
from hybridbench.probe.hybridbench_probe.limits import Limits
from hybridbench.probe.hybridbench_probe.names import Names
from hybridbench.probe.hybridbench_probe.owners import Places
from hybridbench.records.events import BYTES, NOT_A_NUMBER


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


class Buffers:
    def __init__(self) -> None:
        self.text = bytearray(500)
        self.parts = [bytearray(500) for _ in range(4)]


def test_what_a_buffer_holds_are_bytes() -> None:
    names = Names()
    names.read_code(Buffers.__init__.__code__)
    places = Places(names)
    layout = places.layout(Buffers)
    assert layout is not None

    places.visit_instance(Buffers(), layout)
    list(places.descend())

    text, parts = f"{layout.name}.text", f"{layout.name}.parts"
    found = places.found()
    assert found["entries"] == {text: 500, parts: 4, f"{parts}[]": 2000}
    assert found["holds"] == {text: BYTES, parts: "builtins.bytearray", f"{parts}[]": BYTES}


_MOST = 100
_plans: dict[int, None] = {}


class Settings:
    def __init__(self) -> None:
        self.longest_queue = 100


class Coded:
    """Each container has 100 entries at most, by its code."""

    def __init__(self, held: int) -> None:
        self.most_kept = 100
        self.settings = Settings()
        self.lock = threading.Lock()
        self.popped = dict.fromkeys(range(held))
        self.trimmed = list(range(held))
        self.replaced = list(range(held))
        self.by_attribute = list(range(held))
        self.by_variable = list(range(held))
        self.by_method = list(range(held))
        self.guarded = list(range(held))
        self.refused = list(range(held))
        self.queue = list(range(held))
        self.turned_away = dict.fromkeys(range(held))
        self.waited_for = list(range(held))
        self.skipped = list(range(held))
        self.watched = list(range(held))
        self.noted = list(range(held))
        self.in_order = deque(range(held))
        self.known = set(range(held))
        self.own = CodedLru(dict.fromkeys(range(held)))

    def shorten(self) -> None:
        while len(self.popped) > 100:
            self.popped.popitem()
        if len(self.trimmed) > 100:
            del self.trimmed[0]
        if len(self.by_attribute) >= self.most_kept:
            self.by_attribute.pop()
        if len(self.by_variable) >= _MOST:
            self.by_variable.pop()

    def remember(self, row: int) -> None:
        self.known.add(row)
        self.in_order.append(row)
        if len(self.in_order) > self.most_kept:
            self.known.discard(self.in_order.popleft())
        elif row:
            self.noted.pop()

    def replace(self) -> None:
        if len(self.replaced) > 100:
            self.replaced = self.replaced[-50:]

    def shorten_elsewhere(self) -> None:
        if len(self.by_method) > 100:
            self._evict()

    def _evict(self) -> None:
        self.by_method.pop()

    def guard(self, row: int) -> None:
        if len(self.guarded) < 100:
            self.guarded.append(row)

    def refuse(self) -> None:
        if self.most_kept and len(self.refused) >= self.most_kept:
            raise OverflowError
        if len(self.queue) >= self.settings.longest_queue:
            raise OverflowError

    def turn_away(self, row: int) -> bool:
        with self.lock:
            if len(self.turned_away) >= _MOST:
                return False
            self.turned_away[row + 1] = None
        return True

    def wait(self, row: int) -> None:
        while len(self.waited_for) >= 100:
            self.lock.acquire(timeout=1.0)
        self.waited_for.append(row)

    def skip(self, rows: list[int]) -> None:
        for row in rows:
            if len(self.skipped) >= 100:
                continue
            self.skipped.append(row)

    def warn(self, row: int) -> bool:
        """A warning limits nothing, and no more does a return after the entry was added."""
        self.watched.append(row)
        self.noted.append(row)
        if len(self.noted) >= 100:
            return True
        return len(self.watched) > 100

    def warn_last(self, row: int) -> None:
        self.noted.append(row)
        if len(self.noted) >= 100:
            self.warn(row)

    def warn_first(self, row: int) -> None:
        if len(self.watched) >= 100:
            self.warn(row)
        self.watched.append(row)


class Expiring:
    """Each container loses its old entries by another rule than their number."""

    def __init__(self, held: int) -> None:
        self.by_age = dict.fromkeys(range(held), 0.0)
        self.oldest_first = dict.fromkeys(range(held), 0.0)
        self.by_bytes = OrderedDict(dict.fromkeys(range(held), b""))
        self.total_bytes = 0
        self.queue = deque(range(held))
        self.in_flight = dict.fromkeys(range(held), 0.0)
        self.tasks = dict.fromkeys(range(held))
        self.rebuilt = dict.fromkeys(range(held), 0.0)
        self.window = deque(float(n) for n in range(held))
        self.due = [(float(n), n) for n in range(held)]
        self.cleared = dict.fromkeys(range(held))
        self.renewed = list(range(held))
        self.running = list(range(held))
        self.by_prefix = dict.fromkeys(range(held))
        self.least_used = list(range(held))
        self.free = list(range(held))
        self.nodes: list[Settings] = []
        self.batch = list(range(held))
        self.rows = dict.fromkeys(range(held))
        self.last = 0.0

    def rebuild(self) -> None:
        now = time.monotonic()
        self.rebuilt = {key: at for key, at in self.rebuilt.items() if now - at < 60.0}
        while self.window and now - self.window[0] > 60.0:
            self.window.popleft()
        while self.due and self.due[0][0] < now:
            heapq.heappop(self.due)

    def renew(self) -> None:
        if time.monotonic() - self.last > 60.0:
            self.last = time.monotonic()
            self.cleared.clear()
            self.renewed = []

    def schedule(self) -> float:
        """A request that does not end stays, however old."""
        self.running = [request for request in self.running if request]
        return time.monotonic()

    def expire(self, now: float) -> None:
        for key in [key for key, at in self.by_age.items() if now - at > 60.0]:
            del self.by_age[key]
        while self.oldest_first:
            key = next(iter(self.oldest_first))
            if now - self.oldest_first[key] < 60.0:
                break
            self.oldest_first.pop(key)

    def shrink(self) -> None:
        while self.total_bytes > 1 << 20:
            self.total_bytes -= len(self.by_bytes.popitem(last=False)[1])

    def write(self, row: int) -> None:
        """Every thousandth row ends a batch; a list that is only added to, or renewed, does not."""
        self.batch.append(row)
        self.rows[row] = None
        self.tasks[row] = None
        if row % 1000 == 0:
            self.batch = []
            self.rows.clear()
            self.nodes = []

    def take(self) -> int:
        if not self.free:
            self._evict_least_used()
        return self.free.pop()

    def _evict_least_used(self) -> None:
        for node in self.nodes:
            del self.by_prefix[node.longest_queue]
        self.free.append(self.least_used.pop())

    def finish(self, key: int) -> float:
        """Neither the end of a request nor that of the server lets old entries expire."""
        return time.monotonic() - self.in_flight.pop(key) + self.queue.popleft()

    def stop(self) -> None:
        for key in list(self.tasks):
            self.tasks.pop(key)


class CodedLru(OrderedDict[int, None]):
    def add(self, key: int) -> None:
        self[key] = None
        if len(self) > 100:
            self.popitem(last=False)


@pytest.mark.parametrize(("held", "limits"), [(7, 100), (101, None)])
def test_a_number_in_the_code_that_shortens_a_container_is_perhaps_its_limit(
    held: int, limits: int | None
) -> None:
    places = Places(Names())
    for kind in (Coded, CodedLru):
        for function in raw.functions_of_type(kind):
            places.read_function(function)
    owner = Coded(held)
    layout = places.layout(Coded)
    assert layout is not None

    places.visit_instance(owner, layout)

    limited = {"popped", "trimmed", "replaced", "by_attribute", "by_variable", "by_method"}
    limited |= {"guarded", "own", "refused", "queue", "turned_away", "waited_for", "skipped"}
    limited |= {"in_order", "known"}
    found = dict(places.found()["limits"])  # type: ignore[call-overload]
    expected = dict.fromkeys((f"{layout.name}.{name}" for name in limited), limits)
    assert found == ({} if limits is None else expected)


def test_code_that_removes_old_entries_limits_a_container_without_a_number() -> None:
    places = Places(Names())
    for function in raw.functions_of_type(Expiring):
        places.read_function(function)
    layout = places.layout(Expiring)
    assert layout is not None

    places.visit_instance(Expiring(7), layout)

    names = {"by_age", "oldest_first", "by_bytes", "rebuilt", "window", "due", "cleared", "renewed"}
    names |= {"by_prefix", "least_used", "batch", "rows"}
    assert places.found()["limits"] == {f"{layout.name}.{name}": NOT_A_NUMBER for name in names}


def _shorten(rows: list[int]) -> None:
    if len(_plans) > 100:
        _plans.clear()
    if len(rows) > 200:
        rows.clear()


def test_a_limit_in_code_holds_for_a_global_and_for_a_local_variable() -> None:
    limits = Limits()

    limits.read_code(_shorten.__code__, _shorten.__globals__)

    assert limits.of([__name__], "_plans") == 100
    assert limits.of([__name__], "rows") == 200
    assert limits.of(["elsewhere"], "_plans") is None


def test_a_number_under_a_name_of_the_present_length_is_no_limit() -> None:
    assert containers.limit_among({"size": 7, "cache_size": 7, "rows": []}.items()) is None
