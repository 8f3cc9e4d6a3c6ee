"""What an answer looks like, whole and in parts: as OpenAI has it, or as SGLang's ``/generate``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias
from uuid import uuid4

from hybridbench.records.json_value import JsonValue
from hybridbench.serve.engine_link import Generation
from hybridbench.serve.schema import Asked
from hybridbench.serve.tokens import decode

Json: TypeAlias = dict[str, JsonValue]


class Shape(Protocol):
    """The bodies of one request's answer; an instance serves one request."""

    def whole(self, generations: Sequence[Generation]) -> JsonValue:
        """All of it: every generation is finished."""
        ...

    def part(self, index: int, generation: Generation, ids: list[int]) -> JsonValue:
        """``ids``, new of one generation; none where that has finished meanwhile."""
        ...

    def last(self, generations: Sequence[Generation]) -> JsonValue | None:
        """What a stream ends with, after the last part; None for nothing."""
        ...


class OpenAiShape:
    """Completions, and chats, whose choices have messages instead of text."""

    def __init__(self, asked: Asked, model: str, *, is_chat: bool) -> None:
        self._asked = asked
        self._is_chat = is_chat
        self._begun: set[int] = set()
        name = "chat.completion" if is_chat else "text_completion"
        self._about: Json = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid4().hex}",
            "object": f"{name}.chunk" if is_chat and asked.stream else name,
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, generations: Sequence[Generation]) -> JsonValue:
        choices: list[JsonValue] = [
            self._choice(index, generation, generation.take(), "message")
            for index, generation in enumerate(generations)
        ]
        return {**self._about, "choices": choices, "usage": _usage(generations)}

    def part(self, index: int, generation: Generation, ids: list[int]) -> JsonValue:
        choice = self._choice(index, generation, ids, "delta")
        self._begun.add(index)
        usage: Json = {"usage": None} if self._asked.usage else {}
        return {**self._about, "choices": [choice], **usage}

    def last(self, generations: Sequence[Generation]) -> JsonValue | None:
        if not self._asked.usage:
            return None
        return {**self._about, "choices": [], "usage": _usage(generations)}

    def _choice(self, index: int, generation: Generation, ids: list[int], holder: str) -> Json:
        text = decode(ids)
        role: Json = {} if index in self._begun else {"role": "assistant"}
        said: Json = {holder: {**role, "content": text}} if self._is_chat else {"text": text}
        extra: Json = {"token_ids": ids} if self._asked.token_ids else {}
        ended = generation.ended
        finish = None if ended is None else ended.reason
        return {"index": index, **said, "logprobs": None, "finish_reason": finish, **extra}


@dataclass
class GenerateShape:
    """SGLang's own: each part has all that was said so far; of several prompts a list.

    Args:
        is_list: whether the prompts came as a list.
    """

    is_list: bool
    _begun_s: float = field(default_factory=time.monotonic)
    _said: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def whole(self, generations: Sequence[Generation]) -> JsonValue:
        answers = [self._answer(0, one, one.take()) for one in generations]
        return answers if self.is_list else answers[0]

    def part(self, index: int, generation: Generation, ids: list[int]) -> JsonValue:
        said = self._said[index]
        said.extend(ids)
        return self._answer(index, generation, said)

    def last(self, generations: Sequence[Generation]) -> JsonValue | None:
        del generations
        return None

    def _answer(self, index: int, generation: Generation, said: list[int]) -> Json:
        ended = generation.ended
        about: Json = {"id": generation.rid, "finish_reason": None, "completion_tokens": len(said)}
        if ended is not None:
            reason: Json = {"type": ended.reason}
            if ended.reason == "length":
                reason["length"] = len(ended.output_ids)
            elif ended.output_ids:
                reason["matched"] = ended.output_ids[-1]
            about |= {
                "finish_reason": reason,
                "prompt_tokens": ended.prompt_tokens,
                "completion_tokens": len(ended.output_ids),
                "cached_tokens": ended.cached_tokens,
                "e2e_latency": time.monotonic() - self._begun_s,
            }
        where: Json = {"index": index} if self.is_list else {}
        return {"text": decode(said), "output_ids": said, "meta_info": about, **where}


def _usage(generations: Sequence[Generation]) -> Json:
    ended = [generation.ended for generation in generations if generation.ended is not None]
    prompt = sum(one.prompt_tokens for one in ended)
    completion = sum(len(one.output_ids) for one in ended)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in ended)},
    }
