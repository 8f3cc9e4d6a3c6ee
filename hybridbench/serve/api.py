"""The HTTP interface: routes, endpoints, and error responses."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hybridbench.foundation.safe_output import echo
from hybridbench.records.json_value import JsonValue
from hybridbench.records.messages import CloseSession, Flush, Flushed, OpenSession
from hybridbench.serve.admin import Admin
from hybridbench.serve.answer import Answer
from hybridbench.serve.engine_link import EngineGoneError, EngineLink
from hybridbench.serve.errors import ApiError, error_response, json_response
from hybridbench.serve.limits import Limits, check_origin, read_body
from hybridbench.serve.metrics_page import CONTENT_TYPE, ServerCounts, render_page
from hybridbench.serve.schema import (
    Asked,
    ChatRequest,
    CloseSessionRequest,
    CompletionRequest,
    GenerateRequest,
    Model,
    OpenSessionRequest,
    asked_by_chat,
    asked_by_completion,
    asked_by_generate,
    parse,
)
from hybridbench.serve.shapes import GenerateShape, OpenAiShape, Shape

_COUNTERS_PATIENCE_S: Final = 5.0
_FLUSH_PATIENCE_S: Final = 30.0
# A step of the engine that takes longer than this, with work pending, counts as a hang.
_HANG_S: Final = 30.0


@dataclass
class Service:
    """State shared by the endpoints.

    Args:
        link: the engine.
        model: the model that it serves.
        limits: resource limits per client.
        loopback_only: whether only this machine can reach the server.
        counts: responses so far.
        ending: whether the server only finishes current requests and accepts no new ones.
    """

    link: EngineLink
    model: Model
    limits: Limits
    loopback_only: bool
    counts: ServerCounts = field(default_factory=ServerCounts)
    ending: bool = False

    def __post_init__(self) -> None:
        self.admin = Admin(self.link)
        self._created = int(time.time())

    def app(self) -> ASGIApp:
        """The application for an ASGI server."""
        routes = [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/generate", self.generate, methods=["POST"]),
            Route("/open_session", self.open_session, methods=["POST"]),
            Route("/close_session", self.close_session, methods=["POST"]),
            Route("/flush_cache", self.flush_cache, methods=["GET", "POST"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            *self.admin.routes(),
        ]
        handlers = {
            ApiError: _on_api_error,
            EngineGoneError: _on_engine_gone,
            HTTPException: _on_http_exception,
            ClientDisconnect: _on_client_left,
            Exception: _on_bug,
        }
        inner = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]
        return _counted(inner, self._guard, self.counts)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = parse(await read_body(request, self.limits), CompletionRequest)
        asked = asked_by_completion(body, self.model)
        return self._answer(asked, OpenAiShape(asked, self.model.names[0], is_chat=False))

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = parse(await read_body(request, self.limits), ChatRequest)
        asked = asked_by_chat(body, self.model)
        return self._answer(asked, OpenAiShape(asked, self.model.names[0], is_chat=True))

    async def generate(self, request: Request) -> Response:
        """POST /generate, compatible with SGLang."""
        body = parse(await read_body(request, self.limits), GenerateRequest)
        asked = asked_by_generate(body, self.model)
        names_tokens = bool(body.return_text_in_logprobs)
        return self._answer(asked, GenerateShape(asked, body.is_list, names_tokens))

    async def open_session(self, request: Request) -> Response:
        """POST /open_session: return its id; a session that is already open is unchanged."""
        body = parse(await read_body(request, self.limits), OpenSessionRequest)
        session_id = body.session_id or uuid4().hex
        self.link.post(OpenSession(session_id, body.timeout or 0.0))
        return json_response(session_id)

    async def close_session(self, request: Request) -> Response:
        """POST /close_session: close after the current turn, if there is one."""
        body = parse(await read_body(request, self.limits), CloseSessionRequest)
        self.link.post(CloseSession(body.session_id))
        return Response()

    async def flush_cache(self, request: Request) -> Response:
        """POST /flush_cache: 400 without effect while requests run or sessions hold KV."""
        del request
        if not (await self.link.ask(Flush(), Flushed, _FLUSH_PATIENCE_S)).done:
            raise ApiError(400, "requests run, or sessions hold a part of the cache.")
        return json_response({"success": True})

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        del request
        models: list[JsonValue] = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "hybridbench",
                "max_model_len": self.model.context_len,
            }
            for name in self.model.names
        ]
        return json_response({"object": "list", "data": models})

    async def health(self, request: Request) -> Response:
        """GET /health: 200 unless the engine hangs."""
        del request
        reply = await self.link.counters(_COUNTERS_PATIENCE_S)
        if reply.step_age_s > _HANG_S:
            raise ApiError(503, f"no engine step for {reply.step_age_s:.0f} s with work pending.")
        return json_response({"status": "draining" if self._draining else "ok"})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        del request
        reply = await self.link.counters(_COUNTERS_PATIENCE_S)
        link = self.link
        page = render_page(reply, link.latencies, self.counts, is_steady=link.is_steady)
        return Response(page, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})

    def _answer(self, asked: Asked, shape: Shape) -> Answer:
        if self._draining:
            raise ApiError(503, "the server is draining and accepts no new requests.")
        if len(self.link) + len(asked.prompts) > self.limits.generations:
            raise ApiError(429, "too many requests run or wait; try again later.")
        return Answer(self.link, asked, shape, self.counts.ended)

    @property
    def _draining(self) -> bool:
        return self.ending or self.admin.draining

    def _guard(self, request: Request) -> None:
        """Raise ApiError for a request to refuse regardless of its endpoint."""
        if self.loopback_only:
            check_origin(request)


def _counted(app: ASGIApp, guard: Callable[[Request], None], counts: ServerCounts) -> ASGIApp:
    """Wrap ``app`` so that ``guard`` runs before it and ``counts`` receives every response."""

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                counts.answered(message["status"])
            await send(message)

        try:
            guard(Request(scope))
        except ApiError as error:
            await error_response(error)(scope, receive, sent)
            return
        await app(scope, receive, sent)

    return outer


async def _on_bug(request: Request, error: Exception) -> Response:
    """Print the traceback without the error's message, which may quote a prompt."""
    del request
    lines = "".join(traceback.format_tb(error.__traceback__))
    echo(f"hybridbench: {type(error).__name__} in the server:\n{lines}", err=True)
    said = "internal server error; see the traceback in the server's output."
    return error_response(ApiError(500, said))


async def _on_api_error(request: Request, error: ApiError) -> Response:
    del request
    return error_response(error)


async def _on_engine_gone(request: Request, error: EngineGoneError) -> Response:
    del request
    return error_response(ApiError(503, f"{str(error).rstrip('.')}."))


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    del request
    if error.status_code == 404:
        found = ApiError(404, "no such path.")
    elif error.status_code == 405:
        found = ApiError(405, "method not allowed for this path.")
    else:
        found = ApiError(error.status_code, f"{error.detail.rstrip('.')}.")
    response = error_response(found)
    response.headers.update(error.headers or {})
    return response


async def _on_client_left(request: Request, error: ClientDisconnect) -> Response:
    """Return any response: the client has disconnected."""
    del request, error
    return Response(status_code=400)
