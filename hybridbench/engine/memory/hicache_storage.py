"""The storage behind the host pool: pages of KV, keyed by a hash of all tokens up to their end.

Source: SGLang's HiCacheStorage.  Its HiCacheFile writes one file per page, without a limit.  The
backend here is a table in memory, so that a soak test does not fill the disk; when full, it evicts
the least recently used page.
"""

from __future__ import annotations

from collections import OrderedDict
from random import Random
from threading import Lock
from typing import Protocol, TypeAlias

from hybridbench.engine.memory.kv_pool import KVHostCopy, MHATokenToKVPool

PageHash: TypeAlias = bytes


class StorageError(RuntimeError):
    """A read or write failed; what was stored before is unchanged."""


class HiCacheStorage(Protocol):
    """Stores pages by key; called from the threads that read and write."""

    def exists(self, key: PageHash) -> bool:
        """Whether the page exists.  Raises StorageError."""

    def get(self, key: PageHash) -> KVHostCopy | None:
        """The KV of a page, None if there is none.  Raises StorageError."""

    def set(self, key: PageHash, value: KVHostCopy) -> None:
        """Store a page.  Raises StorageError."""


class HiCacheMemory:
    """A table in memory of up to ``pages`` pages, shaped as in ``like``; evicts in LRU order.

    All memory is allocated and written at construction, as in the pools.
    """

    def __init__(self, like: MHATokenToKVPool, pages: int, page_size: int) -> None:
        self._page_size = page_size
        self._rows = MHATokenToKVPool(
            pages * page_size,
            page_size,
            like.dtype,
            like.head_num,
            like.head_dim,
            like.layer_num,
            "cpu",
        )
        self._free = list(range(pages, 0, -1))
        self._page_of: OrderedDict[PageHash, int] = OrderedDict()
        # One thread reads and another one writes.
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._page_of)

    def exists(self, key: PageHash) -> bool:
        return key in self._page_of

    def get(self, key: PageHash) -> KVHostCopy | None:
        with self._lock:
            page = self._page_of.get(key)
            if page is None:
                return None
            self._page_of.move_to_end(key)
            return self._rows.get_cpu_copy(self._tokens(page))

    def set(self, key: PageHash, value: KVHostCopy) -> None:
        with self._lock:
            page = self._page_of.pop(key, None)
            if page is None:
                page = self._free.pop() if self._free else self._page_of.popitem(last=False)[1]
            self._rows.load_cpu_copy(value, self._tokens(page))
            self._page_of[key] = page

    def _tokens(self, page: int) -> list[int]:
        first = page * self._page_size
        return list(range(first, first + self._page_size))


class UnreliableStorage:
    """A storage whose reads and writes fail at random, with probability ``error_rate``."""

    def __init__(self, storage: HiCacheStorage, error_rate: float, seed: int) -> None:
        self._storage = storage
        self._error_rate = error_rate
        self._rng = Random(seed)

    def exists(self, key: PageHash) -> bool:
        return self._storage.exists(key)

    def get(self, key: PageHash) -> KVHostCopy | None:
        self._fail_at_times("read")
        return self._storage.get(key)

    def set(self, key: PageHash, value: KVHostCopy) -> None:
        self._fail_at_times("write")
        self._storage.set(key, value)

    def _fail_at_times(self, action: str) -> None:
        if self._rng.random() < self._error_rate:
            raise StorageError(f"injected {action} error")
