"""An OpenAI-compatible server without a model: its answers, delays and faults are known.

python openai_server.py PORT [--first-s 0.02] [--gap-s 0.01] [--keep] [--fault NAME] [--owner NAME]

Of an owner whose servers give logprobs, answers have words of their own for each prompt.
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


class Kept:
    """What a request leaves behind with --keep."""

    def __init__(self, prompt: object) -> None:
        self.prompt = prompt


class Server:
    """Counts what it does, and shows that on /metrics."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.prompts: list[Any] = []  # of the last requests
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

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked: dict[str, Any] = await request.json()
        prompt = asked.get("prompt") or asked.get("messages") or asked.get("input")
        self.seen += 1
        self.prompts = [*self.prompts[-99:], prompt]
        refused = await self._refusal(prompt)
        if refused is not None:
            return refused
        if self.options.keep:
            kept.append(Kept(prompt))
        tokens = asked.get("max_tokens") or asked.get("max_output_tokens") or 16
        self.running += 1
        try:
            if asked.get("stream"):
                response = await self._stream(request, asked, self._words(prompt, tokens))
            else:
                await asyncio.sleep(self.options.first_s + self.options.gap_s * (tokens - 1))
                whole = _whole(request.path, self._words(prompt, tokens), asked)
                response = web.json_response(whole)
        except (ConnectionError, asyncio.CancelledError):
            self.aborted += 1
            # The fault: who leaves still counts as running.
            self.running += self.options.fault == "ghosts"
            raise
        else:
            self.answered += 1
            return response
        finally:
            self.running -= 1

    def _words(self, prompt: Any, tokens: int) -> list[int]:
        """The answer; the fault: one of ten has that of another prompt."""
        if not self.options.owner:
            return [42] * tokens
        own = repr(prompt) + "x" * (self.options.fault == "swaps" and self.seen % 10 == 0)
        return [zlib.crc32(f"{own} {index}".encode()) % 900 for index in range(tokens)]

    async def _refusal(self, prompt: Any) -> web.Response | None:
        fault = self.options.fault
        if fault == "dies" and self.seen > 30:
            os._exit(0)
        if fault == "status-500" and self.seen % 10 == 0:
            return web.json_response({"error": {"message": "no"}}, status=500)
        if fault == "html":
            return web.Response(text="<html>sign in</html>", content_type="text/html")
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
        for index, word in enumerate(words):
            if index:
                await asyncio.sleep(self.options.gap_s)
            if fault == "half" and index == len(words) // 2:
                await response.write(b'data: {"choices": [{"te')
                assert request.transport is not None
                request.transport.close()
                return response
            await response.write(_event(_chunk(request.path, word, asked)))
        for event in _last(request.path, len(words)):
            await response.write(event)
        return response


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": tokens}


def _text(word: int) -> str:
    return " indeed" if word == 42 else f" word{word}"


def _chunk(path: str, word: int, asked: Mapping[str, Any]) -> dict[str, Any]:
    if path.endswith("responses"):
        return {"type": "response.output_text.delta", "delta": _text(word)}
    choice: dict[str, Any] = {"finish_reason": None}
    if path.endswith("chat/completions"):
        choice["delta"] = {"content": _text(word)}
    else:
        choice |= {"text": _text(word), **_ids([word], asked)}
    return {"choices": [choice | _logprobs([word], asked)]}


def _ids(words: list[int], asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"token_ids": words} if asked.get("return_token_ids") else {}


def _logprobs(words: list[int], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Each word is the likeliest by far, and the next is no other answer's."""
    if not asked.get("logprobs"):
        return {}
    by_id = asked.get("return_tokens_as_token_ids")
    names = [f"token_id:{word}" if by_id else _text(word) for word in words]
    tops = [{name: -0.01, " nothing": -5.01} for name in names]
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


def _last(path: str, tokens: int) -> list[bytes]:
    if path.endswith("responses"):
        usage = {"input_tokens": 7, "output_tokens": tokens}
        response = {"status": "completed", "usage": usage}
        return [_event({"type": "response.completed", "response": response})]
    last = {"choices": [{"text": "", "delta": {}, "finish_reason": "length"}]}
    return [_event(last), _event({"choices": [], "usage": _usage(tokens)}), b"data: [DONE]\n\n"]


def _whole(path: str, words: list[int], asked: Mapping[str, Any]) -> dict[str, Any]:
    text, tokens = "".join(map(_text, words)), len(words)
    if path.endswith("responses"):
        usage = {"input_tokens": 7, "output_tokens": tokens}
        output = [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
        return {"status": "completed", "output": output, "usage": usage}
    choice: dict[str, Any] = {"finish_reason": "length"} | _logprobs(words, asked)
    if path.endswith("chat/completions"):
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice |= {"text": text, **_ids(words, asked)}
    return {"choices": [choice], "usage": _usage(tokens)}


def options_of(*words: str) -> argparse.Namespace:
    """The options in ``words``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int, nargs="?", default=0)
    parser.add_argument("--first-s", type=float, default=0.02)
    parser.add_argument("--gap-s", type=float, default=0.002)
    parser.add_argument("--longest", type=int, default=1 << 30)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--fault", default="")
    parser.add_argument("--owner", default="")
    return parser.parse_args(words)


def application(server: Server) -> web.Application:
    """The interfaces of ``server``."""
    app = web.Application(client_max_size=1 << 26)
    app.router.add_get("/v1/models", server.models)
    app.router.add_get("/metrics", server.metrics)
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
        app.router.add_post(path, server.answer)
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
