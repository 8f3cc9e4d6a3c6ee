"""Metrics pages of servers: what is read from them, and that none can harm the reader."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from hybridbench.foundation.errors import UsageError
from hybridbench.foundation.metrics import declared
from hybridbench.sampling.metrics_page import PAGE_BYTES_MAX
from hybridbench.sampling.scrape import RisingCounters, Scraper
from hybridbench.sampling.scraped_page import NoMetricsError, Scrape, read_page

VLLM = """\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 10442.0
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 4.4e+08
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.75
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0"} 1.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 5.0
vllm:request_success_total{engine="1",finished_reason="stop",model_name="tiny"} 6.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 1.0
# TYPE vllm:request_success_created gauge
vllm:request_success_created{engine="0",finished_reason="stop",model_name="tiny"} 1.7e+09
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="tiny"} 8.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 12.0
vllm:e2e_request_latency_seconds_count{engine="0",model_name="tiny"} 12.0
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="tiny"} 4.5
# TYPE http_requests_total counter
http_requests_total{handler="/metrics",method="GET",status="2xx"} 900.0
http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 12.0
http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 2.0
"""
SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="tiny",tp_rank="0"} 6.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="tiny",tp_rank="0"} 1.0
# TYPE sglang:num_grammar_queue_reqs gauge
sglang:num_grammar_queue_reqs{model_name="tiny",tp_rank="0"} 2.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="tiny",tp_rank="0"} 0.5
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="tiny"} 128.0
"""
LLAMA = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 1200
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 9
"""


def test_counters_and_gauges_of_vllm_are_read_by_name() -> None:
    page = read_page(VLLM)

    assert page.counters == {
        "scraped.vllm:request_success_total": 12.0,
        "scraped.vllm:request_success_total.stop": 11.0,
        "scraped.vllm:request_success_total.abort": 1.0,
        "scraped.vllm:e2e_request_latency_seconds_count": 12.0,
        "scraped.vllm:e2e_request_latency_seconds_sum": 4.5,
        "scraped.http_requests_total": 14.0,
        "scraped.http_requests_total.2xx": 12.0,
        "scraped.http_requests_total.4xx": 2.0,
    }
    assert page.gauges == {
        "gauge.vllm:num_requests_running": 7.0,
        "gauge.vllm:num_requests_waiting": 2.0,
        "gauge.vllm:kv_cache_usage_perc": 0.75,
    }
    assert (page.running, page.waiting, page.series) == (7.0, 2.0, 20)
    assert all(declared(name) for name in [*page.counters, *page.gauges])


@pytest.mark.parametrize(
    ("text", "running", "waiting"),
    [
        (SGLANG, 6.0, 3.0),
        (LLAMA, 4.0, 9.0),
        ("trtllm_num_requests_running 5\ntrtllm_num_requests_waiting 1\n", 5.0, 1.0),
        ("ray_vllm_num_requests_running 5\n", 5.0, None),
        ("lightllm_batch_current_size 2\nlightllm_num_running_reqs 2\n", 2.0, None),
        ("dynamo_frontend_inflight_requests 8\ndynamo_frontend_queued_requests 3\n", 8.0, None),
        ("up 1\n", None, None),
    ],
)
def test_gauges_of_requests_are_known_by_the_names_of_their_engines(
    text: str, running: float | None, waiting: float | None
) -> None:
    page = read_page(text)

    assert (page.running, page.waiting) == (running, waiting)


def test_a_name_without_a_type_is_a_counter_if_it_is_called_a_total() -> None:
    page = read_page("requests_total 4\nqueue 2\nfree_ratio 0.5\n")

    assert page.counters == {"scraped.requests_total": 4.0}
    assert page.gauges == {"gauge.queue": 2.0, "gauge.free_ratio": 0.5}


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        ('block_size="16",num_gpu_blocks="256"', 4096.0),
        ('block_size="16",num_gpu_blocks="256",kv_cache_size_tokens="3000"', 3000.0),
        ('block_size="16",num_gpu_blocks="None"', None),
    ],
)
def test_the_size_of_the_kv_cache_is_in_the_labels_of_vllm(
    labels: str, tokens: float | None
) -> None:
    lines = [f'vllm:cache_config_info{{{labels},engine="{at}"}} 1.0' for at in range(2)]
    page = read_page("\n".join(["# TYPE vllm:cache_config_info gauge", *lines, ""]))

    of_two = {"kv_cache_size_tokens": 2 * (tokens or 0.0), "num_gpu_blocks": 512.0}
    known = {} if tokens is None else {f"gauge.vllm:{name}": of_two[name] for name in of_two}
    assert page.gauges == known


def test_the_bundled_engine_has_the_names_of_a_soak() -> None:
    page = read_page(
        "# TYPE hybridbench_pool_host_mamba_residual_slots gauge\n"
        "hybridbench_pool_host_mamba_residual_slots 3\n"
        "# TYPE hybridbench_pool_mamba_available_slots gauge\n"
        "hybridbench_pool_mamba_available_slots 40\n"
        "hybridbench_lost_taken_host_mamba_host_evictions_slots_total 3\n"
        "hybridbench_waiting_taken_mamba_host_loads_slots_total 2\n"
        "hybridbench_lost_taken_tree_splits_slots_total 1\n"
        "hybridbench_events_refusals_total 9\n"
        "hybridbench_steps_with_abort_queued_total 2\n"
        "hybridbench_events_abort_queued_total 4\n"
        "# TYPE hybridbench_oldest_silence_seconds gauge\n"
        "hybridbench_oldest_silence_seconds 0.5\n"
        "# TYPE hybridbench_allocated_blocks gauge\n"
        "hybridbench_allocated_blocks 7\n"
    )

    assert page.gauges == {
        "pool.host_mamba.residual": 3.0,
        "pool.mamba.available": 40.0,
        "oldest_silence_s": 0.5,
        "gauge.hybridbench_allocated_blocks": 7.0,
    }
    assert page.counters == {
        "lost_taken.host_mamba.host_evictions": 3.0,
        "waiting_taken.mamba.host_loads": 2.0,
        # The page does not have this pool.
        "scraped.hybridbench_lost_taken_tree_splits_slots_total": 1.0,
        "events.refusals": 9.0,
        "steps_with.abort_queued": 2.0,
        # The load client also counts these.
        "scraped.hybridbench_events_abort_queued_total": 4.0,
    }
    assert page.pools == {"host_mamba": {"residual": 3.0}, "mamba": {"available": 40.0}}
    assert all(declared(name) for name in [*page.counters, *page.gauges])


@pytest.mark.parametrize(("held", "locked"), [(0, {"in_use": 48.0}), (5, {})])
def test_slots_of_locked_nodes_are_in_use_unless_a_session_may_hold_the_lock(
    held: int, locked: dict[str, float]
) -> None:
    page = read_page(
        "# TYPE hybridbench_pool_kv_protected_slots gauge\n"
        "hybridbench_pool_kv_protected_slots 48\n"
        "# TYPE hybridbench_pool_mamba_session_held_slots gauge\n"
        f"hybridbench_pool_mamba_session_held_slots {held}\n"
    )

    assert page.pools["kv"] == {"protected": 48.0, **locked}


_SGLANG_POOLS = """\
# TYPE sglang:kv_used_tokens gauge
sglang:kv_used_tokens{dp_rank="0"} 100
sglang:kv_used_tokens{dp_rank="1"} 20
# TYPE sglang:mamba_used_tokens gauge
sglang:mamba_used_tokens 5
# TYPE sglang:num_streaming_sessions gauge
sglang:num_streaming_sessions {sessions}
# TYPE sglang:streaming_session_held_tokens gauge
sglang:streaming_session_held_tokens {held}
"""
_VLLM_POOLS = """\
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc 0.1
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="31"} 1
"""
# With data parallelism each engine has its own cache, and the page shows a share for each.
_VLLM_ENGINES = """\
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.1
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="31"} 1
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="31"} 1
"""


@pytest.mark.parametrize(
    ("text", "in_use"),
    [
        (_VLLM_POOLS, {"kv_blocks": 3.0}),
        (_VLLM_ENGINES, {"kv_blocks": 18.0}),
        # How many blocks there are is not said.
        (VLLM, {"kv_cache": 750_000}),
        ("trtllm_kv_cache_utilization 0.25\n", {"kv_cache": 250_000}),
        (_SGLANG_POOLS.replace("{sessions}", "0").replace("{held}", "0"), {"kv": 120, "mamba": 5}),
        # Tokens that open sessions hold do not count; for states the page does not report them.
        (_SGLANG_POOLS.replace("{sessions}", "2").replace("{held}", "110"), {"kv": 10}),
        (LLAMA, {}),
    ],
)
def test_pools_in_use_are_known_by_the_names_of_their_engines(
    text: str, in_use: dict[str, float]
) -> None:
    assert read_page(text).pools == {pool: {"in_use": n} for pool, n in in_use.items()}


def test_open_metrics_is_read_too() -> None:
    text = (
        '# TYPE requests counter\nrequests_total{code="200"} 3\nrequests_created{code="200"} 1\n'
        '# TYPE size histogram\nsize_bucket{le="+Inf"} 2 # {id="a"} 0.5\nsize_count 2\n'
        "size_sum 5\n# EOF\n"
    )

    page = read_page(text, open_metrics=True)

    assert page.counters == {
        "scraped.requests_total": 3.0,
        "scraped.requests_total.200": 3.0,
        "scraped.size_count": 2.0,
        "scraped.size_sum": 5.0,
    }
    assert page.series == 5


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x1c", "\x0b"])
def test_a_label_may_have_what_unicode_calls_a_line_separator(separator: str) -> None:
    page = read_page(f'# TYPE n counter\r\nn_total{{path="/a{separator}b"}} 3\r\n')

    assert page.counters == {"scraped.n_total": 3.0}
    assert page.by_name == {"n_total": 1}


def test_labels_of_distinct_values_show_in_the_number_of_series_alone() -> None:
    lines = [f'answers_total{{reason="user {i}",id="{i}"}} 1\n' for i in range(5000)]

    page = read_page("# TYPE answers_total counter\n" + "".join(lines))

    assert page.series == 5000
    assert page.counters == {"scraped.answers_total": 5000.0}


def test_of_a_label_with_very_many_values_the_first_are_counted_apart() -> None:
    lines = [f'answers_total{{code="{i}"}} 1\n' for i in range(5000)]

    page = read_page("# TYPE answers_total counter\n" + "".join(lines))

    assert page.counters["scraped.answers_total"] == 5000.0
    assert len(page.counters) == 17


def test_names_beyond_a_bound_are_left_out_and_counted() -> None:
    page = read_page("".join(f"metric_{i} 1\n" for i in range(700)))

    assert len(page.gauges) == 500
    assert page.failed == "200 more names on the metrics page were left out"


@pytest.mark.parametrize(
    "text", ["", "\n\n", "<html>secret</html>\n", "name{ 5\n", "a b c d e\n", 'x{y="z"} secret\n']
)
def test_what_is_no_metrics_page_is_refused_without_a_word_of_it(text: str) -> None:
    with pytest.raises(NoMetricsError) as refused:
        read_page(text)

    assert "secret" not in str(refused.value)


def test_a_counter_that_starts_anew_goes_on_from_where_it_was() -> None:
    counters = RisingCounters()

    seen = [counters.after({"a": value})["a"] for value in (10.0, 12.0, 0.0, 3.0, 2.0, 4.0)]

    assert seen == [10.0, 12.0, 12.0, 15.0, 15.0, 17.0]
    assert counters.after({}) == {"a": 17.0}


def in_turn(*workers: Sequence[float]) -> bool:
    """Return whether readings of ``workers``, a random one each time, are recognised as several."""
    counters, chosen = RisingCounters(), random.Random(7)
    for values in zip(*workers, strict=True):
        counters.after({"a": chosen.choice(values)})
    return counters.taken_in_turn


def test_counts_of_several_processes_that_answer_in_turn_are_told_from_restarts() -> None:
    steady = [12.0 * n for n in range(60)]
    restarted = [12.0 * (n % 7) for n in range(60)]

    assert in_turn(steady, [count + 90.0 for count in steady])
    assert in_turn(steady, [0.5 * count for count in steady], [0.0] * 60)
    assert not in_turn(steady)
    assert not in_turn(restarted)


# Servers that treat every connection alike.


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield the address of a server that passes each connection to ``answer``."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_ones: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_ones.append(connection)
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    def one(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.recv(65536)
            answer(connection)
            connection.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
    finally:
        for connection in open_ones:
            connection.close()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10.0)


def sends(text: str, headers: str = "") -> Callable[[socket.socket], None]:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n{headers}\r\n"
    return lambda connection: connection.sendall(f"{head}{text}".encode())


def raw(*parts: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)

    return answer


def drips(connection: socket.socket) -> None:
    """Send a byte now and then, so that no single wait is long."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    never = threading.Event()
    while not never.wait(0.05):
        connection.sendall(b"#")


