"""Server interfaces, OpenAI's and SGLang's: write requests and read answers.

Requests have only fields that every common server accepts; of an answer, only the parts that are
counted are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final

import msgspec

from hybridbench.load.http_request import HttpRequest, Values
from hybridbench.load.logprobs import Token, generated_tokens, tokens_in
from hybridbench.load.malformed import spoil
from hybridbench.load.options import add_options
from hybridbench.load.texts import answer_ids, as_messages, as_text
from hybridbench.records.json_value import JsonValue
from hybridbench.records.load import OF_IDS, Api
from hybridbench.records.messages import ALL_TOKENS, OpenSession, Sampling, Submit
from hybridbench.workload.actions import ServerSubmit

_PATHS: Final[Mapping[Api, str]] = {
    "completions": "/v1/completions",
    "ids": "/v1/completions",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "generate": "/generate",
}
# HTTP statuses that mean that the request was wrong.
REFUSED: Final = range(400, 500)
# SGLang requires the maximum length of a session, but ignores it.
_SESSION_CHARACTERS: Final = 1 << 20
_DONE: Final = b"[DONE]"
# By the server's maker, the field with which a request bypasses the cache: a key that no other
# request has, or llama.cpp's switch.
_LLAMA: Final = "llamacpp"
_COLD: Final = {
    "vllm": "cache_salt",
    "sglang": "extra_key",
    "hybridbench": "cache_salt",
    _LLAMA: "cache_prompt",
}
# Servers that return token ids; text alone is ambiguous, as all partial characters look the same.
_GIVES_IDS: Final = frozenset({"vllm", "hybridbench"})
# Number of most likely tokens to request at each place.
_LIKELIEST: Final = 10
# Events of the Responses interface with a part of the answer, or of the reasoning before it.
_DELTAS: Final = frozenset({"response.output_text.delta", "response.reasoning_text.delta"})
# Token counts from here on are wrong, as are negative ones.
_TOKENS_MOST: Final = 1 << 31
# Finish reasons that did not come from the model.
_GIVEN_UP: Final = frozenset({"abort", "error", "failed", "cancelled"})


class NoAnswerError(Exception):
    """The reply is not an answer of this interface; ``kind`` gives the reason in a word."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class RefusedError(NoAnswerError):
    """The server refused the request in the middle of its answer; ``kind`` is the status."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    # The name of ``reasoning`` in SGLang, in llama.cpp, and in vLLM before 0.12.
    reasoning_content: str | None = None

    @property
    def text(self) -> str:
        return self.content or self.reasoning or self.reasoning_content or ""


class _Choice(msgspec.Struct):
    index: int = 0
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


class _Finish(msgspec.Struct):
    type: str
    status_code: int | None = None


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    output_token_logprobs: msgspec.Raw = msgspec.Raw(b"[]")
    output_top_logprobs: msgspec.Raw = msgspec.Raw(b"[]")
    finish_reason: _Finish | None = None


class _Chunk(msgspec.Struct):
    """A stream chunk, or a whole answer, of any of the interfaces.

    The last four fields are those of ``/generate``; ``text`` and ``output_ids`` have everything so
    far, or only what is new.  In an answer of the Responses interface, ``text`` is the requested
    format.
    """

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: object = None
    # Fields of an error that is not in an object of its own.
    kind: str | None = msgspec.field(name="object", default=None)
    code: object = None
    type: str | None = None
    delta: str | None = None
    response: _Response | None = None
    status: str | None = None
    output: list[_Item] | None = None
    text: str | dict[str, msgspec.Raw] | None = None
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    index: int = 0


class _Model(msgspec.Struct):
    id: str
    owned_by: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_MODELS: Final = msgspec.json.Decoder(_Models)
# For several answers to one prompt, ``/generate`` returns a list.
_CHUNK: Final = msgspec.json.Decoder(_Chunk | list[_Chunk])


@dataclass
class Answer:
    """The received part of an answer.

    Args:
        pieces: its text, in chunks as received.
        ids: its token ids, if the server gives them.
        chunks: number of chunks with a part of it.
        input_tokens, output_tokens: as the server counts them; None until known.
        cached_tokens: prompt tokens taken from the server's cache; None if unknown.
        logprobs: of its tokens, if requested.
        reason: why it ended; empty until then.
        over: whether it is complete.
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
        """The number of tokens; if the server does not count them, one per chunk."""
        if self.output_tokens is not None:
            return self.output_tokens
        return len(self.ids) or self.chunks


