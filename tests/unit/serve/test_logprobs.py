"""Logprobs in the three formats of clients, whole and streamed, against those of the engine.

The model is in float64, so that a cached prefix or a neighbour changes no logprob in float32.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hybridbench.engine.next_token import TokenLogprobs
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.load.logprobs import generated_tokens, tokens_in
from hybridbench.serve.tokens import chat_prompt, decode, encode
from tests.builders import run_to_idle
from tests.unit.serve.servers import Server, served
from tests.unit.worker.engines import make_engine

PROMPT = [5, 6, 7, 8, 9, 10, 11]
TOKENS = 5
# With these, most sampled tokens are not among the best.
DRAWN = {"temperature": 5.0, "seed": 3}
Output = tuple[list[int], list[TokenLogprobs]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(make_engine(dtype="float64")) as running:
        yield running


def engine_output(prompt: list[int], logprobs: int, **fields: Any) -> Output:
    """Return output tokens and their logprobs."""
    engine = make_engine(dtype="float64")
    params = SamplingParams(max_new_tokens=TOKENS, logprobs=logprobs, **{**DRAWN, **fields})
    engine.submit("a", prompt, params)
    (end,) = [event for event in run_to_idle(engine) if event.ends_request]
    return list(end.output_ids), list(end.logprobs)


def asked(server: Server, path: str, **fields: Any) -> Any:
    reply = server.ask(path, fields)
    assert reply.status == 200, reply.body
    return reply.events if fields.get("stream") else reply.json


def completion(server: Server, **fields: Any) -> Any:
    return asked(
        server, "/v1/completions", **{"prompt": PROMPT, "max_tokens": TOKENS, **DRAWN, **fields}
    )


def chat(server: Server, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "hi"}]
    fields = {"messages": messages, "max_tokens": TOKENS, **DRAWN, "logprobs": True, **fields}
    return asked(server, "/v1/chat/completions", **fields)


def generate(server: Server, **fields: Any) -> Any:
    sampling = {"max_new_tokens": TOKENS, "temperature": 5.0, "sampling_seed": 3}
    fields = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True, **fields}
    return asked(server, "/generate", **fields)


def of_text(output: Output, begin: int = 0) -> dict[str, Any]:
    """Return ``output`` in the format of OpenAI's completions."""
    ids, logprobs = output
    return {
        "tokens": [decode([id_]) for id_ in ids],
        "token_logprobs": [one.logprob for one in logprobs],
        "top_logprobs": [
            {decode([other]): value for other, value in [*one.best, (id_, one.logprob)]}
            for id_, one in zip(ids, logprobs, strict=True)
        ],
        "text_offset": list(range(begin, begin + len(ids))),
    }


@pytest.mark.parametrize("count", [0, 1, 20])
def test_a_completion_has_the_logprobs_of_the_engine(server: Server, count: int) -> None:
    expected = of_text(engine_output(PROMPT, count))

    (choice,) = completion(server, logprobs=count)["choices"]

    assert choice["logprobs"] == expected
    text, offsets = choice["text"], choice["logprobs"]["text_offset"]
    assert [text[offset] for offset in offsets] == choice["logprobs"]["tokens"]
    # At least one emitted token is not among the best, and is listed nevertheless.
    sizes = set(map(len, choice["logprobs"]["top_logprobs"]))
    assert sizes <= {count, count + 1}
    assert count + 1 in sizes


def test_the_parts_of_a_stream_have_the_logprobs_of_their_own_tokens(server: Server) -> None:
    prompts = [PROMPT, PROMPT[:4]]
    expected = [of_text(engine_output(prompt, 3)) for prompt in prompts]

    parts = completion(server, prompt=prompts, logprobs=3, stream=True, return_token_ids=True)

    for index in range(2):
        own = [part["choices"][0] for part in parts if part["choices"][0]["index"] == index]
        assert len(own) > 1
        assert all(len(one["logprobs"]["tokens"]) == len(one["token_ids"]) for one in own)
        merged = {
            name: [value for one in own for value in one["logprobs"][name]]
            for name in expected[index]
        }
        assert merged == expected[index]


