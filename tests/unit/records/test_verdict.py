"""Which of several findings decides the verdict, and which results of a doubtful run stand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hybridbench.analysis.findings.kinds import evidence_of
from hybridbench.records.finding import Evidence, Finding, VerdictKind
from hybridbench.records.verdict import Verdict, precedence
from tests.unit.made_findings import a_finding

EXACT_LEAK = a_finding("residual", VerdictKind.LEAK, "mamba")
GROWTH = a_finding("growth", VerdictKind.LEAK, "rss_bytes")
GAPS = a_finding("gaps", VerdictKind.INVALID, "sampler")


def verdict_of(kind: VerdictKind, *findings: Finding) -> Verdict:
    return Verdict(kind, "", findings, (), None, "")


def test_what_was_counted_comes_before_a_doubtful_run_and_what_was_fitted_after_it() -> None:
    order = [
        (VerdictKind.LEAK, True),
        (VerdictKind.INVARIANT, True),
        (VerdictKind.CRASHED, True),
        (VerdictKind.INVALID, True),
        (VerdictKind.LEAK, False),
        (VerdictKind.DEGRADED, False),
        (VerdictKind.INCONCLUSIVE, False),
        (VerdictKind.CLEAN, True),
    ]

    places = [precedence(kind, exact=exact) for kind, exact in order]

    assert all(before < after for before, after in pairwise(places))


def test_a_leak_that_was_counted_stands_in_an_invalid_run_and_growth_does_not() -> None:
    doubtful = verdict_of(VerdictKind.LEAK, EXACT_LEAK, GAPS, GROWTH)

    assert doubtful.invalid
    assert doubtful.stands(EXACT_LEAK)
    assert not doubtful.stands(GROWTH)
    assert verdict_of(VerdictKind.LEAK, GROWTH).stands(GROWTH)


@pytest.mark.parametrize(
    ("kind", "evidence"),
    [
        ("instances-retained", Evidence.EXACT),
        ("container-grows", Evidence.STATISTICAL),
        ("engine-check-of-a-fork", Evidence.EXACT),
        ("kind-of-a-later-version", Evidence.STATISTICAL),
    ],
)
def test_every_kind_has_its_evidence_and_an_unknown_one_is_not_called_exact(
    kind: str, evidence: Evidence
) -> None:
    assert evidence_of(kind) is evidence
