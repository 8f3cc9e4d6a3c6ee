"""Findings that make a run INVALID."""

from __future__ import annotations

from typing import ClassVar

from hybridbench.records.finding import Basis, Finding, VerdictKind


class InvalidBasis(Basis, frozen=True, kw_only=True):
    """Evidence that invalidates the run's statistical findings, and its lack of other findings."""

    leads_to: ClassVar[str] = "INVALID"


def invalid(basis: Basis, subject: str) -> Finding:
    """Return an INVALID finding about ``subject``."""
    return Finding(basis, VerdictKind.INVALID, subject)
