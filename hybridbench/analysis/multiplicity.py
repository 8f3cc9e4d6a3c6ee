"""Many metrics, one run: how sure each leak is when all gated metrics are counted (Holm 1979).

The verdict itself spends a thousandth on each metric, so twenty of them spend two percent
together; the adjusted value printed beside a finding says what is left of that doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybridbench.analysis.findings import MetricResult


def with_q_values(results: Sequence[MetricResult]) -> list[MetricResult]:
    """``results`` with Holm's adjusted p-values of "grows no faster than its floor".

    A metric that could not be tested keeps None and is not counted.
    """
    tested = [i for i, result in enumerate(results) if result.p_value is not None]
    adjusted = holm([results[i].p_value or 0.0 for i in tested])
    out = list(results)
    for i, q in zip(tested, adjusted, strict=True):
        out[i] = replace(results[i], q_value=q)
    return out


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p-value, adjusted for all of them together, in the given order."""
    count = len(p_values)
    adjusted = [1.0] * count
    highest = 0.0
    for rank, i in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (count - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted
