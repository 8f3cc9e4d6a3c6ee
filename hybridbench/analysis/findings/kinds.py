"""All kinds of findings by name: for lists, for CI, and for who explains one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Final

from hybridbench.analysis.findings import (
    checkpoints,
    containers,
    decay,
    engine_log,
    engine_reports,
    growth,
    incomplete,
    instances,
    requests,
    sanity,
    thresholds,
    validity,
)
from hybridbench.records.codes import Evidence
from hybridbench.records.finding import Basis

# In the order in which CI asks and a list shows them.
FAMILIES: Final[tuple[ModuleType, ...]] = (
    checkpoints,
    requests,
    instances,
    containers,
    sanity,
    growth,
    decay,
    thresholds,
    engine_reports,
    engine_log,
    validity,
    incomplete,
)


@cache
def finding_kinds() -> Mapping[str, type[Basis]]:
    """Every kind that a family declares, by its name."""
    return {kind.kind: kind for family in FAMILIES for kind in _declared(family)}


def evidence_of(kind: str) -> Evidence:
    """What a finding of this ``kind`` rests on; a kind that is not known here is not called exact.

    What the engine's own checks report is the engine's word, whatever they are called.
    """
    known = finding_kinds().get(kind)
    if known is not None:
        return known.evidence
    is_check = kind.startswith(engine_reports.ENGINE_PREFIX)
    return Evidence.EXACT if is_check else Evidence.STATISTICAL


def _declared(family: ModuleType) -> Iterator[type[Basis]]:
    for one in vars(family).values():
        own = isinstance(one, type) and one.__module__ == family.__name__
        if own and issubclass(one, Basis) and "kind" in vars(one):
            yield one
