"""Findings that make a run INVALID."""

from __future__ import annotations

from hybridbench.records.finding import Basis, Finding, VerdictKind


class InvalidBasis(Basis, frozen=True, kw_only=True):
    """Evidence that invalidates the run's statistical findings, and its lack of other findings."""

    leads_to = "INVALID"


def invalid(basis: Basis, subject: str) -> Finding:
    """Return an INVALID finding about ``subject``."""
    return Finding(basis, VerdictKind.INVALID, subject)