class Interface:
    """One interface of a server.

    Args:
        api: which interface.
        model: the model's name on the server.
        owner: who made the server, from its list of models.
        stream: whether answers are streamed, unless a request says otherwise.
        without: options that no request may have.
    """

    def __init__(
        self, api: Api, model: str, *, stream: bool, without: Collection[str] = ()
    ) -> None:
        self._api: Api = api
        self._without = without
        self.model = model
        self.owner = ""
        self._streams = stream
        # A server may still have sessions of an earlier run.
        self._run = token_hex(4)

    @property
    def names_model(self) -> bool:
        """Whether a request names its model."""
        return self._api != "generate"

    def request(self, request: Submit) -> HttpRequest:
        """Convert ``request`` to an HTTP request."""
        fields = self._generate(request) if self._api == "generate" else self._openai(request)
        put = HttpRequest(self._api, _PATHS[self._api], fields)
        if isinstance(request, ServerSubmit):
            most_tokens = request.sampling.max_new_tokens
            values = Values(request.draw, most_tokens, large=request.large)
            if request.malformed is not None:
                spoil(put, request.malformed, values)
            else:
                add_options(put, values, request.options, self._without)
        return put

    @property
    def not_repeated(self) -> str:
        """Why answers cannot be repeated without the server's cache; empty if they can."""
        if self._api == "responses":
            return "interface"
        return "" if self.owner in _COLD else "no-cold-way"

    @property
    def both_ways(self) -> bool:
        """Whether answers are streamed, and would have the same text if they were not.

        Not in a chat: the parser that separates the reasoning may treat the two differently.
        """
        return self._streams and self._api != "chat"

    def cold_request(self, request: Submit, key: str) -> HttpRequest:
        """Build the request with logprobs, and with a cache of its own.

        Only requests with the same ``key`` share cached content with it.
        """
        put = self.request(request)
        put.fields[_COLD[self.owner]] = False if self.owner == _LLAMA else key
        if self._api == "generate":
            put.fields |= {"return_logprob": True, "top_logprobs_num": _LIKELIEST}
        elif self._api == "chat":
            put.fields |= {"logprobs": True, "top_logprobs": _LIKELIEST}
        else:
            put.fields["logprobs"] = _LIKELIEST
        if self.owner in _GIVES_IDS and self._api != "generate":
            put.fields["return_tokens_as_token_ids"] = True
        return put

    @property
    def keeps_tenants_apart(self) -> bool:
        """Whether the server shares no prefix across the keys of requests, and prompts are ids."""
        return self._api in OF_IDS and _COLD.get(self.owner) == self._key_field

    @property
    def _key_field(self) -> str:
        return "extra_key" if self._api == "generate" else "cache_salt"

    def _key(self, request: Submit) -> dict[str, JsonValue]:
        """Return the field that names the tenant; a server has no prefixes of an earlier run's."""
        return {self._key_field: f"{self._run}-{request.extra_key}"} if request.extra_key else {}

    def open_session(self, opened: OpenSession) -> HttpRequest:
        """Build the request that opens a session."""
        fields: dict[str, JsonValue] = {
            "session_id": self._session(opened.session_id),
            "capacity_of_str_len": _SESSION_CHARACTERS,
            "streaming": True,
        }
        if opened.timeout_s:
            fields["timeout"] = opened.timeout_s
        return HttpRequest(self._api, "/open_session", fields)

    def close_session(self, session_id: str) -> HttpRequest:
        """Build the request that closes a session."""
        return HttpRequest(self._api, "/close_session", {"session_id": self._session(session_id)})

    def _session(self, session_id: str) -> str:
        return f"{self._run}-{session_id}"

    def _generate(self, request: Submit) -> dict[str, JsonValue]:
        sampling = request.sampling
        chosen: dict[str, JsonValue] = {
            "max_new_tokens": sampling.max_new_tokens,
            **_drawn(sampling),
            "ignore_eos": sampling.ignore_eos,
        }
        if sampling.stop_token_ids:
            chosen["stop_token_ids"] = list(sampling.stop_token_ids)
        said: dict[str, JsonValue] = {
            "input_ids": list(request.input_ids),
            "sampling_params": chosen,
            "stream": self._streams,
        }
        if request.session_id:
            said["session_params"] = {"id": self._session(request.session_id)}
        return said | self._key(request)

    def _openai(self, request: Submit) -> dict[str, JsonValue]:
        sampling = request.sampling
        said: dict[str, JsonValue] = {"model": self.model, **self._prompt(request)}
        longest = "max_output_tokens" if self._api == "responses" else "max_tokens"
        said |= {
            longest: sampling.max_new_tokens,
            **_drawn(sampling),
            "stream": self._streams,
        }
        if self._api != "responses":
            # An extension that vLLM, SGLang and llama.cpp have: answers of the requested length.
            said["ignore_eos"] = sampling.ignore_eos
            if sampling.stop_token_ids and self._api == "ids":
                said["stop_token_ids"] = list(sampling.stop_token_ids)
            if self._streams:
                said["stream_options"] = {"include_usage": True}
        if self._api == "ids" or (self.owner in _GIVES_IDS and self._api != "responses"):
            said["return_token_ids"] = True
        return said | self._key(request)

    def _prompt(self, request: Submit) -> dict[str, JsonValue]:
        ids = request.input_ids
        if self._api == "ids":
            return {"prompt": list(ids)}
        if self._api == "completions":
            return {"prompt": as_text(ids)}
        messages: list[JsonValue] = [dict(message) for message in as_messages(ids)]
        return {"messages" if self._api == "chat" else "input": messages}

    def read_line(self, line: bytes, answer: Answer) -> bool:
        """Read one line of a stream; return whether it had a part of the answer.

        Raises:
            RefusedError: the line says that the request was wrong.
            NoAnswerError: the line is not part of an answer.
        """
        if not line.startswith(b"data:"):
            return False
        data = line[5:].strip()
        if not data:
            # Server-sent events without data, which some servers send to keep a connection open.
            return False
        if data == _DONE:
            answer.over = True
            return False
        return _take(data, answer)

    def read_whole(self, body: bytes, answer: Answer) -> None:
        """Read an answer that was not streamed.

        Raises:
            RefusedError: the body says that the request was wrong.
            NoAnswerError: the body is not an answer.
        """
        _take(body, answer)
        if not answer.chunks and not answer.reason:
            raise NoAnswerError("empty")
        answer.over = True

    def lost_tokens(self, answer: Answer) -> str:
        """Return that an answer has fewer token ids than the server counts; empty if it has not.

        A token that stops an answer may be counted and not sent.
        """
        gives_ids = self._api == "generate" or (self._api == "ids" and self.owner in _GIVES_IDS)
        sent, counted = len(answer.ids), answer.output_tokens or 0
        if not gives_ids or answer.reason != "length" or not 0 < sent < counted:
            return ""
        return f"got {sent:,} of the {counted:,} tokens that the server counts"

    def continuation(self, answer: Answer) -> list[int]:
        """Return what the answer adds to its conversation, as token ids.

        If prompts are ids and the server returns none, as many other ids stand in for them.
        """
        text = "".join(answer.pieces)
        if self._api not in ("ids", "generate"):
            return answer_ids(text)
        return answer.ids or list(text.encode())[: answer.tokens]


