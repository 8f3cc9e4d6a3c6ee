"""All kinds of findings by name: for lists, for CI, and for who explains one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from hybridbench.analysis import findings
from hybridbench.records.finding import Basis


@cache
def finding_kinds() -> Mapping[str, type[Basis]]:
    """Every kind that the families of this folder declare, in the order of their files."""
    for module in iter_modules(findings.__path__):
        import_module(f"{findings.__name__}.{module.name}")
    return {kind.kind: kind for kind in _declared(Basis) if kind.kind}


def _declared(base: type[Basis]) -> Iterator[type[Basis]]:
    for kind in base.__subclasses__():
        if "kind" in vars(kind):
            yield kind
        yield from _declared(kind)
