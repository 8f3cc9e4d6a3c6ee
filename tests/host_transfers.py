"""Work beside the steps whose end, and whose failure, a test chooses: copies between device and
host, reads and writes of the storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat

from hybridbench.engine.memory.hicache_storage import StorageError
from hybridbench.engine.memory.storage_controller import Pages
from hybridbench.engine.memory.transfers import Copy, Finished


class ChosenTransfers:
    """A copy ends at the poll that ``delays`` says, and not before it is made to, or fails.

    It is made when it ends, so that whoever reads too early reads what was there before.
    """

    def __init__(
        self,
        delays: Iterator[int] | None = None,
        fails: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """``delays`` counts polls that find a copy under way; ``fails`` gets its number."""
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
    """A copy is made when it is started: whoever fills its source later is too late."""

    def start(self, number: int, copy: Copy) -> None:
        copy()
        super().start(number, lambda: None)


class ChosenStorageIO:
    """Reads and writes go on by the pages that ``paces`` says at each poll, all of them alike.

    A page is moved when its turn comes: whoever reads too early reads what was there before.
    """

    def __init__(self, paces: Iterator[int] | None = None) -> None:
        """Without ``paces`` all work is over at the poll after its start."""
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
