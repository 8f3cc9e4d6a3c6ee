"""Event counters: their values across restarts, and the name of a single event."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.facts.counters import event_counters, singular
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.manifest import Manifest

T = np.arange(6.0)


def test_a_counter_goes_on_where_its_worker_began_again() -> None:
    series = Series("events.finishes", T, np.array([0.0, 4.0, 9.0, 1.0, 3.0, 5.0]))
    counters = event_counters(RunRecord(Manifest(), {series.name: series}, []))

    assert counters.at("finishes", T).tolist() == [0.0, 4.0, 9.0, 10.0, 12.0, 14.0]
    assert counters.total("finishes") == 14.0
    assert counters.restarts_s.tolist() == [3.0]


def test_events_have_names_that_a_reader_knows() -> None:
    assert singular("events.nodes_evicted") == "evicted node"
    assert singular("finishes") == "request"
    assert singular("node_splits") == "node split"
    assert singular("scraped.vllm:prompt_tokens_cached_total") == "cached prompt token"


@pytest.mark.parametrize(
    ("counter", "event"),
    [
        ("requests_truncated", "truncated request"),
        ("host_evictions_refused", "refused host eviction"),
        ("kv_events_published", "published KV event"),
        ("events.requests_failed.500", "failed request (500)"),
        ("scraped.engine:bytes_allocated_total", "allocated byte"),
        ("scraped.process_failed_total", "process failed"),
        ("scraped.hybridbench_events_finish_length_total", "request that reached its token limit"),
    ],
)
def test_what_was_done_to_something_comes_first(counter: str, event: str) -> None:
    assert singular(counter) == event


@pytest.mark.parametrize(
    ("counter", "event"),
    [
        ("scraped.vllm:prefix_cache_queries_total", "prefix cache query"),
        ("scraped.vllm:prefix_cache_misses_total", "prefix cache miss"),
        ("events.flushes", "flush"),
        ("scraped.engine:batches_total", "batch"),
        ("scraped.engine:cached_series_total", "cached series"),
        ("scraped.engine:status_total", "status"),
        ("session_closes", "session close"),
        ("scraped.engine:caches_total", "cache"),
    ],
)
def test_a_plural_loses_its_whole_ending(counter: str, event: str) -> None:
    assert singular(counter) == event


def test_the_count_of_a_histogram_is_one_of_observations() -> None:
    observed = "observation of iteration tokens"
    assert singular("scraped.vllm:iteration_tokens_total_count") == observed
    assert singular("scraped.request_count") == "request count"
