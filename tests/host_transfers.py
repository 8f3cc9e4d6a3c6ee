"""Copies between device and host whose end, and whose failure, a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat

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
