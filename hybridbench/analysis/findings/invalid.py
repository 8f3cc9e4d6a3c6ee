"""Findings that make a run INVALID."""

from __future__ import annotations

from typing import ClassVar

from hybridbench.records.finding import Basis
from hybridbench.records.verdict import Finding, VerdictKind


class InvalidBasis(Basis, frozen=True, kw_only=True):
    """Invalidates everything the run fitted, and the absence of everything it did not find."""

    leads_to: ClassVar[str] = "INVALID"


def invalid(basis: Basis, subject: str) -> Finding:
    """Return the finding on ``subject``."""
    return Finding(basis, VerdictKind.INVALID, subject)
