"""Contain the failure of one part of the analysis in a finding that names the part.

A run's verdict combines many independent analyses.  Each is called through a ``Boundary``, which
records any exception it raises; the others continue, and the verdict lists the missing parts
(``findings/incomplete.py``).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from hybridbench.records.verdict import Failure

P = ParamSpec("P")
T = TypeVar("T")
O = TypeVar("O")  # noqa: E741  # type of the fallback value


class Boundary:
    """Call the parts of one analysis and record their failures in order.

    Running out of memory also counts as a failure, because the other parts may need less.
    """

    def __init__(self, *, guarded: bool = True) -> None:
        """Unless ``guarded``, exceptions propagate, for tests and debugging."""
        self._guarded = guarded
        self._failures: list[Failure] = []

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(self._failures)

    def value(
        self, part: str, otherwise: O, analysis: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | O:
        """Return the result of ``analysis``, or ``otherwise`` if it fails."""
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
        """Return everything ``analysis`` yields, or an empty list if it fails."""
        return self.value(part, [], lambda: list(analysis(*args, **kwargs)))
