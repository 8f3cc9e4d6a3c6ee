"""Response bodies, whole and streamed, in OpenAI's form or in that of SGLang's ``/generate``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias
from uuid import uuid4

from hybridbench.records.json_value import JsonValue
from hybridbench.serve.engine_link import Generation, Tokens
from hybridbench.serve.schema import Asked
from hybridbench.serve.tokens import decode

Json: TypeAlias = dict[str, JsonValue]


class Shape(Protocol):
    """The bodies of one request's answer; an instance serves one request."""

    def whole(self, generations: Sequence[Generation]) -> JsonValue:
        """The whole answer; every generation is finished."""
        ...

    def part(self, index: int, generation: Generation, tokens: Tokens) -> JsonValue:
        """A part with the new ``tokens`` of one generation; none if it has only finished."""
        ...

    def last(self, generations: Sequence[Generation]) -> JsonValue | None:
        """The body after a stream's last part; None if there is none."""
        ...


class OpenAiShape:
    """OpenAI's completions and chats; choices of chats have messages instead of text."""

    def __init__(self, asked: Asked, model: str, *, is_chat: bool) -> None:
        self._asked = asked
        self._is_chat = is_chat
        self._sent: dict[int, int] = {}  # characters sent of each choice that has begun
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

    def part(self, index: int, generation: Generation, tokens: Tokens) -> JsonValue:
        choice = self._choice(index, generation, tokens, "delta")
        self._sent[index] = self._sent.get(index, 0) + len(tokens.ids)
        usage: Json = {"usage": None} if self._asked.usage else {}
        return {**self._about, "choices": [choice], **usage}

    def last(self, generations: Sequence[Generation]) -> JsonValue | None:
        if not self._asked.usage:
            return None
        return {**self._about, "choices": [], "usage": _usage(generations)}

    def _choice(self, index: int, generation: Generation, tokens: Tokens, holder: str) -> Json:
        text = decode(tokens.ids)
        role: Json = {} if index in self._sent else {"role": "assistant"}
        said: Json = {holder: {**role, "content": text}} if self._is_chat else {"text": text}
        extra: Json = {"token_ids": tokens.ids} if self._asked.token_ids else {}
        logprobs: Json | None = None
        if self._asked.logprobs is not None:
            logprobs = self._of_chat(tokens) if self._is_chat else self._of_text(index, tokens)
        ended = generation.ended
        finish = None if ended is None else ended.reason
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": finish, **extra}

    def _of_text(self, index: int, tokens: Tokens) -> Json:
        """Logprobs in the form of OpenAI's completions."""
        names = list(map(self._name, tokens.ids))
        begin = self._sent.get(index, 0)
        return {
            "tokens": names,
            "token_logprobs": [one.logprob for one in tokens.logprobs],
            # The emitted token is included even if it is not among the most likely.
            "top_logprobs": [
                {**{self._name(id_): value for id_, value in one.best}, name: one.logprob}
                for name, one in zip(names, tokens.logprobs, strict=True)
            ],
            # The text has one character for each token.
            "text_offset": list(range(begin, begin + len(names))),
        }

    def _of_chat(self, tokens: Tokens) -> Json:
        """Logprobs in the form of OpenAI's chats."""
        content: list[Json] = [
            {
                **self._with_bytes(id_, one.logprob),
                "top_logprobs": [self._with_bytes(*other) for other in one.best],
            }
            for id_, one in zip(tokens.ids, tokens.logprobs, strict=True)
        ]
        return {"content": content}

    def _with_bytes(self, id_: int, logprob: float) -> Json:
        return {"token": self._name(id_), "logprob": logprob, "bytes": list(decode([id_]).encode())}

    def _name(self, id_: int) -> str:
        return f"token_id:{id_}" if self._asked.tokens_as_ids else decode([id_])


@dataclass
class _Output:
    """One answer so far, in SGLang's form."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[JsonValue] = field(default_factory=list)
    best: list[JsonValue] = field(default_factory=list)


@dataclass
class GenerateShape:
    """SGLang's form: each part repeats the whole text so far; several prompts give a list.

    Args:
        asked: the request.
        is_list: whether the prompts came as a list.
        names_tokens: whether logprobs include the text of a token with its id.
    """

    asked: Asked
    is_list: bool
    names_tokens: bool
    _begun_s: float = field(default_factory=time.monotonic)
    _outputs: dict[int, _Output] = field(default_factory=lambda: defaultdict(_Output))

    def whole(self, generations: Sequence[Generation]) -> JsonValue:
        answers = [self.part(index, one, one.take()) for index, one in enumerate(generations)]
        return answers if self.is_list else answers[0]

    def part(self, index: int, generation: Generation, tokens: Tokens) -> JsonValue:
        output = self._outputs[index]
        output.ids.extend(tokens.ids)
        if self.asked.logprobs is not None:
            for id_, one in zip(tokens.ids, tokens.logprobs, strict=True):
                output.logprobs.append(self._entry(id_, one.logprob))
                output.best.append([self._entry(*other) for other in one.best])
        return self._answer(index, generation, output)

    def last(self, generations: Sequence[Generation]) -> JsonValue | None:
        del generations
        return None

    def _entry(self, id_: int, logprob: float) -> JsonValue:
        return [logprob, id_, decode([id_]) if self.names_tokens else None]

    def _answer(self, index: int, generation: Generation, output: _Output) -> Json:
        ended = generation.ended
        about: Json = {
            "id": generation.rid,
            "finish_reason": None,
            "completion_tokens": len(output.ids),
        }
        if self.asked.logprobs is not None:
            about["output_token_logprobs"] = output.logprobs
        if self.asked.logprobs:
            about["output_top_logprobs"] = output.best
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
        return {"text": decode(output.ids), "output_ids": output.ids, "meta_info": about, **where}


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