def hangs(connection: socket.socket) -> None:
    connection.recv(1)


def scraped(url: str, patience_s: float = 5.0) -> Scrape:
    scraper = Scraper(url, every_s=3600.0, patience_s=patience_s)
    try:
        return scraper.scrape()
    finally:
        scraper.close()


def test_a_server_is_asked_for_its_page() -> None:
    with serving(sends(VLLM)) as url:
        page = scraped(url)

    assert page.running == 7.0
    assert not page.failed


def test_a_page_that_has_moved_on_its_host_is_followed() -> None:
    answers = iter([raw(b"HTTP/1.1 307 X\r\nLocation: /metrics/\r\n\r\n"), sends(LLAMA)] * 2)

    def answer(connection: socket.socket) -> None:
        next(answers)(connection)

    with serving(answer) as url:
        page = scraped(url)

    assert page.running == 4.0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (hangs, "no whole answer in"),
        (drips, "no whole answer in"),
        (raw(b"secret\r\n\r\n"), "its answer is not HTTP"),
        (raw(), "Remote end closed connection without response"),
        (raw(b"HTTP/1.1 200 OK\r\n", b"X: " + b"a" * 10_000_000 + b"\r\n\r\n"), ""),
        (raw(b"HTTP/1.1 200 OK\r\n", b"X: secret\r\n" * 1_000_000, b"\r\n"), ""),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: secret\r\n\r\n"), "it is empty"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\na_total 12"), "was cut off"),
        (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n63\r\na 12"), "was cut off"),
        (raw(b"HTTP/1.1 500 secret\r\n\r\n"), "it answered 500"),
        (raw(b"HTTP/1.1 302 X\r\nLocation: http://secret.example/\r\n\r\n"), "another host"),
        (raw(b"HTTP/1.1 302 X\r\nLocation: /metrics\r\n\r\n"), "too many redirects"),
        (sends("<!doctype html><p>secret</p>"), "it is an HTML page"),
        (sends("secret", "Content-Type: text/html\r\n"), "it is an HTML page"),
        (sends("\0\xff secret"), "not in the format"),
        (raw(b"HTTP/1.1 200 OK\r\n\r\n", *[b"a 1\n" * 2**18] * 9), "longer than 8 MiB"),
    ],
)
def test_whatever_a_server_answers_is_one_sentence(
    answer: Callable[[socket.socket], None], why: str
) -> None:
    with serving(answer) as url:
        page = scraped(url, patience_s=0.3 if answer in (hangs, drips) else 10.0)

    assert page.failed.startswith(f"{url} gave no metrics: ")
    assert page.failed.endswith(".")
    assert "\n" not in page.failed
    assert why in page.failed
    assert "secret" not in page.failed
    assert (page.counters, page.gauges, page.running) == ({}, {}, None)


