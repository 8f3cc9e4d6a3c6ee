"""Where a part of the analysis that fails ends: in a finding that names it, not in the whole run.

A judged run is the sum of many analyses that do not need each other.  Each is called through a
``Boundary``, which keeps what one of them raises; the others go on, and the verdict says what is
missing from it (``findings/incomplete.py``).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from hybridbench.records.verdict import Failure

P = ParamSpec("P")
T = TypeVar("T")
O = TypeVar("O")  # noqa: E741  # what stands for a T that could not be had


class Boundary:
    """Calls the parts of one analysis, and keeps their failures in order.

    A part that runs out of memory has failed as well: the others may need less.
    """

    def __init__(self, *, guarded: bool = True) -> None:
        """Unless ``guarded`` everything passes, for tests and for whoever debugs a part."""
        self._guarded = guarded
        self._failures: list[Failure] = []

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(self._failures)

    def value(
        self, part: str, otherwise: O, analysis: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | O:
        """What ``analysis`` returns, or ``otherwise`` if it fails."""
        if not self._guarded:
            return analysis(*args, **kwargs)
        try:
            return analysis(*args, **kwargs)
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            self._failures.append(Failure(part, said, traceback.format_exc()))
            return otherwise

    def listed(
        self, part: str, analysis: Callable[P, Iterable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> list[T]:
        """All that ``analysis`` yields; nothing if it fails."""
        return self.value(part, [], lambda: list(analysis(*args, **kwargs)))


def failures_text(failures: Iterable[Failure]) -> str:
    """The tracebacks of all failures, for a bug report."""
    return "\n".join(f"{failure.part}\n\n{failure.trace}" for failure in failures)
