"""Open files, threads and processes that are gone at each idle point are not kept.

Under traffic a server's threads come and go with its connections and its requests, in steps that
may stay undecided for hours.  What leaks is still there when nothing runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.analysis.trend.reasons import Bounded
from hybridbench.analysis.trend.terms import handles_bound
from hybridbench.foundation.labels import labelled
from hybridbench.foundation.metrics import HANDLES
from hybridbench.records.events import IdleLook
from hybridbench.records.finding import Rate
from hybridbench.records.verdict import MetricResult

# The idle points of one process that are enough to fit a line, and the share of the judged window
# that they must span.
_FEWEST_LOOKS = 8
_LEAST_SPAN = 0.6


def decided_at_rest(
    record: RunRecord, results: Sequence[MetricResult], labels: Mapping[str, str]
) -> list[MetricResult]:
    """Return the results of the process with ``labels``: handles that may or may not grow under
    traffic are CLEAN if a line through their numbers at idle points rises by less than the bound.
    """
    own = labelled("", labels)
    looks = [look for look in record.all_events(IdleLook) if look.process == own]
    return [_decided(result, looks) for result in results]


def _decided(result: MetricResult, looks: Sequence[IdleLook]) -> MetricResult:
    seen_rate = result.rate_per_hour
    may_be_flat = seen_rate is not None and seen_rate.lower <= 0.0
    if result.metric not in HANDLES or result.outcome != "INCONCLUSIVE" or not may_be_flat:
        return result
    start_s, end_s = result.window_s
    seen = [
        look
        for look in looks
        if look.idle and result.metric in look.handles and start_s <= look.t_s <= end_s
    ]
    if len(seen) < _FEWEST_LOOKS or len({look.pid for look in seen}) > 1:
        return result
    t = np.array([look.t_s for look in seen])
    if t[-1] - t[0] < _LEAST_SPAN * (end_s - start_s):
        return result
    rate = _rate(t, np.array([look.handles[result.metric] for look in seen]), result.unit)
    bound = handles_bound(end_s - start_s)
    if rate.upper >= bound:
        return result
    reason = Bounded(upper=rate.upper, bound=bound, source="margin", unit=result.unit)
    return msgspec.structs.replace(
        result,
        outcome="CLEAN",
        rate_per_hour=rate,
        rate_per_request=None,
        model=f"line through {len(seen)} idle points",
        fit_t_s=(),
        fit_value=(),
        band_lower=(),
        band_upper=(),
        needed_s=None,
        why=reason.why(),
        reason="",
    )


def _rate(t: FloatArray, held: FloatArray, unit: str) -> Rate:
    """Fit a line; its interval allows for counts that are off by one."""
    hours = (t - t.mean()) / 3600.0
    spread = float(hours @ hours)
    slope = float(hours @ held) / spread
    residual = held - held.mean() - slope * hours
    # A count that never changed may still be the rounded value of one that did.
    variance = max(float(residual @ residual) / (t.size - 2), 1.0 / 12.0)
    half = t_quantile(0.975, t.size - 2) * (variance / spread) ** 0.5
    return Rate(slope, slope - half, slope + half, unit, "h")
