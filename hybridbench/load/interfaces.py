"""The interfaces of OpenAI-compatible servers: what a request says, and what an answer has.

Only what every server of the field takes is sent, and of an answer only what is counted is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final

import msgspec

from hybridbench.load.logprobs import Token, tokens_in
from hybridbench.load.texts import answer_ids, as_messages, as_text
from hybridbench.records.json_value import JsonValue
from hybridbench.records.load import Api
from hybridbench.records.messages import ALL_TOKENS, Submit

_PATHS: Final[Mapping[Api, str]] = {
    "completions": "/v1/completions",
    "ids": "/v1/completions",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
}
_DONE: Final = b"[DONE]"
# The word by which a request leaves out what is cached, by who made the server: a key that no other
# request has, or llama.cpp's word for it.
_LLAMA: Final = "llamacpp"
_COLD: Final = {
    "vllm": "cache_salt",
    "sglang": "extra_key",
    "hybridbench": "cache_salt",
    _LLAMA: "cache_prompt",
}
# Tokens whose probability is asked for at each place.
_LIKELIEST: Final = 10
# Reasons of an end that is none of the model's.
_GIVEN_UP: Final = frozenset({"abort", "error", "failed", "cancelled"})


class NoAnswerError(Exception):
    """What came is no answer of this interface; ``kind`` says in a word why."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    logprobs: msgspec.Raw = msgspec.Raw()
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Content(msgspec.Struct):
    text: str | None = None


class _Item(msgspec.Struct):
    content: list[_Content] | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    output: list[_Item] | None = None
    usage: _Usage | None = None


class _Chunk(msgspec.Struct):
    """A chunk of a stream, or a whole answer, of any of the interfaces."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: object = None
    type: str | None = None
    delta: str | None = None
    response: _Response | None = None
    status: str | None = None
    output: list[_Item] | None = None


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


_MODELS: Final = msgspec.json.Decoder(_Models)
_CHUNK: Final = msgspec.json.Decoder(_Chunk)


@dataclass
class Answer:
    """What has come of an answer so far.

    Args:
        pieces: its text, in the chunks that came.
        ids: its token ids, if the server gives them.
        chunks: chunks that had some of it.
        input_tokens, output_tokens: as the server counts them; None before it has said.
        cached_tokens: of the prompt, taken from the server's cache; None where it does not say.
        logprobs: of its tokens, if they were asked for.
        reason: why it ended; empty while it has not.
        over: whether nothing more is to come.
    """

    pieces: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    chunks: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    logprobs: list[Token] = field(default_factory=list)
    reason: str = ""
    over: bool = False

    @property
    def tokens(self) -> int:
        """How many tokens it has; of a server that does not count them, one a chunk."""
        if self.output_tokens is not None:
            return self.output_tokens
        return len(self.ids) or self.chunks


class Interface:
    """One interface of a server.

    Args:
        api: which.
        model: the name that the server knows.
        owner: who made the server, as its list of models says.
        stream: whether answers come token by token.
    """

    def __init__(self, api: Api, model: str, *, stream: bool) -> None:
        self._api: Api = api
        self.model = model
        self.owner = ""
        self.streams = stream
        self.path = _PATHS[api]

    def body(self, request: Submit) -> bytes:
        """The request as JSON."""
        return msgspec.json.encode(self._said(request))

    @property
    def not_repeated(self) -> str:
        """Why no answer can be asked for again without the server's cache; empty where it can."""
        if self._api == "responses":
            return "interface"
        return "" if self.owner in _COLD else "no-cold-way"

    def cold_body(self, request: Submit, *, logprobs: bool) -> bytes:
        """The request as JSON, to be computed without anything from the server's cache."""
        said = self._said(request) | {_COLD[self.owner]: _cold_value(self.owner)}
        if logprobs and self._api == "chat":
            said |= {"logprobs": True, "top_logprobs": _LIKELIEST}
        elif logprobs:
            said |= {"logprobs": _LIKELIEST, "return_tokens_as_token_ids": self._api == "ids"}
        return msgspec.json.encode(said)

    def _said(self, request: Submit) -> dict[str, JsonValue]:
        sampling = request.sampling
        said: dict[str, JsonValue] = {"model": self.model, **self._prompt(request)}
        longest = "max_output_tokens" if self._api == "responses" else "max_tokens"
        said |= {
            longest: sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "stream": self.streams,
        }
        if sampling.temperature:
            said["top_p"] = sampling.top_p
            if sampling.top_k != ALL_TOKENS:
                said["top_k"] = sampling.top_k
        if self._api != "responses":
            # Not of OpenAI, and known to vLLM, SGLang and llama.cpp: answers as long as asked for.
            said["ignore_eos"] = sampling.ignore_eos
            if sampling.stop_token_ids and self._api == "ids":
                said["stop_token_ids"] = list(sampling.stop_token_ids)
            if self.streams:
                said["stream_options"] = {"include_usage": True}
        if self._api == "ids":
            said["return_token_ids"] = True
        if request.extra_key:
            said["cache_salt"] = request.extra_key
        return said

    def _prompt(self, request: Submit) -> dict[str, JsonValue]:
        ids = request.input_ids
        if self._api == "ids":
            return {"prompt": list(ids)}
        if self._api == "completions":
            return {"prompt": as_text(ids)}
        messages: list[JsonValue] = [dict(message) for message in as_messages(ids)]
        return {"messages" if self._api == "chat" else "input": messages}

    def read_line(self, line: bytes, answer: Answer) -> bool:
        """Take in one line of a stream; whether it had some of the answer.

        Raises:
            NoAnswerError: it is none.
        """
        if not line.startswith(b"data:"):
            return False
        data = line[5:].strip()
        if data == _DONE:
            answer.over = True
            return False
        return _take(data, answer)

    def read_whole(self, body: bytes, answer: Answer) -> None:
        """Take in an answer that came at once.

        Raises:
            NoAnswerError: it is none.
        """
        _take(body, answer)
        if not answer.chunks and not answer.reason:
            raise NoAnswerError("empty")
        answer.over = True

    def continuation(self, answer: Answer) -> list[int]:
        """What the answer adds to its conversation, as token ids.

        Of a server that gives no ids for prompts of ids, as many others stand for them.
        """
        text = "".join(answer.pieces)
        if self._api != "ids":
            return answer_ids(text)
        return answer.ids or list(text.encode())[: answer.tokens]


