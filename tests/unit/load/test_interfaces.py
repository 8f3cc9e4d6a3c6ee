"""Reading what servers answer, line by line."""

from __future__ import annotations

import json

import pytest

from hybridbench.load.interfaces import (
    Answer,
    Interface,
    NoAnswerError,
    RefusedError,
    first_model,
)
from hybridbench.load.texts import answer_ids
from hybridbench.records.load import Api
from hybridbench.records.messages import OpenSession, Sampling, Submit


def streamed(api: Api, *events: object) -> Answer:
    answer = Answer()
    for event in events:
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        Interface(api, "m", stream=True).read_line(b"data: " + data + b"\n", answer)
    return answer


def test_a_stream_of_completions() -> None:
    answer = streamed(
        "completions",
        {"choices": [{"text": " a", "finish_reason": None}], "usage": None},
        {"choices": [{"text": " b", "finish_reason": "length"}]},
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}},
        b"[DONE]",
    )

    assert (answer.pieces, answer.chunks, answer.tokens) == ([" a", " b"], 2, 3)
    assert (answer.input_tokens, answer.reason, answer.over) == (9, "length", True)


@pytest.mark.parametrize("count", [-4, 10**30])
def test_a_count_that_no_answer_can_have_is_not_taken(count: int) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": count}
    answer = streamed("completions", {"choices": [{"text": " a"}]}, {"usage": usage})
    meta = {**usage, "finish_reason": {"type": "stop"}}
    generated = streamed("generate", {"text": "a", "output_ids": [5], "meta_info": meta})

    assert (answer.input_tokens, answer.tokens) == (None, 1)
    assert (generated.input_tokens, generated.tokens) == (None, 1)


@pytest.mark.parametrize(
    "line", [b": ping\n", b"event: ping\r\n", b"data:\n", b"data: \r\n", b"\n"]
)
def test_a_line_without_data_is_no_part_of_an_answer(line: bytes) -> None:
    answer = Answer()

    assert not Interface("completions", "m", stream=True).read_line(line, answer)
    assert answer == Answer()


def test_a_chunk_of_a_chat_without_text_is_no_token() -> None:
    answer = streamed(
        "chat",
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    )

    assert (answer.chunks, answer.tokens, answer.reason) == (1, 1, "stop")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_the_reasoning_before_an_answer_counts_by_any_of_its_names(field: str) -> None:
    answer = streamed(
        "chat",
        {"choices": [{"delta": {field: "a"}}]},
        {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]},
    )

    assert (answer.pieces, answer.tokens) == (["a", "b"], 2)


def test_the_reasoning_of_responses_counts_in_a_stream_as_in_a_whole_answer() -> None:
    done = {"type": "response.completed", "response": {"status": "completed"}}
    answer = streamed(
        "responses",
        {"type": "response.reasoning_text.delta", "delta": "a"},
        {"type": "response.output_text.delta", "delta": "b"},
        done,
    )

    assert (answer.pieces, answer.tokens) == (["a", "b"], 2)


def test_a_stream_of_responses_ends_with_its_event() -> None:
    usage = {"input_tokens": 5, "output_tokens": 2}
    answer = streamed(
        "responses",
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.output_text.delta", "delta": "ab"},
        {"type": "response.completed", "response": {"status": "completed", "usage": usage}},
    )

    assert (answer.pieces, answer.tokens, answer.input_tokens) == (["ab"], 2, 5)
    assert answer.over


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"error": {"message": "out of memory", "code": 500}}, "error-in-answer"),
        ({"object": "error", "message": "out of memory", "code": 500}, "error-in-answer"),
        ({"type": "error", "message": "out of memory", "code": "server_error"}, "error-in-answer"),
        ({"choices": [{"text": "", "finish_reason": "abort"}]}, "given-up"),
        (b'{"choices": [{"te', "protocol"),
        (b"[1]", "protocol"),
        ({"type": "response.failed", "response": {"status": "failed"}}, "given-up"),
    ],
)
def test_what_is_no_answer_says_what_it_is(event: object, kind: str) -> None:
    with pytest.raises(NoAnswerError) as raised:
        streamed("completions", event)

    assert raised.value.kind == kind


@pytest.mark.parametrize(
    ("api", "whole"),
    [
        ("completions", {"choices": [{"text": "ab", "finish_reason": "length"}]}),
        ("chat", {"choices": [{"message": {"content": "ab"}, "finish_reason": "length"}]}),
        ("responses", {"status": "completed", "output": [{"content": [{"text": "ab"}]}]}),
        (
            "responses",
            {
                "status": "completed",
                "output": [{"content": [{"text": "ab"}]}],
                "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}},
            },
        ),
    ],
)
def test_an_answer_that_comes_at_once(api: Api, whole: object) -> None:
    answer = Answer()

    interface = Interface(api, "m", stream=False)
    interface.read_whole(json.dumps(whole).encode(), answer)

    assert interface.continuation(answer) == answer_ids("ab")


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"choices": []}'])
def test_a_page_is_no_answer(body: bytes) -> None:
    with pytest.raises(NoAnswerError):
        Interface("chat", "m", stream=False).read_whole(body, Answer())


def test_answers_in_ids_go_on_with_ids_and_with_as_many_where_there_are_none() -> None:
    interface = Interface("ids", "m", stream=True)
    given = streamed("ids", {"choices": [{"text": " a", "token_ids": [300, 4]}]})
    withheld = streamed("ids", {"choices": [{"text": "ab"}]}, {"choices": [{"text": "cdef"}]})

    assert interface.continuation(given) == [300, 4]
    assert len(interface.continuation(withheld)) == 2


