"""Copy KV between the host pool and the storage behind it, page by page, parallel to the steps.

A prefetch owns the host slots that it will fill, as HOST.  Its thread counts the slots filled so
far.  The engine's thread may end a prefetch between two pages, and then takes the filled slots.
The prefetch's own thread releases the others, since only that thread can be sure that it no longer
writes to them.

Source: the part of SGLang's HiCacheController that handles a storage backend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Lock
from time import monotonic, sleep
from typing import NamedTuple, Protocol, TypeAlias

from hybridbench.engine.memory.hicache_storage import HiCacheStorage, PageHash, StorageError
from hybridbench.engine.memory.host_pool import MHATokenToKVPoolHost
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import HOST
from hybridbench.engine.memory.transfers import Finished, ThreadedTransfers

# Work that pauses after each page, so that it can be ended there.
Pages: TypeAlias = Iterator[None]


class StorageIO(Protocol):
    """Reads and writes pages, and reports what has ended.  Called from one thread only."""

    def start(self, number: int, pages: Pages, *, reads: bool) -> None:
        """Run ``pages`` to their end asynchronously; ``number`` identifies them in ``finished``."""

    def finished(self) -> list[Finished]:
        """Return what ended since the last call, without waiting."""


class ThreadedStorageIO:
    """One thread that reads and one that writes, so that reads never wait for writes."""

    def __init__(self, page_time_s: float = 0.0) -> None:
        """Each page takes at least ``page_time_s``."""
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
    """Pages being read from the storage into host slots.

    Attributes:
        number: a sequence number.
        host_indices: the slots to fill, in order.
        hashes: the keys of the pages.
        completed_tokens: number of these slots filled so far; final once the prefetch is ended.
        is_done: whether its thread is done with it.
        is_taken: whether the engine's thread has taken the filled slots.
        is_released: whether the unfilled slots have been freed.
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
        """Count ``tokens`` more as filled; False, without counting them, if it was ended."""
        with self._lock:
            if not self._is_terminated:
                self.completed_tokens += tokens
            return not self._is_terminated

    def mark_terminate(self) -> int:
        """End the prefetch; return the number of tokens filled."""
        with self._lock:
            self._is_terminated = True
            return self.completed_tokens

    def held(self) -> IntArray:
        """The slots that the prefetch still holds."""
        start = self.completed_tokens if self.is_taken else 0
        end = self.completed_tokens if self.is_released else len(self.host_indices)
        return self.host_indices[start:end]


class StorageOperation(NamedTuple):
    """Pages being written from host slots to the storage."""

    number: int
    host_indices: IntArray
    hashes: Sequence[PageHash]


class _HostMemRelease(NamedTuple):
    """Slots of a prefetch that will not be filled."""

    operation: PrefetchOperation
    host_indices: IntArray


class StorageController:
    """Starts reads and writes of pages, and tracks the slots that reads fill.

    Attributes:
        storage: stores the pages.
        host_mem_release_queue: slots that threads no longer use, to be freed.
        ack_backup_queue: finished writes that were not yet collected.
        failures: reads and writes that ended with an error.
        failure: the first error that was not the storage's own; empty without one.
    """

    def __init__(
        self,
        mem_pool_host: MHATokenToKVPoolHost,
        storage: HiCacheStorage,
        page_size: int,
        io: StorageIO,
        prefetch_threshold: int,
    ) -> None:
        """Prefetches of fewer than ``prefetch_threshold`` tokens are skipped."""
        self.mem_pool_host = mem_pool_host
        self.storage = storage
        self.page_size = page_size
        self.prefetch_threshold = max(page_size, prefetch_threshold)
        self.host_mem_release_queue: SimpleQueue[_HostMemRelease] = SimpleQueue()
        self.ack_backup_queue: deque[int] = deque()
        self.failures = 0
        self.failure = ""
        self._io = io
        self._prefetches: dict[int, PrefetchOperation] = {}
        self._backups: dict[int, StorageOperation] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._prefetches) + len(self._backups)

    def prefetch(self, host_indices: IntArray, hashes: Sequence[PageHash]) -> PrefetchOperation:
        """Read the leading pages of ``hashes`` that exist into ``host_indices``, held by HOST."""
        self._last_number += 1
        operation = PrefetchOperation(self._last_number, host_indices, hashes)
        self._prefetches[operation.number] = operation
        self._io.start(operation.number, self._noted(self._prefetch_io(operation)), reads=True)
        return operation

    def terminate_prefetch(self, operation: PrefetchOperation) -> int:
        """End a prefetch; return the number of leading slots it filled, which the caller owns."""
        completed_tokens = operation.mark_terminate()
        operation.is_taken = True
        self._forget_if_over(operation)
        return completed_tokens

    def write_storage(self, host_indices: IntArray, hashes: Sequence[PageHash]) -> int:
        """Start writing pages; return the number of the write.

        The caller must protect the slots until ``ack_backup_queue`` has this number.
        """
        self._last_number += 1
        operation = StorageOperation(self._last_number, host_indices, hashes)
        self._backups[operation.number] = operation
        self._io.start(operation.number, self._noted(self._page_backup(operation)), reads=False)
        return operation.number

    def poll(self) -> None:
        """Collect what has ended, and free released slots, without waiting."""
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
        """The prefetches that hold slots, oldest first."""
        return list(self._prefetches.values())

    def prefetching_size(self) -> int:
        """Host tokens that prefetches hold."""
        return sum(len(operation.held()) for operation in self._prefetches.values())

    def append_host_mem_release(self, operation: PrefetchOperation, host_indices: IntArray) -> None:
        """Queue unused slots of a prefetch for release; called on its thread."""
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

    # The methods below run on the reading and writing threads.

    def _noted(self, pages: Pages) -> Pages:
        """Run ``pages``; note an error that no storage raises, so that it does not pass for one."""
        try:
            yield from pages
        except StorageError:
            raise
        except Exception as error:
            self.failure = self.failure or f"{type(error).__name__}: {error}"
            raise

    def _prefetch_io(self, operation: PrefetchOperation) -> Pages:
        try:
            hits = self._storage_hit_query(operation.hashes)
            if hits * self.page_size >= self.prefetch_threshold:
                yield from self._page_transfer(operation, hits)
        finally:
            unfilled = operation.host_indices[operation.completed_tokens :]
            self.append_host_mem_release(operation, unfilled)

    def _page_transfer(self, operation: PrefetchOperation, hits: int) -> Pages:
        """Read the first ``hits`` pages, until one is missing or the prefetch is ended."""
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
        """Number of leading pages that the storage has."""
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
