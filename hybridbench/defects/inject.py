"""Inject defects into the engine's classes and remove them again; when off, they cost nothing."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType

from hybridbench.defects.defect import Defect, Patch, Replacement, function_of


def apply_defects(defects: Sequence[Defect]) -> None:
    """Replace the methods that ``defects`` name, for the rest of this process.

    Call before the engine is built: objects that bound a method earlier keep the healthy one.

    Raises:
        ValueError: two defects replace the same method, or a replacement's parameters differ.
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
    """Inject ``defects`` inside the ``with`` block, and remove them after it, even on an error."""
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


def healthy_method(patch: Patch) -> FunctionType | property:
    """The method or property that ``patch`` would replace.

    Raises:
        ValueError: the class itself does not define it (an inherited one does not count).
    """
    method = vars(patch.holder).get(patch.method)
    if not isinstance(method, FunctionType | property):
        where = patch.holder.__name__
        raise ValueError(f"{where} defines no method {patch.method!r} to replace")  # noqa: TRY004
    return method


def _check_parameters(defect: Defect, patch: Patch) -> None:
    where = f"{patch.holder.__name__}.{patch.method}"
    healthy = healthy_method(patch)
    if isinstance(healthy, property) != isinstance(patch.replacement, property):
        raise ValueError(f"{defect.slug}: a property can replace only a property; see {where}")
    # Names and kinds, not annotations: `self` is annotated only in the replacement.
    wanted, given = _parameters(healthy), _parameters(patch.replacement)
    if wanted != given:
        raise ValueError(f"{defect.slug}: {where} takes {wanted}, its replacement takes {given}")


def _parameters(method: Replacement) -> list[tuple[str, str]]:
    parameters = inspect.signature(function_of(method)).parameters.values()
    return [(p.name, p.kind.name) for p in parameters]