@pytest.mark.parametrize(
    ("owner", "reason", "counted", "said"),
    [
        ("vllm", "length", 3, "got 2 of the 3 tokens that the server counts"),
        ("vllm", "length", 2, ""),
        ("vllm", "stop", 3, ""),  # the last token may be one that ends it
        ("unknown", "length", 3, ""),
    ],
)
def test_a_token_that_the_server_counts_and_does_not_send_is_lost(
    owner: str, reason: str, counted: int, said: str
) -> None:
    choice = {"text": "ab", "token_ids": [300, 4], "finish_reason": reason}
    answer = streamed("ids", {"choices": [choice]}, {"usage": {"completion_tokens": counted}})
    interface = Interface("ids", "m", stream=True)
    interface.owner = owner

    assert interface.lost_tokens(answer) == said


def test_a_body_has_what_was_asked_for_and_no_more() -> None:
    request = Submit("r1", [1, 2], Sampling(7, 0.5, top_k=20, top_p=0.9, seed=3), extra_key="t1")

    body = json.loads(Interface("ids", "m", stream=True).request(request).body)
    again = json.loads(Interface("ids", "m", stream=True).request(request).body)

    # A server may still have what an earlier run computed for its tenant of this name.
    salt = body.pop("cache_salt")
    assert salt.endswith("-t1")
    assert salt != again["cache_salt"]
    assert body == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "return_token_ids": True,
    }


def test_the_first_model_of_a_list() -> None:
    assert first_model(b'{"data": [{"id": "a", "owned_by": "vllm"}, {"id": "b"}]}') == ("a", "vllm")
    assert first_model(b'{"data": [{"id": "a"}]}') == ("a", "")
    assert first_model(b'{"data": [{"id": "a", "owned_by": null}]}') == ("a", "")
    for body in (b'{"data": []}', b"{}", b"<html>"):
        with pytest.raises(NoAnswerError):
            first_model(body)


def generated(text: str, ids: list[int], tokens: int, **finish: object) -> dict[str, object]:
    meta = {"prompt_tokens": 5, "completion_tokens": tokens, "finish_reason": finish or None}
    return {"text": text, "output_ids": ids, "meta_info": meta}


@pytest.mark.parametrize(
    "events",
    [
        # The whole text so far, as SGLang sends by default, or only what is new.
        [generated("a", [1], 1), generated("abc", [1, 2, 3], 3)],
        [generated("a", [1], 1), generated("bc", [2, 3], 3)],
    ],
    ids=["all", "new"],
)
def test_a_stream_of_generate(events: list[object]) -> None:
    last = generated("abc", [1, 2, 3], 3, type="length", length=3)
    answer = streamed("generate", *events, last, b"[DONE]")

    assert (answer.ids, answer.tokens, answer.chunks) == ([1, 2, 3], 3, 2)
    assert (answer.input_tokens, answer.reason, answer.over) == (5, "length", True)
    assert Interface("generate", "", stream=True).continuation(answer) == [1, 2, 3]


def test_of_several_answers_a_conversation_goes_on_with_the_first() -> None:
    whole = [{**generated("ab", [1, 2], 2, type="stop"), "index": 0}, generated("c", [3], 1)]
    whole[1]["index"] = 1
    answer = Answer()
    Interface("generate", "", stream=False).read_whole(json.dumps(whole).encode(), answer)
    assert answer.ids == [1, 2]

    chunks = [{"index": 1, "text": "x"}, {"index": 0, "text": "a"}, {"index": 1, "text": "y"}]
    answer = streamed("completions", *({"choices": [chunk]} for chunk in chunks))
    assert answer.pieces == ["a"]
    assert answer.chunks == 3


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({"error": {"message": "too long", "type": "BadRequestError", "code": 400}}, "400"),
        ({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}, "400"),
        (generated("", [], 0, type="abort", message="too long", status_code=400), "400"),
    ],
)
def test_a_stream_may_say_that_the_request_was_wrong(event: object, status: str) -> None:
    with pytest.raises(RefusedError) as raised:
        streamed("generate", event)

    assert raised.value.kind == status


def test_an_abort_that_is_nobodys_fault_is_no_answer() -> None:
    with pytest.raises(NoAnswerError) as raised:
        streamed("generate", generated("", [], 0, type="abort", status_code=500))

    assert not isinstance(raised.value, RefusedError)


def test_a_turn_of_a_session_names_it_as_its_opening_did() -> None:
    interface = Interface("generate", "", stream=True)
    turn = interface.request(Submit("r1", [1, 2], Sampling(7), session_id="s1", extra_key="t1"))
    opening = interface.open_session(OpenSession("s1", 2.5))
    closing = interface.close_session("s1")

    name = opening.fields["session_id"]
    body = json.loads(turn.body)
    assert body.pop("extra_key").endswith("-t1")
    assert body == {
        "input_ids": [1, 2],
        "sampling_params": {"max_new_tokens": 7, "temperature": 0.0, "ignore_eos": True},
        "stream": True,
        "session_params": {"id": name},
    }
    assert turn.path == "/generate"
    assert (opening.path, opening.fields["timeout"]) == ("/open_session", 2.5)
    assert (closing.path, closing.fields) == ("/close_session", {"session_id": name})
    # Another run of the same profile must not use the same sessions.
    other = Interface("generate", "", stream=True).close_session("s1")
    assert other.fields["session_id"] != name
