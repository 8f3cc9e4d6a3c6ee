"""What a profile promises of the cache itself, against the whole judged window: DEGRADED below it.

A defect that is there from the first minute changes nothing over time; only a promise shows it.
"""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.decay_words import quantity
from hybridbench.analysis.derived import Derived, WorkBlocks
from hybridbench.analysis.findings import Finding, VerdictKind
from hybridbench.analysis.reading import mapping
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.student import t_quantile

_FEWEST_BLOCKS = 8
_CONFIDENCE = 0.999
_MAX_PHI = 0.9


def promise_finding(record: RunRecord, derived: Derived, blocks: WorkBlocks) -> Finding | None:
    """A finding if the interval lies wholly on the wrong side of what the profile promises."""
    promise = mapping(mapping(record.manifest, "profile"), "promise").get(derived.name)
    if not isinstance(promise, int | float) or len(blocks) < _FEWEST_BLOCKS:
        return None
    value, half = blocks.total, half_width(blocks)
    lower, upper = value - half, value + half
    missed = lower > promise if derived.higher_is_worse else upper < promise
    if not missed:
        return None
    side = "at most" if derived.higher_is_worse else "at least"
    span = f"{quantity(lower, derived)} to {quantity(upper, derived)}"
    return Finding(
        kind="below-threshold",
        verdict=VerdictKind.DEGRADED,
        subject=derived.name,
        title=f"the {derived.label} is {quantity(value, derived)}; the profile promises {side} "
        f"{quantity(float(promise), derived)}",
        evidence=(f"{span} over the judged window ({100 * _CONFIDENCE:.4g} %)",),
        since_s=float(blocks.t_s[0]),
        data={"value": value, "lower": lower, "upper": upper, "promise": float(promise)},
    )


def half_width(blocks: WorkBlocks, confidence: float = _CONFIDENCE) -> float:
    """Half of the interval of the quotient of the sums, for blocks that follow each other like
    AR(1) noise.
    """
    count = len(blocks)
    residual = (blocks.over - blocks.total * blocks.under) / float(blocks.under.mean())
    energy = float(residual @ residual)
    if energy <= 0:
        return 0.0
    phi = float(np.clip(residual[1:] @ residual[:-1] / energy + 1.0 / count, 0.0, _MAX_PHI))
    se = np.sqrt(energy / (count - 1) / count * (1.0 + phi) / (1.0 - phi))
    return t_quantile(0.5 + confidence / 2, count - 1) * float(se)
