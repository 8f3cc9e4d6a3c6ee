"""Which counters of a target may explain its growth."""

from __future__ import annotations

from hybridbench.analysis.record import observed_drivers


def test_finished_requests_come_before_requests_and_tokens() -> None:
    names = [
        "scraped.vllm:generation_tokens_total",
        "scraped.vllm:request_success_total",
        "scraped.http_requests_total",
        "rss_bytes",
    ]

    drivers = observed_drivers(names)

    assert drivers.works == (
        "scraped.vllm:request_success_total",
        "scraped.http_requests_total",
        "scraped.vllm:generation_tokens_total",
    )
    assert drivers.requests == "scraped.vllm:request_success_total"


def test_tokens_are_work_and_no_requests() -> None:
    drivers = observed_drivers(["scraped.tokens_total", "scraped.evictions_total"])

    assert drivers.works == ("scraped.tokens_total", "scraped.evictions_total")
    assert drivers.requests == ""


def test_a_target_without_counters_has_no_work() -> None:
    assert observed_drivers(["rss_bytes"]).works == ()
