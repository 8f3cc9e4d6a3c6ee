"""An OpenAI-compatible server without a model, with known answers, delays and faults.

python openai_server.py PORT [--first-s 0.02] [--gap-s 0.01] [--keep] [--fault NAME] [--owner NAME]

With an ``--owner`` whose servers return logprobs, the words of an answer depend on its prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import zlib
from collections.abc import Mapping
from typing import Any

from aiohttp import web

kept: list[object] = []
# Unreadable answers and their content types, by fault.
_BODIES = {
    "html": (b"<html>sign in</html>", "text/html"),
    "only-done": (b"data: [DONE]\n\n", "text/event-stream"),
    "deep": (b'data: {"error": ' + b"[" * 10**5 + b"]" * 10**5 + b"}\n\n", "text/event-stream"),
}


class Kept:
    """The object that each request leaves behind with --keep."""

    def __init__(self, prompt: object) -> None:
        self.prompt = prompt


class Server:
    """The server; /metrics shows its counters."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.prompts: list[Any] = []  # of the most recent requests
        self.bodies: list[dict[str, Any]] = []  # likewise
        self.sessions: dict[str, bool] = {}  # open sessions: is a turn in progress
        self.in_progress: list[dict[str, Any]] = []
        self.session_calls: list[tuple[str, str]] = []
        self._beginnings: set[tuple[str, str]] = set()  # salt and prompt
        self.seen = self.answered = self.aborted = self.running = 0

    async def models(self, _: web.Request) -> web.Response:
        model = {"id": "fake", "owned_by": self.options.owner}
        return web.json_response({"object": "list", "data": [model]})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            text="# TYPE answered_requests_total counter\n"
            f"answered_requests_total {self.answered}\n"
            "# TYPE aborted_requests_total counter\n"
            f"aborted_requests_total {self.aborted}\n"
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running {self.running}\n"
        )

    async def open_session(self, request: web.Request) -> web.Response:
        if self.options.fault == "no-sessions":
            return web.json_response({"error": {"message": "no sessions here"}}, status=400)
        asked = await request.json()
        # Without this delay, calls in the wrong order would not be detected.
        await asyncio.sleep(self.options.first_s)
        self.session_calls.append(("open", asked["session_id"]))
        self.sessions[asked["session_id"]] = False
        return web.json_response(asked["session_id"])

    async def close_session(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if asked["session_id"] not in self.sessions:
            return web.json_response({"error": {"message": "no such session"}}, status=400)
        self.session_calls.append(("close", asked["session_id"]))
        self.sessions.pop(asked["session_id"], None)
        return web.Response()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = await request.json()
        except (ValueError, RecursionError):
            if self.options.fault == "bad-json-500":
                raise
            return web.json_response({"error": {"message": "no JSON"}}, status=400)
        if not _is_valid(asked):
            return web.json_response({"error": {"message": "a wrong value"}}, status=400)
        session_id = (asked.get("session_params") or {}).get("id")
        if session_id is None:
            return await self._answer(request, asked)
        if self.sessions.get(session_id, True):
            return web.json_response({"error": {"message": "no session, or busy"}}, status=400)
        self.session_calls.append(("turn", session_id))
        self.sessions[session_id] = True
        try:
            return await self._answer(request, asked)
        finally:
            if session_id in self.sessions:
                self.sessions[session_id] = False

    async def _answer(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        prompt = next(asked[name] for name in _PROMPTS if name in asked)
        self.seen += 1
        self.prompts = [*self.prompts[-99:], prompt]
        self.bodies = [*self.bodies[-99:], asked]
        refused = await self._refusal(prompt)
        if refused is not None:
            return refused
        if self.options.keep:
            kept.append(Kept(prompt))
        sampling = asked.get("sampling_params", asked)
        tokens = next((sampling[name] for name in _LENGTHS if name in sampling), 16)
        self.running += 1
        self.in_progress.append(asked)
        try:
            if asked.get("stream") and self.options.fault != "unstreamed":
                response = await self._stream(request, asked, self._words(prompt, tokens))
            else:
                await asyncio.sleep(self.options.first_s + self.options.gap_s * (tokens - 1))
                if self.options.fault == "half" and request.transport is not None:
                    request.transport.close()
                whole = _whole(request.path, self._words(prompt, tokens), asked)
                if "cache_salt" in asked:
                    cached = {"cached_tokens": self._cached(asked["cache_salt"], prompt)}
                    whole["usage"]["prompt_tokens_details"] = cached
                response = web.json_response(whole)
        except (ConnectionError, asyncio.CancelledError):
            self.aborted += 1
            # The fault "ghosts": a disconnected request still counts as running.
            self.running += self.options.fault == "ghosts"
            raise
        else:
            self.answered += 1
            return response
        finally:
            self.running -= 1
            self.in_progress.remove(asked)

    def _cached(self, salt: str, prompt: Any) -> int:
        """Return the reused tokens; with the fault "shares", whatever other tenants computed."""
        beginning = "" if self.options.fault == "shares" else salt, str(prompt[:8])
        known = beginning in self._beginnings
        self._beginnings.add(beginning)
        return 16 if known else 0

    def _words(self, prompt: Any, tokens: int) -> list[int]:
        """Return the answer's words.

        With the fault "swaps", one answer in ten is for another prompt; with "spills-OPTION", all
        are that begin while a request with OPTION is answered.
        """
        if not self.options.owner:
            return [42] * tokens
        fault, option = self.options.fault, self.options.fault.removeprefix("spills-")
        spills = option != fault and any(option in one for one in self.in_progress)
        is_wrong = spills or (fault == "swaps" and self.seen % 10 == 0)
        own = repr(prompt) + "x" * is_wrong
        return [zlib.crc32(f"{own} {index}".encode()) % 900 for index in range(tokens)]

    async def _refusal(self, prompt: Any) -> web.Response | None:
        fault = self.options.fault
        if fault == "dies" and self.seen > self.options.dies_after:
            os._exit(0)
        if fault.startswith("dies-of-") and fault.removeprefix("dies-of-") in self.bodies[-1]:
            os._exit(0)
        if fault in ("status-405", "status-429") or (fault == "status-500" and self.seen % 10 == 0):
            status = int(fault.removeprefix("status-"))
            headers = dict(self.options.refused_with)
            return web.json_response({"error": {"message": "no"}}, status=status, headers=headers)
        if fault.startswith("echoes-"):
            error = {"message": "x" * int(fault.removeprefix("echoes-")), "code": 400}
            return web.Response(body=_event({"error": error}), content_type="text/event-stream")
        if fault == "engine-dies":
            # The front end survives for a while, and all running requests fail together.
            await asyncio.sleep(self.options.first_s)
            return web.json_response({"error": {"message": "dead", "code": 500}}, status=500)
        if fault in _BODIES:
            body, kind = _BODIES[fault]
            return web.Response(body=body, content_type=kind)
        if fault == "silent":
            await asyncio.sleep(3600)
        if len(prompt) > self.options.longest:
            return web.json_response({"error": {"message": "too long"}}, status=400)
        return None

    async def _stream(
        self, request: web.Request, asked: Mapping[str, Any], words: list[int]
    ) -> web.StreamResponse:
        fault = self.options.fault
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if fault == "closes":
            response.force_close()
        await response.prepare(request)
        await asyncio.sleep(self.options.first_s)
        while fault == "only-comments":
            await response.write(b": still here\n\n")
            await asyncio.sleep(self.options.gap_s)
        for index in range(len(words)):
            if index:
                await asyncio.sleep(self.options.gap_s)
            if fault == "half" and index == len(words) // 2:
                await response.write(b'data: {"choices": [{"te')
                assert request.transport is not None
                request.transport.close()
                return response
            if fault != "stream-drops" or index != 2:
                await response.write(_event(_chunk(request.path, words[: index + 1], asked)))
        for event in _last(request.path, words):
            await response.write(event)
        return response


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": tokens}


def _text(word: int) -> str:
    return " indeed" if word == 42 else f" word{word}"


_PROMPTS = ("prompt", "messages", "input", "input_ids")
_LENGTHS = ("max_tokens", "max_output_tokens", "max_new_tokens")


def _is_valid(asked: Any) -> bool:
    """Return whether this server accepts the request; it is as strict as a server may be."""
    if not isinstance(asked, dict) or asked.get("model", "fake") != "fake":
        return False
    sampling = asked.get("sampling_params", asked)
    prompt = next((asked[name] for name in _PROMPTS if name in asked), None)
    if not isinstance(sampling, dict) or not isinstance(prompt, str | list) or not prompt:
        return False
    if "input_ids" in asked and not all(isinstance(token, int) for token in prompt):
        return False
    lengths = [sampling[name] for name in _LENGTHS if name in sampling]
    return (
        all(isinstance(length, int) and 0 < length <= 4096 for length in lengths)
        and isinstance(sampling.get("temperature", 1.0), int | float)
        and isinstance(sampling.get("n", 1), int)
        and sampling.get("n", 1) > 0
    )


def _generated(words: list[int], finish: dict[str, Any] | None) -> dict[str, Any]:
    """Return all the output so far."""
    meta = {"prompt_tokens": 7, "completion_tokens": len(words), "finish_reason": finish}
    return {"text": "".join(map(_text, words)), "output_ids": words, "meta_info": meta}


def _chunk(path: str, so_far: list[int], asked: Mapping[str, Any]) -> dict[str, Any]:
    word = so_far[-1]
    if path == "/generate":
        return _generated(so_far, None)
    if path.endswith("responses"):
        return {"type": "response.output_text.delta", "delta": _text(word)}
    choice: dict[str, Any] = {"finish_reason": None}
    if path.endswith("chat/completions"):
        choice |= {"delta": {"content": _text(word)}, **_ids([word], asked)}
    else:
        choice |= {"text": _text(word), **_ids([word], asked)}
    choice |= _logprobs([word], asked)
    return {"choices": [{"index": index, **choice} for index in range(asked.get("n", 1))]}


def _ids(words: list[int], asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"token_ids": words} if asked.get("return_token_ids") else {}


def _logprobs(words: list[int], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return logprobs in which each word is by far the likeliest and no alternative is used."""
    if not asked.get("logprobs"):
        return {}
    by_id = asked.get("return_tokens_as_token_ids")
    names = [f"token_id:{word}" if by_id else _text(word) for word in words]
    tops = [{name: -0.01, " other": -2.01, " nothing": -5.01} for name in names]
    if "messages" not in asked:
        values = [-0.01] * len(names)
        return {"logprobs": {"tokens": names, "token_logprobs": values, "top_logprobs": tops}}
    content = [
        {
            "token": name,
            "logprob": -0.01,
            "top_logprobs": [{"token": token, "logprob": value} for token, value in top.items()],
        }
        for name, top in zip(names, tops, strict=True)
    ]
    return {"logprobs": {"content": content}}


def _last(path: str, words: list[int]) -> list[bytes]:
    tokens = len(words)
    if path == "/generate":
        return [_event(_generated(words, {"type": "length"})), b"data: [DONE]\n\n"]
    if path.endswith("responses"):
        usage = {"input_tokens": 7, "output_tokens": tokens}
        response = {"status": "completed", "usage": usage}
        return [_event({"type": "response.completed", "response": response})]
    last = {"choices": [{"text": "", "delta": {}, "finish_reason": "length"}]}
    return [_event(last), _event({"choices": [], "usage": _usage(tokens)}), b"data: [DONE]\n\n"]


def _whole(path: str, words: list[int], asked: Mapping[str, Any]) -> dict[str, Any]:
    text, tokens = "".join(map(_text, words)), len(words)
    if path == "/generate":
        return _generated(words, {"type": "length"})
    if path.endswith("responses"):
        usage = {"input_tokens": 7, "output_tokens": tokens}
        output = [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
        return {"status": "completed", "output": output, "usage": usage}
    choice: dict[str, Any] = {"finish_reason": "length"} | _logprobs(words, asked)
    if path.endswith("chat/completions"):
        choice |= {"message": {"role": "assistant", "content": text}, **_ids(words, asked)}
    else:
        choice |= {"text": text, **_ids(words, asked)}
    return {"choices": [choice], "usage": _usage(tokens)}


def options_of(*words: str) -> argparse.Namespace:
    """Parse the options in ``words``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int, nargs="?", default=0)
    parser.add_argument("--first-s", type=float, default=0.02)
    parser.add_argument("--gap-s", type=float, default=0.002)
    parser.add_argument("--longest", type=int, default=1 << 30)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--fault", default="")
    header = parser.add_argument("--refused-with", default=(), metavar="HEADER=VALUE")
    header.type = lambda text: [text.split("=")]
    parser.add_argument("--dies-after", type=int, default=30)
    parser.add_argument("--owner", default="")
    return parser.parse_args(words)


def application(server: Server) -> web.Application:
    """Return the web application of ``server``."""
    app = web.Application(client_max_size=1 << 26)
    app.router.add_get("/v1/models", server.models)
    app.router.add_get("/metrics", server.metrics)
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/generate"):
        app.router.add_post(path, server.answer)
    app.router.add_post("/open_session", server.open_session)
    app.router.add_post("/close_session", server.close_session)
    return app


if __name__ == "__main__":
    given = options_of(*sys.argv[1:])
    web.run_app(
        application(Server(given)),
        host="127.0.0.1",
        port=given.port,
        print=None,
        access_log=None,
        handler_cancellation=True,
    )
