"""Request bodies, and their translation into requests to the engine.

Unknown fields are ignored, as in vLLM; an unsupported field that would change the answer is
refused.  A null field counts as absent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from hybridbench.records.messages import ALL_TOKENS, Sampling
from hybridbench.serve.errors import ApiError
from hybridbench.serve.tokens import chat_prompt, encode

_INT_MAX: Final = 2**31 - 1
_PROMPTS_MAX: Final = 128
# Every prompt of a request carries its own copy of these to the engine.
_STOP_IDS_MAX: Final = 1024
_KEY_CHARACTERS_MAX: Final = 1024
# Defaults of OpenAI's completions and of SGLang; a chat may fill the context.
_COMPLETION_TOKENS: Final = 16
_GENERATED_TOKENS: Final = 128

TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_INT_MAX)]
StopIds: TypeAlias = Annotated[list[TokenId], msgspec.Meta(max_length=_STOP_IDS_MAX)]
Key: TypeAlias = Annotated[str, msgspec.Meta(max_length=_KEY_CHARACTERS_MAX)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=_INT_MAX)]
Temperature: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Share: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1)]
TopK: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=_INT_MAX)]
LogprobCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=20)]
Seed: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=-_INT_MAX, le=_INT_MAX)]
Schema = TypeVar("Schema")


class StreamOptions(msgspec.Struct):
    """Additional contents of a stream."""

    include_usage: bool | None = None


class TextPart(msgspec.Struct):
    """A part of a message; types other than text are refused."""

    type: str
    text: str = ""


class ChatMessage(msgspec.Struct):
    """One turn of a conversation."""

    role: str
    content: str | list[TextPart] | None = None


class SessionParams(msgspec.Struct):
    """The SGLang session that a request continues; a turn can only append."""

    id: str | None = None
    rid: str | None = None
    offset: int | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """Fields of every generation request; names and defaults are OpenAI's and vLLM's."""

    model: str | None = None
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: Priority | None = None
    cache_salt: Key | None = None
    extra_key: Key | None = None
    session_params: SessionParams | None = None
    # Unsupported fields that would change the answer: only their neutral value is accepted.
    n: int | None = None
    stop: str | list[str] | None = None
    prompt_logprobs: int | None = None


class CompletionRequest(GenerationFields, kw_only=True):
    """The body of ``/v1/completions``."""

    prompt: str | list[TokenId | str | list[TokenId]]
    best_of: int | None = None
    echo: bool | None = None
    logprobs: LogprobCount | None = None
    suffix: str | None = None


class ChatRequest(GenerationFields, kw_only=True):
    """The body of ``/v1/chat/completions``."""

    messages: list[ChatMessage]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None
    tools: list[Any] | None = None


class GenerateSampling(msgspec.Struct, kw_only=True):
    """``sampling_params`` of ``/generate``."""

    max_new_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    sampling_seed: Seed | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    stop: str | list[str] | None = None


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The body of SGLang's ``/generate``."""

    text: str | list[str] | None = None
    input_ids: list[TokenId | list[TokenId]] | None = None
    sampling_params: GenerateSampling | None = None
    stream: bool | None = None
    session_params: SessionParams | None = None
    priority: Priority | None = None
    cache_salt: Key | None = None
    extra_key: Key | None = None
    return_logprob: bool | None = None
    top_logprobs_num: LogprobCount | None = None
    return_text_in_logprobs: bool | None = None
    logprob_start_len: int | None = None
    token_ids_logprob: list[Any] | None = None

    @property
    def is_list(self) -> bool:
        """Whether the prompts are a list, even of one."""
        prompts = self.text if self.input_ids is None else self.input_ids
        return isinstance(prompts, list) and not all(isinstance(one, int) for one in prompts)


class OpenSessionRequest(msgspec.Struct):
    """The body of SGLang's ``/open_session``; other fields are ignored."""

    session_id: str | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None


class CloseSessionRequest(msgspec.Struct):
    """The body of SGLang's ``/close_session``."""

    session_id: str


