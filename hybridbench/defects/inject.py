"""Put defects into the engine's classes and take them out again; off, they cost nothing."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType

from hybridbench.defects.defect import Defect, Patch


def apply_defects(defects: Sequence[Defect]) -> None:
    """Replace the methods that ``defects`` name, for the rest of this process.

    Call before the engine is built: objects that bound a method earlier keep the healthy one.

    Raises:
        ValueError: two defects want the same method, or a replacement has other parameters.
    """
    taken: dict[tuple[type, str], str] = {}
    for defect in defects:
        for patch in defect.patches:
            target = (patch.holder, patch.method)
            if target in taken:
                where = f"{patch.holder.__name__}.{patch.method}"
                raise ValueError(
                    f"{defect.slug} and {taken[target]} both replace {where}; choose one"
                )
            taken[target] = defect.slug
            _check_parameters(defect, patch)
    for defect in defects:
        for patch in defect.patches:
            setattr(patch.holder, patch.method, patch.replacement)


@contextmanager
def injected(*defects: Defect) -> Iterator[None]:
    """``defects`` are on inside the ``with`` block and gone after it, also after an error."""
    healthy = [
        (patch.holder, patch.method, healthy_method(patch))
        for defect in defects
        for patch in defect.patches
    ]
    apply_defects(defects)
    try:
        yield
    finally:
        for holder, method, function in healthy:
            setattr(holder, method, function)


def healthy_method(patch: Patch) -> FunctionType:
    """The function that ``patch`` would replace.

    Raises:
        ValueError: the class itself has no such method (one it merely inherits does not count).
    """
    function = vars(patch.holder).get(patch.method)
    if not isinstance(function, FunctionType):
        where = patch.holder.__name__
        raise ValueError(f"{where} defines no method {patch.method!r} to replace")  # noqa: TRY004
    return function


def _check_parameters(defect: Defect, patch: Patch) -> None:
    # Names and kinds, not annotations: `self` is annotated only in the replacement.
    wanted = _parameters(healthy_method(patch))
    given = _parameters(patch.replacement)
    if wanted != given:
        where = f"{patch.holder.__name__}.{patch.method}"
        raise ValueError(f"{defect.slug}: {where} takes {wanted}, its replacement takes {given}")


def _parameters(function: object) -> list[tuple[str, str]]:
    assert callable(function)
    return [(p.name, p.kind.name) for p in inspect.signature(function).parameters.values()]