def _drawn(sampling: Sampling) -> dict[str, JsonValue]:
    """Return the sampling parameters; a greedy request has only its temperature."""
    said: dict[str, JsonValue] = {"temperature": sampling.temperature}
    if sampling.temperature:
        said["top_p"] = sampling.top_p
        if sampling.top_k != ALL_TOKENS:
            said["top_k"] = sampling.top_k
    return said


def first_model(body: bytes) -> tuple[str, str]:
    """Return the first model's name in a server's list, and who made the server.

    Raises:
        NoAnswerError: the list is empty.
    """
    try:
        models = _MODELS.decode(body).data
    except msgspec.DecodeError as error:
        raise NoAnswerError("no-model") from error
    if not models:
        raise NoAnswerError("no-model")
    return models[0].id, models[0].owned_by or ""


def _take(data: bytes, answer: Answer) -> bool:
    try:
        decoded = _CHUNK.decode(data)
    except msgspec.DecodeError as error:
        raise NoAnswerError("protocol") from error
    before = answer.chunks
    for chunk in decoded if isinstance(decoded, list) else [decoded]:
        _take_chunk(chunk, answer)
    return answer.chunks > before


def _take_chunk(chunk: _Chunk, answer: Answer) -> None:
    # Errors in the forms of OpenAI, vLLM before 0.11 and TensorRT-LLM, and the Responses interface.
    if chunk.error is not None or "error" in (chunk.kind, chunk.type):
        _refuse_if(chunk.error.get("code") if isinstance(chunk.error, dict) else chunk.code)
        raise NoAnswerError("error-in-answer")
    _count(chunk.usage, answer)
    for choice in chunk.choices or ():
        _take_choice(choice, answer)
    if chunk.type is not None and chunk.type.startswith("response."):
        _take_event(chunk, answer)
    elif chunk.output is not None:
        _take_items(chunk.output, answer)
        _end(chunk.status, answer)
    elif chunk.meta_info is not None:
        _take_generated(chunk, chunk.meta_info, answer)


