from __future__ import annotations

from hybridbench.runs.rates import RateWindow

BASE = {"events.output_tokens": 10.0, "events.prompt_tokens": 20.0, "events.finishes": 1.0}
LATER = {"events.output_tokens": 40.0, "events.prompt_tokens": 90.0, "events.finishes": 6.0}


def test_rates_are_differences_over_the_time_between() -> None:
    window = RateWindow()

    assert window.rates(1.0, BASE) == {}
    assert window.rates(3.0, LATER) == {"throughput_tokens_per_s": 50.0, "requests_per_s": 2.5}


def test_a_sample_without_counters_or_without_time_gives_no_rate() -> None:
    window = RateWindow()
    window.rates(1.0, BASE)

    assert window.rates(2.0, {"rss_bytes": 1.0}) == {}
    assert window.rates(1.0, LATER) == {}
