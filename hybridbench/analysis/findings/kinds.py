"""All kinds of findings by name, for lists, for CI, and for explanations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from hybridbench.analysis import findings
from hybridbench.analysis.findings.engine_reports import ENGINE_PREFIX
from hybridbench.records.finding import Basis, Evidence


@cache
def finding_kinds() -> Mapping[str, type[Basis]]:
    """Return every kind that a module in this folder declares, by name."""
    names = (f"{findings.__name__}.{module.name}" for module in iter_modules(findings.__path__))
    families = [import_module(name) for name in names]
    return {kind.kind: kind for family in families for kind in _declared(family)}


def evidence_of(kind: str) -> Evidence:
    """Return whether a finding of this ``kind`` is exact; an unknown kind is statistical.

    Reports of the engine's own checks are exact, whatever their names.
    """
    known = finding_kinds().get(kind)
    if known is not None:
        return known.evidence
    is_check = kind.startswith(ENGINE_PREFIX)
    return Evidence.EXACT if is_check else Evidence.STATISTICAL


def _declared(family: ModuleType) -> Iterator[type[Basis]]:
    for one in vars(family).values():
        own = isinstance(one, type) and one.__module__ == family.__name__
        if own and issubclass(one, Basis) and "kind" in vars(one):
            yield one