def test_tokens_can_be_named_by_their_ids(server: Server) -> None:
    ids, logprobs = engine_output(PROMPT, 2)

    (choice,) = completion(server, logprobs=2, return_tokens_as_token_ids=True)["choices"]
    (turn,) = chat(server, top_logprobs=1, return_tokens_as_token_ids=True)["choices"]

    assert choice["logprobs"]["tokens"] == [f"token_id:{id_}" for id_ in ids]
    assert list(choice["logprobs"]["top_logprobs"][0])[:2] == [
        f"token_id:{id_}" for id_, _ in logprobs[0].best
    ]
    for one in turn["logprobs"]["content"]:
        for named in (one, *one["top_logprobs"]):
            text = bytes(named["bytes"]).decode()
            assert named["token"] == f"token_id:{encode(text, 2**20)[0]}"


@pytest.mark.parametrize("count", [None, 0, 2])
def test_a_chat_has_the_logprobs_of_the_engine(server: Server, count: int | None) -> None:
    prompt = encode(chat_prompt([("user", "hi")]), server.engine.model_config.vocab_size)
    ids, logprobs = engine_output(prompt, count or 0)

    def named(id_: int, logprob: float) -> dict[str, Any]:
        text = decode([id_])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    expected = [
        {**named(id_, one.logprob), "top_logprobs": [named(*other) for other in one.best]}
        for id_, one in zip(ids, logprobs, strict=True)
    ]
    (choice,) = chat(server, top_logprobs=count)["choices"]
    parts = [part["choices"][0] for part in chat(server, top_logprobs=count, stream=True)]

    assert choice["logprobs"] == {"content": expected}
    assert len(parts) > 1
    assert [one for part in parts for one in part["logprobs"]["content"]] == expected


def test_generate_has_the_logprobs_of_the_engine(server: Server) -> None:
    ids, logprobs = engine_output(PROMPT, 2)
    chosen: list[list[Any]] = [
        [one.logprob, id_, None] for id_, one in zip(ids, logprobs, strict=True)
    ]
    best: list[list[list[Any]]] = [
        [[value, id_, None] for id_, value in one.best] for one in logprobs
    ]

    plain = generate(server)["meta_info"]
    texts = generate(server, top_logprobs_num=2, return_text_in_logprobs=True)["meta_info"]
    several = generate(server, input_ids=[PROMPT[:4], PROMPT], top_logprobs_num=2)
    parts = generate(server, top_logprobs_num=2, stream=True)
    unasked = generate(server, return_logprob=False, top_logprobs_num=2)["meta_info"]

    assert plain["output_token_logprobs"] == chosen
    assert "output_top_logprobs" not in plain
    assert texts["output_token_logprobs"] == [[a, id_, decode([id_])] for a, id_, _ in chosen]
    assert texts["output_top_logprobs"] == [
        [[value, id_, decode([id_])] for value, id_, _ in row] for row in best
    ]
    assert [one["index"] for one in several] == [0, 1]
    assert several[1]["meta_info"]["output_top_logprobs"] == best
    assert several[0]["meta_info"]["output_top_logprobs"] != best
    assert len(parts) > 1
    for part in parts:
        count = len(part["output_ids"])
        assert part["meta_info"]["output_token_logprobs"] == chosen[:count]
        assert part["meta_info"]["output_top_logprobs"] == best[:count]
    assert not {"output_token_logprobs", "output_top_logprobs"} & set(unasked)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_token_that_is_not_shown_has_no_logprobs(server: Server, stream: bool) -> None:
    ids, logprobs = engine_output(PROMPT, 1)
    stop = {"stop_token_ids": [ids[2]], "stream": stream}
    sampling = {"max_new_tokens": TOKENS, "temperature": 5.0, "sampling_seed": 3}

    answers = completion(server, logprobs=1, **stop)
    generated = generate(
        server, sampling_params={**sampling, "stop_token_ids": [ids[2]]}, stream=stream
    )

    choices = [one["choices"][0]["logprobs"] for one in (answers if stream else [answers])]
    last = generated[-1] if stream else generated
    expected = [one.logprob for one in logprobs[:2]]
    assert [value for one in choices for value in one["token_logprobs"]] == expected
    assert [value for value, *_ in last["meta_info"]["output_token_logprobs"]] == expected


