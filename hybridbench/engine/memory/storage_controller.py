"""Moves KV between the host pool and the storage behind it, page by page, beside the steps.

A prefetch holds the host slots that it is to fill, as HOST.  Its thread counts the pages that are
there; the engine's thread may end it between two pages, and takes what is there then.  The rest is
released by the prefetch's own thread, which alone knows when it writes there no more.

Source: the part of SGLang's HiCacheController that has a storage backend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Lock
from time import monotonic, sleep
from typing import NamedTuple, Protocol, TypeAlias

from hybridbench.engine.memory.hicache_storage import HiCacheStorage, PageHash
from hybridbench.engine.memory.host_pool import MHATokenToKVPoolHost
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import HOST
from hybridbench.engine.memory.transfers import Finished, ThreadedTransfers

# Work that stops for a moment after each page, so that it can be ended there.
Pages: TypeAlias = Iterator[None]


class StorageIO(Protocol):
    """Who reads and writes pages, and tells later what is over.  Asked from one thread only."""

    def start(self, number: int, pages: Pages, *, reads: bool) -> None:
        """Run ``pages`` to their end some time from now; ``number`` names them in ``finished``."""

    def finished(self) -> list[Finished]:
        """What ended since the last call; waits for none."""


class ThreadedStorageIO:
    """A thread that reads and one that writes, so that nobody waits for a read behind a write."""

    def __init__(self, page_time_s: float = 0.0) -> None:
        """A page that takes less than ``page_time_s`` is drawn out to it."""
        self._page_time_s = page_time_s
        self._reads = ThreadedTransfers()
        self._writes = ThreadedTransfers()

    def start(self, number: int, pages: Pages, *, reads: bool) -> None:
        thread = self._reads if reads else self._writes
        thread.start(number, lambda: self._run(pages))

    def finished(self) -> list[Finished]:
        return [*self._reads.finished(), *self._writes.finished()]

    def _run(self, pages: Pages) -> None:
        began_s = monotonic()
        for _ in pages:
            sleep(max(0.0, began_s + self._page_time_s - monotonic()))
            began_s = monotonic()


class PrefetchOperation:
    """Pages on their way from the storage into host slots.

    Attributes:
        number: a count of the controller's operations.
        host_indices: the slots to be filled, in order.
        hashes: the names of the pages.
        completed_tokens: how many of these slots have been filled; final once it was ended.
        is_done: whether its thread has let go of it.
        is_taken: whether the engine's thread has taken what was filled.
        is_released: whether the slots that were not filled have been given back.
    """

    def __init__(self, number: int, host_indices: IntArray, hashes: Sequence[PageHash]) -> None:
        self.number = number
        self.host_indices = host_indices
        self.hashes = hashes
        self.completed_tokens = 0
        self.is_done = False
        self.is_taken = False
        self.is_released = False
        self._is_terminated = False
        self._lock = Lock()

    def increment(self, tokens: int) -> bool:
        """So many more have been filled; False, and they do not count, if it was ended."""
        with self._lock:
            if not self._is_terminated:
                self.completed_tokens += tokens
            return not self._is_terminated

    def mark_terminate(self) -> int:
        """End it; how many tokens it has brought."""
        with self._lock:
            self._is_terminated = True
            return self.completed_tokens

    def held(self) -> IntArray:
        """The slots that it still holds."""
        start = self.completed_tokens if self.is_taken else 0
        end = self.completed_tokens if self.is_released else len(self.host_indices)
        return self.host_indices[start:end]


class StorageOperation(NamedTuple):
    """Pages on their way from host slots into the storage."""

    number: int
    host_indices: IntArray
    hashes: Sequence[PageHash]


class _HostMemRelease(NamedTuple):
    """Slots of a prefetch that nobody will fill."""

    operation: PrefetchOperation
    host_indices: IntArray


class StorageController:
    """Starts reads and writes of pages, and keeps the account of the slots that reads fill.

    Attributes:
        storage: where the pages are.
        host_mem_release_queue: slots that threads have let go of, to be given back.
        ack_backup_queue: writes that are over and that nobody has been told of yet.
        failures: reads and writes that ended with an error.
    """

    def __init__(
        self,
        mem_pool_host: MHATokenToKVPoolHost,
        storage: HiCacheStorage,
        page_size: int,
        io: StorageIO,
        prefetch_threshold: int,
    ) -> None:
        """A prefetch of fewer than ``prefetch_threshold`` tokens is not worth its slots."""
        self.mem_pool_host = mem_pool_host
        self.storage = storage
        self.page_size = page_size
        self.prefetch_threshold = max(page_size, prefetch_threshold)
        self.host_mem_release_queue: SimpleQueue[_HostMemRelease] = SimpleQueue()
        self.ack_backup_queue: deque[int] = deque()
        self.failures = 0
        self._io = io
        self._prefetches: dict[int, PrefetchOperation] = {}
        self._backups: dict[int, StorageOperation] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._prefetches) + len(self._backups)

    def prefetch(self, host_indices: IntArray, hashes: Sequence[PageHash]) -> PrefetchOperation:
        """Fill ``host_indices``, held by HOST, with the pages called ``hashes`` that there are."""
        self._last_number += 1
        operation = PrefetchOperation(self._last_number, host_indices, hashes)
        self._prefetches[operation.number] = operation
        self._io.start(operation.number, self._prefetch_io(operation), reads=True)
        return operation

    def terminate_prefetch(self, operation: PrefetchOperation) -> int:
        """End a prefetch: the first tokens of its slots, as many as this says, are the caller's."""
        completed_tokens = operation.mark_terminate()
        operation.is_taken = True
        self._forget_if_over(operation)
        return completed_tokens

    def write_storage(self, host_indices: IntArray, hashes: Sequence[PageHash]) -> int:
        """Write pages whose slots the caller protects until ``ack_backup_queue`` has the number."""
        self._last_number += 1
        operation = StorageOperation(self._last_number, host_indices, hashes)
        self._backups[operation.number] = operation
        self._io.start(operation.number, self._page_backup(operation), reads=False)
        return operation.number

    def poll(self) -> None:
        """Learn what has ended, and give released slots back; waits for nothing."""
        for number, error in self._io.finished():
            self.failures += bool(error)
            prefetch = self._prefetches.get(number)
            if prefetch is None:
                del self._backups[number]
                self.ack_backup_queue.append(number)
            else:
                prefetch.is_done = True
        self._drain_releases()

    def prefetches(self) -> list[PrefetchOperation]:
        """Those that hold slots, oldest first."""
        return list(self._prefetches.values())

    def prefetching_size(self) -> int:
        """Host tokens that prefetches hold."""
        return sum(len(operation.held()) for operation in self._prefetches.values())

    def append_host_mem_release(self, operation: PrefetchOperation, host_indices: IntArray) -> None:
        """Let go of slots of a prefetch; its thread calls this."""
        if len(host_indices):
            self.host_mem_release_queue.put(_HostMemRelease(operation, host_indices))

    def _drain_releases(self) -> None:
        try:
            while True:
                operation, host_indices = self.host_mem_release_queue.get_nowait()
                self.mem_pool_host.free(host_indices, HOST)
                operation.is_released = True
        except Empty:
            pass
        for operation in self.prefetches():
            self._forget_if_over(operation)

    def _forget_if_over(self, operation: PrefetchOperation) -> None:
        if operation.is_done and operation.is_taken:
            del self._prefetches[operation.number]

    # On the threads.

    def _prefetch_io(self, operation: PrefetchOperation) -> Pages:
        try:
            hits = self._storage_hit_query(operation.hashes)
            if hits * self.page_size >= self.prefetch_threshold:
                yield from self._page_transfer(operation, hits)
        finally:
            unfilled = operation.host_indices[operation.completed_tokens :]
            self.append_host_mem_release(operation, unfilled)

    def _page_transfer(self, operation: PrefetchOperation, hits: int) -> Pages:
        """Read the first ``hits`` pages, until one has gone or somebody ends the prefetch."""
        for page, key in enumerate(operation.hashes[:hits]):
            value = self.storage.get(key)
            if value is None:
                return
            target = _page_tokens(operation.host_indices, page, self.page_size)
            self.mem_pool_host.rows.load_cpu_copy(value, target)
            if not operation.increment(self.page_size):
                return
            yield

    def _storage_hit_query(self, hashes: Sequence[PageHash]) -> int:
        """How many of the first pages the storage has."""
        for count, key in enumerate(hashes):
            if not self.storage.exists(key):
                return count
        return len(hashes)

    def _page_backup(self, operation: StorageOperation) -> Pages:
        for page, key in enumerate(operation.hashes):
            if not self.storage.exists(key):
                source = _page_tokens(operation.host_indices, page, self.page_size)
                self.storage.set(key, self.mem_pool_host.rows.get_cpu_copy(source))
            yield


def _page_tokens(indices: IntArray, page: int, page_size: int) -> IntArray:
    return indices[page * page_size : (page + 1) * page_size]
