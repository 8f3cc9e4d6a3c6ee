"""Fake transfers and storage I/O whose end and failure a test chooses.

They replace copies between device and host, and reads and writes of the storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat

from hybridbench.engine.memory.hicache_storage import StorageError
from hybridbench.engine.memory.storage_controller import Pages
from hybridbench.engine.memory.transfers import Copy, Finished


class ChosenTransfers:
    """Copies end at the poll given by ``delays``, or when waited for, and can be made to fail.

    The data is copied when the copy ends, so that reading too early yields the old data.
    """

    def __init__(
        self,
        delays: Iterator[int] | None = None,
        fails: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """``delays`` yields how many polls each copy outlasts; ``fails`` gets the copy's number."""
        self._delays = repeat(0) if delays is None else delays
        self._fails = fails
        self._under_way: dict[int, tuple[int, Copy]] = {}
        self.started = 0

    def start(self, number: int, copy: Copy) -> None:
        self.started += 1
        self._under_way[number] = next(self._delays), copy

    def finished(self) -> list[Finished]:
        due = [number for number, (left, _) in self._under_way.items() if left <= 0]
        for number in self._under_way.keys() - set(due):
            left, copy = self._under_way[number]
            self._under_way[number] = left - 1, copy
        return [self._end(number) for number in due]

    def wait(self) -> list[Finished]:
        return [self._end(number) for number in list(self._under_way)]

    def _end(self, number: int) -> Finished:
        _, copy = self._under_way.pop(number)
        if self._fails(number):
            return Finished(number, "chosen to fail")
        copy()
        return Finished(number)


class EagerTransfers(ChosenTransfers):
    """Copies the data at the start, so that filling the source afterwards is too late."""

    def start(self, number: int, copy: Copy) -> None:
        copy()
        super().start(number, lambda: None)


class ChosenStorageIO:
    """At each poll, moves the next number of pages in ``paces`` for every read and write.

    A page is copied when it is moved, so that reading too early yields the old data.
    """

    def __init__(self, paces: Iterator[int] | None = None) -> None:
        """Without ``paces``, all work ends at the first poll after its start."""
        self._paces = repeat(1_000_000) if paces is None else paces
        self._under_way: dict[int, Pages] = {}
        self.started = 0

    def start(self, number: int, pages: Pages, *, reads: bool) -> None:
        del reads
        self.started += 1
        self._under_way[number] = pages

    def finished(self) -> list[Finished]:
        pace, ended = next(self._paces), []
        for number, pages in list(self._under_way.items()):
            over = self._go_on(number, pages, pace)
            if over is not None:
                del self._under_way[number]
                ended.append(over)
        return ended

    @staticmethod
    def _go_on(number: int, pages: Pages, pace: int) -> Finished | None:
        """Move ``pace`` pages; None if more are left."""
        try:
            for _ in range(pace):
                next(pages)
        except StopIteration:
            return Finished(number)
        except StorageError as error:
            return Finished(number, str(error))
        return None