def test_a_turn_of_a_session_has_the_logprobs_of_the_whole_conversation(server: Server) -> None:
    (ids, _) = engine_output(PROMPT, 2)
    expected = engine_output([*PROMPT, *ids, 40], 2)
    session = {"session_params": {"id": server.ask("/open_session", {}).json}}

    completion(server, logprobs=2, **session)
    (choice,) = completion(server, prompt=[40], logprobs=2, **session)["choices"]

    assert choice["logprobs"] == of_text(expected)


def test_a_request_without_logprobs_gets_none(server: Server) -> None:
    (choice,) = completion(server)["choices"]
    (turn,) = chat(server, logprobs=False, top_logprobs=0)["choices"]
    parts = completion(server, stream=True)

    assert (choice["logprobs"], turn["logprobs"]) == (None, None)
    assert {part["choices"][0]["logprobs"] for part in parts} == {None}


def test_the_load_client_reads_every_form(server: Server) -> None:
    greedy = {"temperature": 0}
    by_id = completion(server, logprobs=4, return_tokens_as_token_ids=True, **greedy)
    turn = chat(server, top_logprobs=4, **greedy)
    meta = generate(server, top_logprobs_num=4, sampling_params={**greedy, "max_new_tokens": 5})[
        "meta_info"
    ]
    openai = [json.dumps(answer["choices"][0]["logprobs"]).encode() for answer in (by_id, turn)]
    own = [json.dumps(meta[f"output_{name}_logprobs"]).encode() for name in ("token", "top")]

    for tokens in (*map(tokens_in, openai), generated_tokens(*own)):
        assert len(tokens) == TOKENS
        assert all(len(token.others) == 4 for token in tokens)
        # The best token is more likely than the next.
        assert all(token.gap is not None and token.gap > 0 for token in tokens)
    assert tokens_in(openai[0]) == generated_tokens(*own)


TEXT = {"prompt": "a"}
TURN = {"messages": [{"role": "user", "content": "a"}]}
OWN = {"text": "a"}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {**TEXT, "logprobs": 21}, "logprobs"),
        ("/v1/completions", {**TEXT, "logprobs": -1}, "logprobs"),
        ("/v1/completions", {**TEXT, "logprobs": "1"}, "logprobs"),
        ("/v1/completions", {**TEXT, "logprobs": True}, "logprobs"),
        ("/v1/completions", {**TEXT, "logprobs": 1.5}, "logprobs"),
        ("/v1/completions", {**TEXT, "logprobs": 10**30}, "logprobs"),
        ("/v1/completions", {**TEXT, "logprobs": 1, "echo": True}, "echo"),
        ("/v1/completions", {**TEXT, "prompt_logprobs": 1}, "prompt_logprobs"),
        ("/v1/completions", {**TEXT, "prompt_logprobs": 0}, "prompt_logprobs"),
        (
            "/v1/completions",
            {**TEXT, "logprobs": 1, "return_tokens_as_token_ids": "yes"},
            "return_tokens_as_token_ids",
        ),
        ("/v1/chat/completions", {**TURN, "logprobs": 1}, "logprobs"),
        ("/v1/chat/completions", {**TURN, "logprobs": "yes"}, "logprobs"),
        ("/v1/chat/completions", {**TURN, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/chat/completions", {**TURN, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ("/v1/chat/completions", {**TURN, "logprobs": True, "top_logprobs": "2"}, "top_logprobs"),
        ("/v1/chat/completions", {**TURN, "top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {**TURN, "prompt_logprobs": 1}, "prompt_logprobs"),
        ("/generate", {**OWN, "return_logprob": 1}, "return_logprob"),
        ("/generate", {**OWN, "top_logprobs_num": 21}, "top_logprobs_num"),
        ("/generate", {**OWN, "top_logprobs_num": -1}, "top_logprobs_num"),
        ("/generate", {**OWN, "top_logprobs_num": "1"}, "top_logprobs_num"),
        ("/generate", {**OWN, "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len"),
        ("/generate", {**OWN, "token_ids_logprob": [1]}, "token_ids_logprob"),
    ],
)
def test_what_cannot_be_is_refused(
    server: Server, path: str, fields: dict[str, Any], param: str
) -> None:
    reply = server.ask(path, fields)

    assert reply.status == 400
    assert reply.json["error"]["param"] == param
