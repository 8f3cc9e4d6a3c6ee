"""The grammar of thresholds: what each form means, and the messages for wrong ones."""

from __future__ import annotations

import pytest

from hybridbench.analysis.trend.work_cost import DERIVED_METRICS
from hybridbench.foundation.metrics import METRICS, Kind
from hybridbench.foundation.thresholds import ALIASES, Stat, parse_threshold, parse_thresholds

MIB = 2.0**20


@pytest.mark.parametrize(
    ("text", "metric", "stat", "limit", "per"),
    [
        ("rss.slope<200MiB/h", "rss_anon_swap_bytes", Stat.SLOPE, 200 * MIB, "h"),
        ("rss_bytes.slope < 1MB/min", "rss_bytes", Stat.SLOPE, 60e6, "h"),
        ("rss.slope.upper<=24GiB/d", "rss_anon_swap_bytes", Stat.SLOPE_UPPER, 2.0**30, "h"),
        ("memory.slope<1.5KiB/request", "rss_anon_swap_bytes", Stat.SLOPE, 1536.0, "finishes"),
        ("pool.kv.free.min>10", "pool.kv.available", Stat.MIN, 10.0, ""),
        ("pool.mamba.available.slope>-2slots/session_closes", "pool.mamba.available", Stat.SLOPE,
         -2.0, "session_closes"),
        ("events.retracts.slope<5/min", "events.retracts", Stat.SLOPE, 300.0, "h"),
        ("throughput.ratio>0.97", "throughput_tokens_per_s", Stat.RATIO, 0.97, ""),
        ("throughput.p50>=54000/min", "throughput_tokens_per_s", Stat.P50, 900.0, ""),
        ("hit_rate.mean>60%", "hit_rate", Stat.MEAN, 0.6, ""),
        ("ttft.p99<1.5s", "ttft_ms_p99", Stat.P50, 1500.0, ""),
        ("oldest_request_s.max<250ms", "oldest_request_s", Stat.MAX, 0.25, ""),
        ("token_ms.last_first_ratio<110%", "token_ms", Stat.LAST_FIRST_RATIO, 1.1, ""),
    ],
)  # fmt: skip
def test_a_threshold_is_read_in_the_units_of_its_metric(
    text: str, metric: str, stat: Stat, limit: float, per: str
) -> None:
    threshold = parse_threshold(text)

    assert (threshold.metric, threshold.stat, threshold.per) == (metric, stat, per)
    assert threshold.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rsss.slope<1MiB/h", "no metric is called rsss; did you mean rss?"),
        ("troughput.p50>9/s", "did you mean throughput?"),
        ("rss.slop<1MiB/h", "slop is not a statistic; did you mean slope?"),
        ("rss<1MiB/h", "a statistic is missing; write rss.slope"),
        ("rss.slope<200", "not a rate"),
        ("rss.slope<200/h", "200 has no unit"),
        ("rss.max<200ms", "ms is not a unit of rss.max"),
        ("rss.slope<1MiB/Fortnight", "neither a time nor an event"),
        ("throughput.p50>900", "900 has no unit; write 900/s"),
        ("ttft.p95<1s", "ttft.p95 is not measured"),
        ("events.retracts<3", "a statistic is missing"),
        ("open_fds.max<ten", "'ten' is not a limit"),
        ("pool.kvv.free.min>1", "did you mean pool.kv.free?"),
        ("step_s.max<3s", "only counts up"),
        ("hit_rate.p50>0.5", "only for the whole window"),
        ("cpu_ms_per_token.mean<2ms", "write cpu_ms_per_token.ratio"),
        ("pool.*.available.min>0", "no metric is called"),
        ("rss.slope", "not a threshold"),
        ("<3", "not a threshold"),
    ],
)
def test_words_that_mean_nothing_are_an_error_with_what_would_do(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="'") as refused:
        parse_threshold(text)

    assert said in str(refused.value)
    assert text in str(refused.value)


def test_every_short_name_stands_for_a_declared_metric() -> None:
    for short, full in ALIASES.items():
        assert parse_threshold(f"{short}.last<1{_unit(full)}").metric == full


def test_the_costs_that_can_be_named_are_those_that_are_measured() -> None:
    declared = {spec.name for spec in METRICS if spec.kind is Kind.QUOTIENT}

    assert declared == {derived.name for derived in DERIVED_METRICS}


def test_a_limit_itself_is_on_the_right_side_only_where_it_says_so() -> None:
    below, at_most = parse_thresholds(["open_fds.max<3", "open_fds.max<=3"])

    assert (below.holds(3.0), at_most.holds(3.0)) == (False, True)
    assert (below.holds(2.9), at_most.holds(3.1)) == (True, False)


def test_a_threshold_given_twice_is_one() -> None:
    assert len(parse_thresholds(["open_fds.max<3", " open_fds.max<3 ", "open_fds.max<4"])) == 2


def _unit(metric: str) -> str:
    if metric.endswith("_bytes"):
        return "B"
    return "/s" if metric.endswith("_per_s") else ""