def test_a_server_that_is_gone_leaves_the_counters_where_they_were() -> None:
    with serving(sends(LLAMA)) as url:
        scraper = Scraper(url, every_s=3600.0)
        assert scraper.scrape().counters

    gone = scraper.scrape()
    scraper.close()

    assert gone.counters == {"scraped.llamacpp:prompt_tokens_total": 1200.0}
    assert gone.gauges == {}
    assert "Connection refused" in gone.failed


def test_a_server_is_silent_from_the_first_request_that_times_out_after_an_answer() -> None:
    answers = iter([hangs, sends(LLAMA), hangs, hangs, sends(LLAMA)])

    def answer(connection: socket.socket) -> None:
        next(answers)(connection)

    with serving(answer) as url:
        scraper = Scraper(url, every_s=3600.0, patience_s=1.0)
        silent = [scraper.silent_for_s()]
        for _ in range(4):
            scraper.scrape()
            silent.append(scraper.silent_for_s())
        scraper.close()

    # The scraper's own thread has sent the first request.
    assert [for_s > 0 for for_s in silent] == [False, False, True, True, False]
    assert silent[3] > silent[2]


def test_an_end_does_not_wait_for_a_server_that_hangs() -> None:
    asked = threading.Event()

    def answer(connection: socket.socket) -> None:
        asked.set()
        hangs(connection)

    with serving(answer) as url:
        scraper = Scraper(url, every_s=1.0, patience_s=600.0)
        assert asked.wait(10.0)
        scraper.close()

    latest = scraper.latest()
    assert latest is not None
    assert latest.failed


