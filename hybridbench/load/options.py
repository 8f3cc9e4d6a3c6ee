"""Request options: which interface has which, and how to draw their values.

Each row is one option, with its name in reports.  Fields are those of OpenAI's interfaces, vLLM,
SGLang and llama.cpp; a server ignores unknown fields or refuses the request.  To add an option, add
a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from hybridbench.load.http_request import HttpRequest, Values
from hybridbench.records.json_value import JsonValue
from hybridbench.records.load import Api

Fields: TypeAlias = Mapping[str, JsonValue]

_TEXT: Final[frozenset[Api]] = frozenset({"completions", "ids"})
_CHAT: Final[frozenset[Api]] = frozenset({"chat"})
_RESPONSES: Final[frozenset[Api]] = frozenset({"responses"})
_GENERATE: Final[frozenset[Api]] = frozenset({"generate"})
_ASKS: Final = _TEXT | _CHAT
_OPENAI: Final = _ASKS | _RESPONSES
_ALL: Final = _OPENAI | _GENERATE
# Smaller than every vocabulary.
_TOKEN_MOST: Final = 127


@dataclass(frozen=True)
class Option:
    """One row.

    Args:
        apis: the interfaces that have the option.
        draw: draws its fields, with new values for every request.
        is_sampling: whether it is a sampling parameter, which ``/generate`` keeps apart.
    """

    name: str
    apis: frozenset[Api]
    draw: Callable[[Values], Fields]
    is_sampling: bool = False


def add_options(
    request: HttpRequest, values: Values, count: int, without: Collection[str] = ()
) -> None:
    """Add ``count`` random options to ``request``, or all that its interface has.

    Options in ``without`` are never used.
    """
    having = [o for o in OPTIONS if request.api in o.apis and o.name not in without]
    chosen = values.some_of(having, count)
    for option in chosen:
        fields = option.draw(values)
        if option.is_sampling:
            request.set_sampling(fields)
        else:
            request.set(fields)
    if not request.streams:
        # Servers refuse it without streaming.
        request.fields.pop("stream_options", None)
    request.marks = tuple(sorted(option.name for option in chosen))


def _of_sampling(
    name: str, draw: Callable[[Values], JsonValue], apis: frozenset[Api] = _ASKS | _GENERATE
) -> Option:
    """Define a sampling parameter with one field, named like the option."""
    return Option(name, apis, lambda values: {name: draw(values)}, is_sampling=True)


def _field(name: str, apis: frozenset[Api], draw: Callable[[Values], JsonValue]) -> Option:
    """Define an option with one field of the same name."""
    return Option(name, apis, lambda values: {name: draw(values)})


def _schema(values: Values) -> dict[str, JsonValue]:
    """Draw a schema of an object with one property; servers compile it and cache it by its text."""
    kind = values.one_of(("string", "integer", "boolean", "number"))
    name = values.name()
    return {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}


def _regex(values: Values) -> str:
    return f"({values.name()}|[a-z]{{1,{values.whole(1, 8)}}})"


def _grammar(values: Values) -> str:
    return f'root ::= "{values.name()}" | "{values.name()}"'


def _function(values: Values) -> dict[str, JsonValue]:
    return {"name": values.name(), "parameters": _schema(values)}


def _biases(values: Values) -> JsonValue:
    return {str(values.whole(0, _TOKEN_MOST)): values.whole(-100, 100) for _ in range(3)}


def _stop(values: Values) -> JsonValue:
    # Either a text that never occurs, or two of several texts, most of which may occur by chance.
    return values.one_of((values.name(), values.some_of(["e", " ", "in", values.name()], 2)))


def _tools(values: Values) -> Fields:
    function = _function(values)
    by_name: JsonValue = {"type": "function", "function": {"name": function["name"]}}
    choice = values.one_of(("none", "auto", "required", by_name))
    return {"tools": [{"type": "function", "function": function}], "tool_choice": choice}


def _response_format(values: Values) -> Fields:
    if values.flag():
        return {"response_format": {"type": "json_object"}}
    schema: JsonValue = {"name": values.name(), "schema": _schema(values)}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _structured(values: Values) -> Fields:
    kinds: tuple[dict[str, JsonValue], ...] = (
        {"json": _schema(values)},
        {"regex": _regex(values)},
        {"choice": [values.name(), values.name()]},
        {"grammar": _grammar(values)},
    )
    return {"structured_outputs": values.one_of(kinds)}


def _usage(values: Values) -> Fields:
    return {"stream_options": {"include_usage": values.flag(), "continuous_usage_stats": True}}


def _chat_logprobs(values: Values) -> Fields:
    return {"logprobs": True, "top_logprobs": values.whole(0, 5)}


def _generate_logprobs(values: Values) -> Fields:
    return {
        "return_logprob": True,
        "logprob_start_len": values.one_of((-1, 0)),
        "top_logprobs_num": values.whole(0, 5),
    }


def _responses_logprobs(values: Values) -> Fields:
    return {"top_logprobs": values.whole(1, 5), "include": ["message.output_text.logprobs"]}


def _responses_tools(values: Values) -> Fields:
    return {
        "tools": [{"type": "function", **_function(values)}],
        "tool_choice": values.one_of(("none", "auto", "required")),
    }


def _text_format(values: Values) -> Fields:
    kind: JsonValue = {"type": "json_schema", "name": values.name(), "schema": _schema(values)}
    return {"text": {"format": kind}}


def _llamacpp_samplers(values: Values) -> Fields:
    return {
        "mirostat": values.whole(0, 2),
        "dry_multiplier": values.number(0, 1),
        "xtc_probability": values.number(0, 1),
        "dynatemp_range": values.number(0, 1),
        "typical_p": values.number(0.1, 1),
    }


OPTIONS: Final[tuple[Option, ...]] = (
    # How many answers, and how they are sent.
    _of_sampling("n", lambda v: v.whole(2, 3)),
    Option("best_of", _TEXT, lambda v: {"n": 1, "best_of": v.whole(2, 3)}),
    _field("stream", _ALL, lambda v: v.flag()),
    Option("include_usage", _ASKS, _usage),
    _field("echo", _TEXT, lambda v: True),
    _field("suffix", _TEXT, lambda v: v.name()),
    # Where answers end.
    _of_sampling("stop", _stop),
    _of_sampling("stop_token_ids", lambda v: [v.whole(0, _TOKEN_MOST) for _ in range(4)]),
    _of_sampling("min_tokens", lambda v: v.whole(1, v.most_tokens), _ASKS),
    _of_sampling("min_new_tokens", lambda v: v.whole(1, v.most_tokens), _GENERATE),
    _of_sampling("ignore_eos", lambda v: False),
    _of_sampling("include_stop_str_in_output", lambda v: v.flag(), _ASKS),
    _of_sampling("no_stop_trim", lambda v: v.flag(), _GENERATE),
    _of_sampling("stop_regex", _regex, _GENERATE),
    Option("max_completion_tokens", _CHAT, lambda v: {"max_completion_tokens": v.most_tokens}),
    # How tokens are chosen.
    _of_sampling("seed", lambda v: v.whole(0, 2**31 - 1), _ASKS),
    _of_sampling("sampling_seed", lambda v: v.whole(0, 2**31 - 1), _GENERATE),
    _of_sampling("min_p", lambda v: v.number(0, 0.5)),
    _of_sampling("presence_penalty", lambda v: v.number(-2, 2)),
    _of_sampling("frequency_penalty", lambda v: v.number(-2, 2)),
    _of_sampling("repetition_penalty", lambda v: v.number(0.8, 1.3)),
    _of_sampling("logit_bias", _biases),
    _of_sampling("allowed_token_ids", lambda v: [v.whole(0, _TOKEN_MOST) for _ in range(8)], _ASKS),
    _of_sampling("bad_words", lambda v: [v.name(), "the"], _ASKS),
    Option("samplers", _ASKS, _llamacpp_samplers),
    # Structured output: every value is compiled, and most servers keep what they compiled.
    Option("response_format", _ASKS, _response_format),
    Option("text_format", _RESPONSES, _text_format),
    Option("structured_outputs", _OPENAI, _structured),
    _of_sampling("regex", _regex),
    _of_sampling("ebnf", _grammar),
    _of_sampling("json_schema", lambda v: str(_schema(v)).replace("'", '"'), _GENERATE),
    _field("grammar", _ASKS, _grammar),
    Option("tools", _CHAT, _tools),
    Option("tools", _RESPONSES, _responses_tools),
    _field("parallel_tool_calls", _CHAT | _RESPONSES, lambda v: v.flag()),
    # Extra output beside the text.
    _field("logprobs", _TEXT, lambda v: v.whole(0, 5)),
    Option("logprobs", _CHAT, _chat_logprobs),
    Option("logprobs", _RESPONSES, _responses_logprobs),
    Option("logprobs", _GENERATE, _generate_logprobs),
    _field("token_ids_logprob", _GENERATE, lambda v: [v.whole(0, _TOKEN_MOST) for _ in range(3)]),
    _field("prompt_logprobs", _ASKS, lambda v: v.whole(0, 3)),
    _field("n_probs", _ASKS, lambda v: v.whole(1, 5)),
    _field("return_token_ids", _ASKS, lambda v: v.flag()),
    _field("return_tokens_as_token_ids", _ASKS, lambda v: v.flag()),
    _of_sampling("skip_special_tokens", lambda v: v.flag()),
    # How the prompt is read.
    _field("add_special_tokens", _ASKS, lambda v: v.flag()),
    _field("truncate_prompt_tokens", _ASKS, lambda v: v.whole(1, 64)),
    _field("chat_template_kwargs", _CHAT, lambda v: {v.name(): v.flag()}),
    _field("reasoning_effort", _CHAT, lambda v: v.one_of(("low", "medium", "high"))),
    _field("instructions", _RESPONSES, lambda v: v.name()),
    _field("truncation", _RESPONSES, lambda v: v.one_of(("auto", "disabled"))),
    # The user, and data stored for them: a new name each time.
    _field("user", _OPENAI, lambda v: v.name()),
    _field("metadata", _CHAT | _RESPONSES, lambda v: {v.name(): v.name()}),
    _field("store", _RESPONSES, lambda v: v.flag()),
    _field("request_id", _OPENAI, lambda v: v.name()),
    _field("rid", _GENERATE, lambda v: v.name()),
    _field("cache_salt", _ALL, lambda v: v.name()),
    _field("extra_key", _GENERATE, lambda v: v.name()),
    _field("prompt_cache_key", _RESPONSES, lambda v: v.name()),
    _field("cache_prompt", _ASKS, lambda v: v.flag()),
    _field("priority", _ALL, lambda v: v.whole(-5, 5)),
)
