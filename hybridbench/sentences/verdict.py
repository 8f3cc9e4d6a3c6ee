"""A verdict in words: the one place where what the analysis found becomes sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from hybridbench.records.codes import FindingCode
from hybridbench.records.verdict import Finding, Verdict, VerdictKind
from hybridbench.sentences import checkpoints, containers
from hybridbench.sentences.words import Words

_SENTENCES: Final[Mapping[str, Callable[[Finding], Words]]] = {
    FindingCode.RESIDUAL: checkpoints.residual,
    FindingCode.NEGATIVE_RESIDUAL: checkpoints.negative_residual,
    FindingCode.HELD_AT_IDLE: checkpoints.held_at_idle,
    FindingCode.LOCKS_AT_IDLE: checkpoints.locks_at_idle,
    FindingCode.NEGATIVE_LOCKS: checkpoints.negative_locks,
    FindingCode.CONTAINER_GROWS: containers.container_grows,
}


def phrased(verdict: Verdict) -> Verdict:
    """``verdict`` with a title, a cause and evidence for each finding, and its headline."""
    findings = tuple(phrased_finding(finding) for finding in verdict.findings)
    headline = verdict.headline or _headline(verdict.kind, findings)
    return replace(verdict, findings=findings, headline=headline)


def phrased_finding(finding: Finding) -> Finding:
    """``finding`` in words; one that has them, as a stored one does, is left as it is."""
    if finding.title:
        return finding
    words = _SENTENCES[finding.kind](finding)
    return replace(
        finding,
        title=words.title,
        cause=words.cause,
        evidence=(*words.evidence, *finding.evidence),
    )


def _headline(kind: VerdictKind, findings: Sequence[Finding]) -> str:
    more = sum(finding.verdict is kind for finding in findings) - 1
    others = f" (and {more} more finding{'s' * (more > 1)})" if more else ""
    return f"{kind}: {findings[0].title}{others}"