@dataclass(frozen=True)
class Asked:
    """A generation request in the engine's terms, with one answer per prompt.

    Attributes:
        prompts: token ids.
        sampling: parameters for each prompt.
        priority: None leaves it to the engine.
        extra_key: requests with different keys share no prefix.
        session_id: the session whose next turn this is; empty for none.
        stream: whether to send tokens as they come.
        usage: whether a stream ends with the numbers of tokens.
        token_ids: whether the answer includes its token ids.
        tokens_as_ids: whether logprobs name tokens by id.
    """

    prompts: Sequence[list[int]]
    sampling: Sequence[Sampling]
    priority: int | None
    extra_key: str
    session_id: str
    stream: bool
    usage: bool
    token_ids: bool
    tokens_as_ids: bool

    @property
    def logprobs(self) -> int | None:
        """Number of most likely tokens to report per emitted token; None for no logprobs.

        The same for all prompts.
        """
        return self.sampling[0].logprobs


@dataclass(frozen=True)
class Model:
    """The served model: its names, the first for display, and its limits in tokens."""

    names: tuple[str, ...]
    vocab_size: int
    context_len: int


def parse(body: bytes, schema: type[Schema]) -> Schema:
    """Decode the JSON in ``body``.

    Raises:
        ApiError: it is not JSON, or a field is missing or of a wrong type.
    """
    try:
        return msgspec.json.decode(body, type=schema)
    except msgspec.ValidationError as error:
        sentence, _, path = str(error).partition(" - at ")
        param = path.strip("`").removeprefix("$.").removeprefix("$") or None
        place = f"{param}: " if param else ""
        raise ApiError(400, f"{place}{sentence}.", param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "the body is not valid JSON.", code="invalid_json") from error


def asked_by_completion(
    request: CompletionRequest, model: Model, usual_tokens: int = _COMPLETION_TOKENS
) -> Asked:
    """Translate a completion; ``usual_tokens`` is the default limit.

    Raises:
        ApiError: the engine does not support the request.
    """
    _refuse_unless("best_of", request.best_of, 1)
    _refuse_unless("echo", request.echo, False)
    _refuse_unless("suffix", request.suffix, "")
    prompts = [_ids(prompt, "prompt", model) for prompt in _prompts(request.prompt)]
    limits = [request.max_tokens or _room(prompt, model, usual_tokens) for prompt in prompts]
    return _asked(request, prompts, limits, model, request.logprobs)


def asked_by_chat(request: ChatRequest, model: Model) -> Asked:
    """Translate a turn of a conversation; without a limit it may fill the context.

    Raises:
        ApiError: the engine does not support the request.
    """
    _refuse_unless("tools", request.tools, [])
    if not request.messages:
        raise ApiError(400, "messages: give at least one.", param="messages")
    prompt = _ids(chat_prompt([_turn(one) for one in request.messages]), "messages", model)
    limit = request.max_completion_tokens or request.max_tokens or _room(prompt, model)
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    if request.top_logprobs and logprobs is None:
        raise ApiError(400, "top_logprobs: set logprobs to true as well.", param="top_logprobs")
    return _asked(request, [prompt], [limit], model, logprobs)


def asked_by_generate(request: GenerateRequest, model: Model) -> Asked:
    """Translate a request of SGLang's ``/generate``.

    Raises:
        ApiError: the engine does not support the request.
    """
    _refuse_unless("logprob_start_len", request.logprob_start_len, -1)
    _refuse_unless("token_ids_logprob", request.token_ids_logprob, [])
    prompt = request.text if request.input_ids is None else request.input_ids
    if prompt is None or (request.text is not None and request.input_ids is not None):
        raise ApiError(400, "give text or input_ids, and not both.", param="input_ids")
    sampling = request.sampling_params or GenerateSampling()
    completion = CompletionRequest(
        prompt=prompt if isinstance(prompt, str) else [*prompt],
        max_tokens=sampling.max_new_tokens,
        logprobs=(request.top_logprobs_num or 0) if request.return_logprob else None,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.sampling_seed,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        n=sampling.n,
        stop=sampling.stop,
        stream=request.stream,
        priority=request.priority,
        cache_salt=request.cache_salt,
        extra_key=request.extra_key,
        session_params=request.session_params,
    )
    return asked_by_completion(completion, model, _GENERATED_TOKENS)


