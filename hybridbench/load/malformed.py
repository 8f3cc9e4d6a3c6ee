"""Malformed requests: how to write each kind of ``Malformed`` on each interface."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from hybridbench.load.http_request import HttpRequest, Values
from hybridbench.records.json_value import JsonValue
from hybridbench.records.load import Api
from hybridbench.workload.actions import Malformed

_Spoil: TypeAlias = Callable[[HttpRequest, Values], None]
_PROMPT: Final[Mapping[Api, str]] = {
    "completions": "prompt",
    "ids": "prompt",
    "chat": "messages",
    "responses": "input",
    "generate": "input_ids",
}
# Too large for 32-bit integers; the last one also for 64-bit ones.
_HUGE: Final = (2**31, 2**63, 2**70)
# As deep as Python's recursion limit.
_DEEP: Final = 1000
_NO_NUMBERS: Final = (float("nan"), float("inf"), 1e308)


def spoil(request: HttpRequest, kind: Malformed, values: Values) -> None:
    """Make ``request`` malformed in the way that ``kind`` says."""
    # New names, so that a server that keeps anything of a refused request keeps more each time.
    names = ("extra_key", "rid") if request.api == "generate" else ("user", "cache_salt")
    request.set({name: values.name() for name in names})
    request.marks = (kind.value,)
    _SPOILS[kind](request, values)


def _unknown_method(request: HttpRequest, values: Values) -> None:
    request.method = values.one_of(("PATCH", "PUT", values.name().upper()))


def _unknown_path(request: HttpRequest, values: Values) -> None:
    # Addresses have their own limits; a large one tests HTTP, not the server.
    request.path = f"{request.path}/{values.name()}"


def _content_type(request: HttpRequest, values: Values) -> None:
    request.content_type = values.one_of(("text/plain", f"application/{values.name()}"))


def _cut_body(request: HttpRequest, values: Values) -> None:
    request.set({"user": values.text()})
    request.is_cut_off = True


def _bad_json(request: HttpRequest, values: Values) -> None:
    whole = msgspec.json.encode(request.fields)
    name = values.text().encode()
    ends = (b"", b"}}", b', "' + name, b', "' + name + b'": }', b", " + name + b"}")
    request.raw = whole[:-1] + values.one_of(ends)


def _deep_json(request: HttpRequest, values: Values) -> None:
    depth = max(_DEEP, len(values.text()) // 2)
    start = msgspec.json.encode(request.fields)[:-1]
    request.raw = start + b', "metadata": ' + b"[" * depth + b"]" * depth + b"}"


def _bad_unicode(request: HttpRequest, values: Values) -> None:
    """Add half of a surrogate pair, which JSON can write, or bytes that are not UTF-8."""
    bad = values.one_of((rb"\ud800", b"\xff\xfe", rb"\udc00\ud800"))
    text = b'"' + bad + values.text().encode() + b'"'
    prompts: Mapping[Api, bytes] = {
        "chat": b'"messages": [{"role": "user", "content": ' + text + b"}]",
        "responses": b'"input": ' + text,
        "generate": b'"text": ' + text,
    }
    for name in ("messages", "input", "input_ids", "prompt"):
        request.fields.pop(name, None)
    start = msgspec.json.encode(request.fields)[:-1]
    request.raw = start + b", " + prompts.get(request.api, b'"prompt": ' + text) + b"}"


def _wrong_type(request: HttpRequest, values: Values) -> None:
    text = values.text()
    wrong: tuple[JsonValue, ...] = (text, [text], {text: 1})
    names = [*request.fields, "stop", "seed", "logit_bias", "stream_options"]
    request.set({values.one_of(names): values.one_of(wrong)})


def _unknown_model(request: HttpRequest, values: Values) -> None:
    if request.api == "generate":
        name: JsonValue = values.text()
        request.set(values.one_of(({"lora_path": name}, {"session_params": {"id": name}})))
    else:
        request.set({"model": values.text()})


def _empty_prompt(request: HttpRequest, values: Values) -> None:
    empty: Mapping[Api, tuple[JsonValue, ...]] = {
        "chat": ([], [{"role": "user", "content": ""}], [{"role": "user", "content": []}], None),
        "responses": ([], "", None),
        "generate": ([], [[]], None),
    }
    choices = empty.get(request.api, ("", [], [""], [[]], None))
    request.fields[_PROMPT[request.api]] = values.one_of(choices)


def _bad_prompt(request: HttpRequest, values: Values) -> None:
    """Use token ids outside every vocabulary, mixed forms, or unknown roles and parts."""
    text = values.text()
    part: JsonValue = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}
    turns: tuple[JsonValue, ...] = (
        [{"role": text, "content": "a"}],
        [{"role": "user", "content": [{"type": text}]}],
        [{"role": "user", "content": [part]}],
        [{"content": text}],
        [text],
    )
    ids: tuple[JsonValue, ...] = ([1, -1], [1, values.one_of(_HUGE)], [1, text], [1.5], [[1], text])
    is_turns = request.api in ("chat", "responses")
    request.fields[_PROMPT[request.api]] = values.one_of(turns if is_turns else ids)


def _long_prompt(request: HttpRequest, values: Values) -> None:
    """Exceed the context many times over, even if ``values`` are not large."""
    length = values.whole(10_000, 1_000_000)
    text = f" {values.name()} word" * (length // 23)
    turns: JsonValue = [{"role": "user", "content": text}]
    ids: JsonValue = [7] * (length // 4)
    prompts: Mapping[Api, JsonValue] = {"chat": turns, "responses": text, "completions": text}
    request.fields[_PROMPT[request.api]] = prompts.get(request.api, ids)
    # Python's own encoder would delay the client.
    request.raw = msgspec.json.encode(request.fields)


def _long_output(request: HttpRequest, values: Values) -> None:
    names: Mapping[Api, str] = {"responses": "max_output_tokens", "generate": "max_new_tokens"}
    many = values.one_of((values.whole(10**6, 2**31 - 1), *_HUGE))
    request.set_sampling({names.get(request.api, "max_tokens"): many})


def _bad_sampling(request: HttpRequest, values: Values) -> None:
    huge: tuple[float, ...] = (*_NO_NUMBERS, *_HUGE)
    wrong = values.one_of((-values.number(0.01, 100), values.one_of(huge)))
    whole: float = values.one_of((-values.whole(2, 10**6), 0.5, *_HUGE))
    longest = "max_new_tokens" if request.api == "generate" else "max_tokens"
    choices: tuple[dict[str, JsonValue], ...] = (
        {"temperature": wrong},
        {"top_p": values.one_of((wrong, 0))},
        {"top_k": whole},
        {"min_p": wrong},
        {"presence_penalty": wrong},
        {"frequency_penalty": wrong},
        {"repetition_penalty": wrong},
        {"logit_bias": {str(values.one_of((-1, *_HUGE))): wrong}},
        {"logit_bias": {values.text(): 1}},
        {"seed": values.one_of((2**64, -(2**65), 0.5))},
        {"stop_token_ids": [values.one_of((-1, *_HUGE))]},
        {"min_tokens": whole, "min_new_tokens": whole},
        {longest: values.one_of((0, -1, 0.5))},
    )
    request.set_sampling(values.one_of(choices))
    # Write numbers that JSON lacks as Python and JavaScript do.
    request.raw = json.dumps(request.fields).encode()


def _bad_stop(request: HttpRequest, values: Values) -> None:
    text = values.text()
    wrong: tuple[JsonValue, ...] = (17, [17], "", [""], [[text]], {text: 1}, [text, None])
    request.set_sampling({"stop": values.one_of(wrong)})


def _bad_n(request: HttpRequest, values: Values) -> None:
    request.set_sampling({"n": values.one_of((0, -1, 1.5, values.text(), -(2**31)))})


def _bad_logprobs(request: HttpRequest, values: Values) -> None:
    counts: tuple[int | str, ...] = (-2, 10**6, 2**63, values.text())
    count = values.one_of(counts)
    choices: Mapping[Api, dict[str, JsonValue]] = {
        "chat": {"logprobs": True, "top_logprobs": count},
        "responses": {"top_logprobs": count, "include": ["message.output_text.logprobs"]},
        "generate": values.one_of(
            (
                {"return_logprob": True, "top_logprobs_num": count},
                {"return_logprob": True, "logprob_start_len": count},
                {"return_logprob": True, "token_ids_logprob": [count]},
            )
        ),
    }
    request.set(choices.get(request.api, {"logprobs": count}))


def _bad_format(request: HttpRequest, values: Values) -> None:
    """Use a schema, regular expression or grammar that cannot be compiled."""
    text = values.text()
    schema: JsonValue = {"type": text}
    choices: list[dict[str, JsonValue]] = [{"regex": f"({text}"}, {"ebnf": f"root ::= {text}"}]
    if request.api == "generate":
        choices += [{"json_schema": text}, {"json_schema": '{"type": "' + text + '"}'}]
    elif request.api == "responses":
        choices = [
            {"text": {"format": {"type": text}}},
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}},
        ]
    else:
        named: JsonValue = {"name": "a", "schema": schema}
        choices += [
            {"response_format": {"type": text}},
            {"response_format": {"type": "json_schema", "json_schema": named}},
            {"structured_outputs": {"regex": f"({text}"}},
            {"structured_outputs": {"choice": []}},
            {"structured_outputs": {"grammar": text}},
            {"grammar": text},
        ]
    request.set_sampling(values.one_of(choices))


_SPOILS: Final[Mapping[Malformed, _Spoil]] = {
    Malformed.UNKNOWN_METHOD: _unknown_method,
    Malformed.UNKNOWN_PATH: _unknown_path,
    Malformed.CONTENT_TYPE: _content_type,
    Malformed.CUT_BODY: _cut_body,
    Malformed.BAD_JSON: _bad_json,
    Malformed.DEEP_JSON: _deep_json,
    Malformed.BAD_UNICODE: _bad_unicode,
    Malformed.WRONG_TYPE: _wrong_type,
    Malformed.UNKNOWN_MODEL: _unknown_model,
    Malformed.EMPTY_PROMPT: _empty_prompt,
    Malformed.BAD_PROMPT: _bad_prompt,
    Malformed.LONG_PROMPT: _long_prompt,
    Malformed.LONG_OUTPUT: _long_output,
    Malformed.BAD_SAMPLING: _bad_sampling,
    Malformed.BAD_STOP: _bad_stop,
    Malformed.BAD_N: _bad_n,
    Malformed.BAD_LOGPROBS: _bad_logprobs,
    Malformed.BAD_FORMAT: _bad_format,
}
