"""The interface over real sockets, around a real engine on a thread of this process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.metrics import STEADY
from hybridbench.sampling.scraped_page import read_page
from tests.unit.serve.servers import MODEL, Server, served
from tests.unit.worker.engines import PATIENCE_S, make_engine

PROMPT = [5, 6, 7, 8, 9, 10, 11]
GREEDY = {"temperature": 0, "max_tokens": 4, "return_token_ids": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(make_engine()) as running:
        yield running


@pytest.fixture(scope="module")
def expected() -> list[int]:
    """The engine's own answer to ``PROMPT``."""
    (output,) = make_engine().generate([PROMPT], SamplingParams(max_new_tokens=4))
    return output


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for ``condition``, which queries the server and thereby paces the loop."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s


def completion(server: Server, **fields: Any) -> Any:
    reply = server.ask("/v1/completions", {"prompt": PROMPT, **GREEDY, **fields})
    assert reply.status == 200, reply.body
    return reply.json


def test_a_completion_has_the_tokens_of_the_engine(server: Server, expected: list[int]) -> None:
    whole = completion(server)
    again = completion(server)

    assert whole["choices"][0]["token_ids"] == expected
    assert whole["choices"][0]["finish_reason"] == "length"
    assert (whole["object"], whole["model"]) == ("text_completion", MODEL)
    assert whole["usage"] == {
        "prompt_tokens": len(PROMPT),
        "completion_tokens": 4,
        "total_tokens": len(PROMPT) + 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert again["choices"][0]["text"] == whole["choices"][0]["text"]


def test_a_stream_has_the_same_tokens_in_parts(server: Server, expected: list[int]) -> None:
    fields = {"prompt": PROMPT, **GREEDY, "stream": True}
    options = {"stream_options": {"include_usage": True}}

    reply = server.ask("/v1/completions", {**fields, **options})
    plain = server.ask("/v1/completions", fields)

    assert reply.headers["content-type"].startswith("text/event-stream")
    *parts, usage = reply.events
    assert len(parts) > 1
    assert [id_ for part in parts for id_ in part["choices"][0]["token_ids"]] == expected
    assert [part["choices"][0]["finish_reason"] for part in parts[:-1]] == [None] * len(parts[:-1])
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert all("usage" not in part for part in plain.events)


def test_text_lists_and_chats_reach_the_engine(server: Server) -> None:
    text = completion(server, prompt="abc")
    texts = completion(server, prompt=["abc", "abcd"])
    lists = completion(server, prompt=[PROMPT, PROMPT], stream=False)
    chat = server.ask(
        "/v1/chat/completions",
        {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **GREEDY},
    ).json
    parts = server.ask(
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "max_completion_tokens": 4,
            "temperature": 0,
            "stream": True,
        },
    ).events

    assert text["usage"]["prompt_tokens"] == 3
    assert [choice["index"] for choice in texts["choices"]] == [0, 1]
    assert texts["usage"]["prompt_tokens"] == 7
    assert lists["choices"][0]["token_ids"] == lists["choices"][1]["token_ids"]
    message = chat["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(part["choices"][0]["delta"]["content"] for part in parts) == message["content"]


def test_a_long_prompt_is_served_from_the_cache_unless_its_key_differs(server: Server) -> None:
    prompt = list(range(20, 100))
    completion(server, prompt=prompt)

    def cached(**fields: Any) -> int:
        usage = completion(server, prompt=prompt, **fields)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached() > 0
    assert cached(cache_salt="tenant") == 0
    assert cached(cache_salt="tenant") > 0


def test_sampling_parameters_reach_the_engine(server: Server, expected: list[int]) -> None:
    def ids(**fields: Any) -> list[int]:
        return list(completion(server, **fields)["choices"][0]["token_ids"])

    drawn = ids(temperature=5.0, seed=1, max_tokens=8)

    assert ids(temperature=5.0, seed=1, max_tokens=8) == drawn
    assert ids(temperature=5.0, seed=2, max_tokens=8) != drawn
    assert ids(temperature=5.0, seed=1, top_k=1) == expected
    assert ids(temperature=5.0, seed=1, top_p=1e-9) == expected
    assert ids(temperature=5.0, seed=None, max_tokens=8) != ids(temperature=5.0, max_tokens=8)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_token_ends_an_answer_and_is_not_shown(
    server: Server, expected: list[int], stream: bool
) -> None:
    fields = {"prompt": PROMPT, **GREEDY, "stop_token_ids": [expected[1]], "stream": stream}

    reply = server.ask("/v1/completions", fields)
    ignored = server.ask("/v1/completions", {**fields, "ignore_eos": True, "stream": False})

    choices = [event["choices"][0] for event in (reply.events if stream else [reply.json])]
    assert [id_ for choice in choices for id_ in choice["token_ids"]] == expected[:1]
    assert choices[-1]["finish_reason"] == "stop"
    assert ignored.json["choices"][0]["token_ids"] == expected


def test_models_and_health(server: Server) -> None:
    (model,) = server.ask("/v1/models").json["data"]

    assert (model["id"], model["max_model_len"]) == (MODEL, server.engine.config.max_request_len)
    assert server.ask("/health").status == 200


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"\xff\xfe", 400, None),
        (b"[" * 100_000, 400, None),
        (b"[]", 400, None),
        ({}, 400, None),
        ({"prompt": 3}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [1, "a"]}, 400, "prompt"),
        ({"prompt": [[1], "a"]}, 400, "prompt"),
        ({"prompt": [1, [2]]}, 400, "prompt"),
        ({"prompt": ["a"] * 1000}, 400, "prompt"),
        ({"prompt": [10**30]}, 400, "prompt[0]"),
        ({"prompt": [-1]}, 400, "prompt[0]"),
        ({"prompt": [4096]}, 400, None),
        ({"prompt": ""}, 400, None),
        ({"prompt": "\ud800"}, 400, None),
        ({"prompt": "a", "max_tokens": "4"}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": 10**30}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": 4096}, 400, None),
        ({"prompt": "a", "temperature": -1}, 400, "temperature"),
        ({"prompt": "a", "top_p": 0}, 400, "top_p"),
        ({"prompt": "a", "stream_options": 3}, 400, "stream_options"),
        ({"prompt": "a", "n": 2}, 400, "n"),
        ({"prompt": "a", "stop": ["b"]}, 400, "stop"),
        ({"prompt": "a", "echo": True}, 400, "echo"),
        # Each prompt gets its own copy, and all are in one message to the engine.
        ({"prompt": ["a"] * 120, "stop_token_ids": [1] * 600_000}, 400, "stop_token_ids"),
        ({"prompt": ["a"] * 100, "cache_salt": "b" * 1_000_000}, 400, "cache_salt"),
        ({"prompt": "a", "model": "gpt-4"}, 404, "model"),
        ({"prompt": list(range(200)), "stream": True}, 400, None),
    ],
)
def test_a_wrong_request_is_one_error_body(
    server: Server, body: object, status: int, param: str | None
) -> None:
    reply = server.ask("/v1/completions", body)

    error = reply.json["error"]
    assert (reply.status, error["param"]) == (status, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"].endswith(".")


def test_what_asks_for_nothing_is_no_fault(server: Server) -> None:
    nothing = {"n": 1, "stop": [], "echo": False, "logprobs": None, "best_of": 1, "suffix": ""}

    completion(server, **nothing, user="me", repetition_penalty=1.0, an_unknown_field={"a": [1]})


@pytest.mark.parametrize(
    "messages", [[], [{"role": "user", "content": [{"type": "image_url"}]}], [{"role": 3}], "hi"]
)
def test_a_chat_without_text_is_refused(server: Server, messages: object) -> None:
    reply = server.ask("/v1/chat/completions", {"messages": messages})

    assert reply.status == 400
    assert reply.json["error"]["param"].startswith("messages")


def test_other_addresses_methods_and_hosts_are_refused(server: Server) -> None:
    found = {
        "address": server.ask("/v2/completions", {}),
        "method": server.ask("/v1/completions"),
        "host": server.ask("/health", headers={"Host": "example.com"}),
        "origin": server.ask("/health", headers={"Origin": "https://example.com"}),
    }

    assert {name: reply.status for name, reply in found.items()} == {
        "address": 404, "method": 405, "host": 403, "origin": 403,
    }  # fmt: skip
    assert all(set(reply.json) == {"error"} for reply in found.values())
    assert found["method"].headers["allow"] == "POST"
    for host in ("localhost", "127.0.0.1", "[::1]", "localhost:99"):
        assert server.ask("/health", headers={"Host": host}).status == 200


def test_a_client_that_leaves_aborts_its_request(server: Server) -> None:
    before = server.metrics()
    connection = server.connect()
    body = {"prompt": PROMPT, "max_tokens": 100, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    response.close()
    connection.close()

    wait_until(lambda: server.metrics()["hybridbench:num_requests_running"] == 0)

    after = server.metrics()
    name = 'hybridbench_generations_total{finished_reason="abort"}'
    assert after[name] - before[name] == 1
    events = "hybridbench_events_disconnects_total"
    assert after[events] - before[events] == 1


def test_many_streams_at_a_time_have_their_own_tokens(server: Server) -> None:
    prompts = [[20 + i, 30, 40, 50 + i] for i in range(24)]
    expected = make_engine().generate(prompts, SamplingParams(max_new_tokens=4))

    def ask(prompt: list[int]) -> list[int]:
        reply = server.ask("/v1/completions", {"prompt": prompt, **GREEDY, "stream": True})
        return [id_ for event in reply.events for id_ in event["choices"][0]["token_ids"]]

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(ask, prompts))

    assert found == expected


def test_the_metrics_page_is_read_by_others_and_by_our_scraper(server: Server) -> None:
    completion(server)
    page = server.ask("/metrics")

    text = page.body.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    scrape = read_page(text)

    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert (scrape.running, scrape.waiting, scrape.failed) == (0.0, 0.0, "")
    assert scrape.counters["scraped.hybridbench_events_finishes_total"] > 0
    assert scrape.counters["scraped.hybridbench_generations_total.length"] > 0
    engine = server.engine
    for pool, stats in engine.pool_stats().items():
        for part, count in stats.as_dict().items():
            assert scrape.gauges[f"pool.{pool}.{part}"] == count
    for event in engine.counters.as_dict():
        assert families[f"hybridbench_events_{event}"].type == "counter"
    ttft = families["hybridbench_time_to_first_token_seconds"]
    assert ttft.type == "histogram"
    by_name = {sample.name: sample.value for sample in ttft.samples}
    assert (
        by_name[f"{ttft.name}_count"]
        >= scrape.counters["scraped.hybridbench_generations_total.length"]
    )
    buckets = [sample.value for sample in ttft.samples if sample.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == by_name[f"{ttft.name}_count"]


def generate(server: Server, **fields: Any) -> Any:
    reply = server.ask(
        "/generate", {"sampling_params": {"temperature": 0, "max_new_tokens": 4}, **fields}
    )
    assert reply.status == 200, reply.body
    return reply.json


def test_generate_has_the_tokens_of_the_engine(server: Server, expected: list[int]) -> None:
    one = generate(server, input_ids=PROMPT)
    several = generate(server, input_ids=[PROMPT, PROMPT])
    text = generate(server, text="abc")
    stopped = generate(
        server, input_ids=PROMPT, sampling_params={"temperature": 0, "stop_token_ids": expected[1:]}
    )
    parts = server.ask(
        "/generate",
        {
            "input_ids": PROMPT,
            "stream": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": 4},
        },
    ).events

    assert one["output_ids"] == expected
    assert one["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    assert one["meta_info"]["prompt_tokens"] == len(PROMPT)
    assert [answer["output_ids"] for answer in several] == [expected, expected]
    assert text["meta_info"]["prompt_tokens"] == 3
    assert stopped["output_ids"] == expected[:1]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": expected[1]}
    said = [part["output_ids"] for part in parts]
    assert said == [expected[: len(ids)] for ids in said]
    assert said[-1] == expected
    assert parts[-1]["text"] == one["text"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"text": "a", "input_ids": [1]},
        {"text": 1},
        {"text": "a", "sampling_params": {"n": 2}},
        {"text": "a", "sampling_params": {"stop": "b"}},
        {"text": ["a", "b"], "session_params": {"id": "s"}},
        {"text": "a", "session_params": {"id": "s", "offset": 3}},
        {"text": "a", "session_params": {"id": "s", "replace": True}},
        {"text": "a", "session_params": {"id": "s", "drop_previous_output": True}},
        {"text": "a", "session_params": {"id": "never opened"}},
    ],
)
def test_a_wrong_generate_is_refused(server: Server, fields: dict[str, object]) -> None:
    reply = server.ask("/generate", fields)

    assert reply.status == 400
    assert set(reply.json) == {"error"}


def test_a_session_goes_on_from_what_was_said(server: Server) -> None:
    (first,) = make_engine().generate([PROMPT], SamplingParams(max_new_tokens=4))
    (second,) = make_engine().generate([[*PROMPT, *first, 40]], SamplingParams(max_new_tokens=4))
    session_id = server.ask("/open_session", {"capacity_of_str_len": 1000, "timeout": 60.0}).json
    session = {"session_params": {"id": session_id, "rid": None}}

    one = generate(server, input_ids=PROMPT, **session)
    two = completion(server, prompt=[40], **session)
    refused = server.ask("/flush_cache", b"")
    closed = server.ask("/close_session", {"session_id": session_id})
    late = server.ask("/v1/completions", {"prompt": [40], **session})
    flushed = server.ask("/flush_cache", b"")

    assert one["output_ids"] == first
    assert two["choices"][0]["token_ids"] == second
    assert two["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(PROMPT)
    assert (refused.status, closed.status, late.status, flushed.status) == (400, 200, 400, 200)
    assert server.metrics()["hybridbench_container_sessions_len"] == 0


def test_a_session_has_the_name_that_its_client_chose(server: Server) -> None:
    opened = server.ask("/open_session", {"capacity_of_str_len": 1, "session_id": "mine"})
    again = server.ask("/open_session", {"capacity_of_str_len": 1, "session_id": "mine"})

    assert opened.json == again.json == "mine"
    assert server.metrics()["hybridbench_container_sessions_len"] == 1
    server.ask("/close_session", {"session_id": "mine"})
    assert server.ask("/close_session", {"session_id": "gone"}).status == 200
    assert server.ask("/close_session", {}).status == 400


def test_a_drained_server_takes_nothing_until_it_resumes(server: Server) -> None:
    drained = server.ask("/admin/drain", b"")
    refused = server.ask("/v1/completions", {"prompt": PROMPT, **GREEDY})
    health = server.ask("/health")
    resumed = server.ask("/admin/resume", b"")

    assert drained.json == {"status": "drained"}
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert (health.status, health.json) == (200, {"status": "draining"})
    assert resumed.status == 200
    completion(server)


def test_a_checkpoint_accounts_for_every_pool(server: Server) -> None:
    completion(server)
    checkpoint = server.ask("/admin/checkpoint", b"").json

    assert checkpoint["idle"] is True
    assert (checkpoint["running"], checkpoint["violations"]) == (0, [])
    assert checkpoint["pools"].keys() == server.engine.pool_stats().keys()
    assert checkpoint["counters"]["finishes"] > 0
    assert checkpoint["heap_scan"]["error"] == ""


def test_only_this_machine_may_use_the_admin_addresses(server: Server) -> None:
    page = server.ask("/admin/drain", b"", headers={"Origin": "https://example.com"})

    assert page.status == 403
    assert server.ask("/admin/drain").status == 405
    assert server.ask("/health").json == {"status": "ok"}


def test_the_metrics_page_reports_when_the_engine_has_warmed_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    completion(server)
    before = server.metrics()[STEADY]

    monkeypatch.setattr(Engine, "is_steady", property(lambda engine: True))
    completion(server)

    assert (before, server.metrics()[STEADY]) == (0.0, 1.0)


def test_a_bug_is_an_answer_and_a_place_without_its_sentence(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "what the prompt says"

    def fail(*arguments: object, is_steady: bool) -> str:
        raise ValueError(sentence)

    monkeypatch.setattr("hybridbench.serve.api.render_page", fail)

    reply = server.ask("/metrics")

    assert (reply.status, reply.json["error"]["type"]) == (500, "server_error")
    printed = capsys.readouterr().err
    assert "ValueError" in printed
    assert "render_page" in printed
    assert sentence not in printed