def _room(prompt: list[int], model: Model, usual_tokens: int | None = None) -> int:
    """Default limit of an answer: the room left in the context, at most ``usual_tokens``."""
    room = max(1, model.context_len - len(prompt))
    return room if usual_tokens is None else min(room, usual_tokens)


def _asked(
    request: GenerationFields,
    prompts: Sequence[list[int]],
    limits: Sequence[int],
    model: Model,
    logprobs: int | None,
) -> Asked:
    _refuse_unless("n", request.n, 1)
    _refuse_unless("stop", request.stop, [])
    _refuse_unless("prompt_logprobs", request.prompt_logprobs, None)
    if request.model is not None and request.model not in model.names:
        raise ApiError(
            404,
            f"the model does not exist; this server has {model.names[0]}.",
            param="model",
            code="model_not_found",
        )
    seed = random.getrandbits(31) if request.seed is None else request.seed
    sampling = [
        Sampling(
            max_new_tokens=limit,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_k=request.top_k or ALL_TOKENS,
            top_p=1.0 if request.top_p is None else request.top_p,
            seed=seed,
            ignore_eos=bool(request.ignore_eos),
            stop_token_ids=tuple(request.stop_token_ids or ()),
            logprobs=logprobs,
        )
        for limit in limits
    ]
    options = request.stream_options
    return Asked(
        prompts=prompts,
        sampling=sampling,
        priority=request.priority,
        extra_key=request.cache_salt or request.extra_key or "",
        session_id=_session(request.session_params, prompts),
        stream=bool(request.stream),
        usage=options is not None and bool(options.include_usage),
        token_ids=bool(request.return_token_ids),
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
    )


def _session(params: SessionParams | None, prompts: Sequence[list[int]]) -> str:
    """The session of ``params``; empty for none."""
    if params is None or not params.id:
        return ""
    _refuse_unless("session_params.offset", params.offset, 0)
    _refuse_unless("session_params.replace", params.replace, False)
    _refuse_unless("session_params.drop_previous_output", params.drop_previous_output, False)
    if len(prompts) != 1:
        raise ApiError(400, "a turn of a session is one prompt.", param="session_params")
    return params.id


def _refuse_unless(name: str, value: object, nothing: object) -> None:
    if value is not None and value != nothing:
        raise ApiError(400, f"{name}: not supported by this engine; omit it.", param=name)


def _prompts(given: str | list[int | str | list[int]]) -> list[str | list[int]]:
    """A list of prompts, each as text or as token ids.

    Raises:
        ApiError: forms are mixed, or there are too many.
    """
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    if given and len(ids) == len(given):
        return [ids]
    prompts = [item for item in given if not isinstance(item, int)]
    if len({type(item) for item in given}) != 1:
        raise ApiError(400, "prompt: give text, token ids, or a list of either.", param="prompt")
    if len(prompts) > _PROMPTS_MAX:
        raise ApiError(400, f"prompt: at most {_PROMPTS_MAX} in one request.", param="prompt")
    return prompts


def _ids(prompt: str | list[int], param: str, model: Model) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    try:
        return encode(prompt, model.vocab_size)
    except UnicodeEncodeError as error:
        raise ApiError(400, f"{param}: it is not valid Unicode.", param=param) from error


def _turn(message: ChatMessage) -> tuple[str, str]:
    content = message.content
    if content is None or isinstance(content, str):
        return message.role, content or ""
    if any(part.type != "text" for part in content):
        raise ApiError(400, "messages: only text content is supported.", param="messages")
    return message.role, "".join(part.text for part in content)