def test_a_page_of_several_processes_in_turn_gives_no_counters() -> None:
    counts = itertools.cycle([100, 200])

    def answer(connection: socket.socket) -> None:
        sends(f"a_total {next(counts)}\n")(connection)

    with serving(answer) as url:
        scraper = Scraper(url, every_s=600.0)
        scrapes = [scraper.scrape() for _ in range(14)]
        scraper.close()

    in_turn = f"several processes answer {url} in turn, each with counts of its own."
    assert scrapes[0].counters
    assert (scrapes[-1].counters, scrapes[-1].failed) == ({}, in_turn)


def test_pages_that_grow_without_end_cost_no_memory() -> None:
    """Ten more pages, each with new names and labels."""
    counters = RisingCounters()

    def page(start: int) -> None:
        names = "".join(f'a{i}_total{{code="{i}"}} 1\n' for i in range(start, start + 700))
        counters.after(read_page(names).counters)

    for turn in range(3):
        page(700 * turn)
    tracemalloc.start()
    page(0)
    before, _ = tracemalloc.get_traced_memory()
    for turn in range(3, 13):
        page(700 * turn)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert after - before < 32 * 1024


@pytest.mark.parametrize("url", ["", "server:8000", "ftp://a/metrics", "http://", "http://[::1/"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not an HTTP URL"):
        Scraper(url, every_s=1.0)


def test_a_users_name_and_password_are_not_shown() -> None:
    page = scraped("http://user:secret@127.0.0.1:1/metrics")

    assert page.failed.startswith("http://127.0.0.1:1/metrics gave no metrics")


def test_a_page_may_be_as_long_as_those_of_real_servers() -> None:
    assert PAGE_BYTES_MAX >= 8 * 2**20