def first_model(body: bytes) -> tuple[str, str]:
    """The name of the first model that a server lists, and who made the server.

    Raises:
        NoAnswerError: it lists none.
    """
    try:
        models = _MODELS.decode(body).data
    except msgspec.DecodeError as error:
        raise NoAnswerError("no-model") from error
    if not models:
        raise NoAnswerError("no-model")
    return models[0].id, models[0].owned_by


def _cold_value(owner: str) -> JsonValue:
    return False if owner == _LLAMA else token_hex(16)


def _take(data: bytes, answer: Answer) -> bool:
    try:
        chunk = _CHUNK.decode(data)
    except msgspec.DecodeError as error:
        raise NoAnswerError("protocol") from error
    if chunk.error is not None:
        raise NoAnswerError("error-in-answer")
    _count(chunk.usage, answer)
    before = answer.chunks
    for choice in chunk.choices or ():
        _take_choice(choice, answer)
    if chunk.type is not None and chunk.type.startswith("response."):
        _take_event(chunk, answer)
    elif chunk.output is not None:
        _take_items(chunk.output, answer)
        _end(chunk.status, answer)
    return answer.chunks > before


def _take_choice(choice: _Choice, answer: Answer) -> None:
    of = choice.delta or choice.message
    text = choice.text or (of and (of.content or of.reasoning_content)) or ""
    if text or choice.token_ids:
        answer.chunks += 1
        answer.pieces.append(text)
        answer.ids += choice.token_ids or ()
    if choice.logprobs:
        answer.logprobs += tokens_in(choice.logprobs)
    _end(choice.finish_reason, answer)


def _take_event(chunk: _Chunk, answer: Answer) -> None:
    """An event of a stream of the Responses interface."""
    if chunk.type == "response.output_text.delta" and chunk.delta:
        answer.chunks += 1
        answer.pieces.append(chunk.delta)
    elif chunk.response is not None:
        _count(chunk.response.usage, answer)
        if chunk.type in ("response.completed", "response.incomplete", "response.failed"):
            _end(chunk.response.status, answer)
            answer.over = True


def _take_items(items: list[_Item], answer: Answer) -> None:
    for item in items:
        for content in item.content or ():
            answer.chunks += 1
            answer.pieces.append(content.text or "")


def _end(reason: str | None, answer: Answer) -> None:
    if reason is None:
        return
    if reason in _GIVEN_UP:
        raise NoAnswerError("given-up")
    answer.reason = reason


def _count(usage: _Usage | None, answer: Answer) -> None:
    if usage is not None:
        read = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
        written = usage.completion_tokens
        written = usage.output_tokens if written is None else written
        if usage.prompt_tokens_details is not None:
            answer.cached_tokens = usage.prompt_tokens_details.cached_tokens
        answer.input_tokens = answer.input_tokens if read is None else read
        answer.output_tokens = answer.output_tokens if written is None else written