def _refuse_if(status: object) -> None:
    """Check the status in an answer.

    Raises:
        RefusedError: ``status`` says that the request was wrong.
    """
    if isinstance(status, int) and status in REFUSED:
        raise RefusedError(str(status))


def _take_choice(choice: _Choice, answer: Answer) -> None:
    of = choice.delta or choice.message
    text = choice.text or (of.text if of is not None else "")
    if text or choice.token_ids:
        answer.chunks += 1
        # A conversation continues with the first of several answers.
        if not choice.index:
            answer.pieces.append(text)
            answer.ids += choice.token_ids or ()
            answer.logprobs += tokens_in(choice.logprobs) if choice.logprobs else ()
    _end(choice.finish_reason, answer)


def _take_generated(chunk: _Chunk, meta: _Meta, answer: Answer) -> None:
    """Add a part of an answer of ``/generate``."""
    ids, text = chunk.output_ids or [], chunk.text if isinstance(chunk.text, str) else ""
    known = len(answer.ids)
    if chunk.index:
        answer.chunks += 1
    elif meta.completion_tokens is None or len(ids) == meta.completion_tokens:
        answer.ids, answer.pieces = ids, [text]
    else:
        answer.ids += ids
        answer.pieces.append(text)
    answer.chunks += len(answer.ids) > known or (bool(text) and not ids)
    if not chunk.index:
        answer.input_tokens = _counted(meta.prompt_tokens, None)
        answer.output_tokens = _counted(meta.completion_tokens, None)
        answer.cached_tokens = meta.cached_tokens
        # All so far, or only the new ones, as for the ids.
        new = generated_tokens(meta.output_token_logprobs, meta.output_top_logprobs)
        answer.logprobs = new if len(new) == len(answer.ids) else [*answer.logprobs, *new]
    finish = meta.finish_reason
    if finish is not None:
        _refuse_if(finish.status_code)
        _end(finish.type, answer)


def _take_event(chunk: _Chunk, answer: Answer) -> None:
    """Add a stream event of the Responses interface."""
    if chunk.type in _DELTAS and chunk.delta:
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
        answer.input_tokens = _counted(read, answer.input_tokens)
        answer.output_tokens = _counted(written, answer.output_tokens)


def _counted(tokens: int | None, before: int | None) -> int | None:
    """Return ``tokens``, or ``before`` if that number is missing or impossible."""
    return before if tokens is None or not 0 <= tokens < _TOKENS_MOST else tokens
