"""The options of ``compare``, and the terms of judgement that they set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybridbench.cli.options import (
    CompareUi,
    GcMode,
)
from hybridbench.foundation.errors import UsageError
from hybridbench.rundir.layout import STORE

if TYPE_CHECKING:
    from hybridbench.analysis.comparison.records import ComparisonTerms


@dataclass(frozen=True)
class CompareOptions:
    """The options of ``compare`` as given; its --help explains them."""

    model: str | None = None
    profile: str | None = None
    max_time: str = "20m"
    block: str = "15s"
    slice_: str = "50ms"
    rounds: int | None = None
    margin: str = "3%"
    seed: int | None = None
    gc: GcMode | None = None
    ballast: int | None = None
    set_: tuple[str, ...] = ()
    renew_every: int = 0
    allowed: tuple[str, ...] = ()
    same_engine: bool = True
    thresholds: tuple[str, ...] = ()
    store: Path = STORE
    targets: Path = Path()
    ui: CompareUi = CompareUi.AUTO


def of_alternating_workers(options: CompareOptions) -> list[str]:
    """The given options that apply only to engines in our workers, or to alternating blocks."""
    usual = CompareOptions()
    return changed(
        ("--block", options.block, usual.block),
        ("--slice", options.slice_, usual.slice_),
        ("--rounds", options.rounds, usual.rounds),
        ("--renew", options.renew_every, usual.renew_every),
        ("--gc", options.gc, usual.gc),
        ("--ballast", options.ballast, usual.ballast),
    )


def changed(*options: tuple[str, object, object]) -> list[str]:
    """The names of those among ``options`` (name, value, default) that are not at their default."""
    return [option for option, given, default in options if given != default]


def comparison_terms(options: CompareOptions) -> ComparisonTerms:
    """The terms of judgement that the options set.

    Raises:
        UsageError: ``--margin`` or ``--rounds`` is invalid.
    """
    from hybridbench.analysis.comparison.compare import planned_looks
    from hybridbench.analysis.comparison.records import ComparisonTerms

    terms = ComparisonTerms(margin=_parse_margin(options.margin))
    if options.rounds is None:
        return terms
    return ComparisonTerms(margin=terms.margin, looks=planned_looks(options.rounds, terms))


def _parse_margin(text: str) -> float:
    """A share above 0 and below 1 from ``3%`` or ``0.03``.

    Raises:
        UsageError: ``text`` is not such a share.
    """
    number, percent, rest = text.partition("%")
    try:
        share = float(number) / (100.0 if percent else 1.0)
    except ValueError:
        share = -1.0
    if rest.strip() or not 0.0 < share < 1.0:
        raise UsageError(
            f"{text}: write a share between 0 and 1, such as 3% or 0.03.", option="--margin"
        )
    return share
