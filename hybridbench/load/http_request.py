"""One HTTP request before it is encoded, and the values drawn for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

import msgspec

from hybridbench.records.json_value import JsonValue
from hybridbench.records.load import Api

T = TypeVar("T")
_LARGE_CHARACTERS: Final = (10_000, 1_000_000)
_NAME_BITS: Final = 64


@dataclass
class HttpRequest:
    """A request to one interface of a server.

    Args:
        path: relative to the server's address.
        fields: of its body.
        raw: the body, if it is not ``fields`` as JSON.
        is_cut_off: whether the connection closes in the middle of the body.
        marks: names of its unusual properties: its options, or what is wrong with it.
    """

    api: Api
    path: str
    fields: dict[str, JsonValue]
    method: str = "POST"
    content_type: str = "application/json"
    raw: bytes | None = None
    is_cut_off: bool = False
    marks: tuple[str, ...] = ()

    @property
    def streams(self) -> bool:
        """Whether the answer is streamed token by token."""
        return self.fields.get("stream") is True

    @property
    def body(self) -> bytes:
        """The body as bytes."""
        return msgspec.json.encode(self.fields) if self.raw is None else self.raw

    def set(self, fields: Mapping[str, JsonValue]) -> None:
        """Set ``fields`` in the body; merge an object into an existing one."""
        for name, value in fields.items():
            there = self.fields.get(name)
            if isinstance(there, dict) and isinstance(value, dict):
                self.fields[name] = {**there, **value}
            else:
                self.fields[name] = value

    def set_sampling(self, fields: Mapping[str, JsonValue]) -> None:
        """Set ``fields`` at the interface's place for sampling parameters."""
        self.set({"sampling_params": {**fields}} if self.api == "generate" else fields)


class Values:
    """Draws values for one request; equal seeds give equal values.

    Args:
        most_tokens: the longest answer that the request may have.
        large: whether ``text`` is large.
    """

    def __init__(self, seed: int, most_tokens: int, *, large: bool = False) -> None:
        self._random = Random(seed)
        self._large = large
        self.most_tokens = most_tokens

    def name(self) -> str:
        """Draw a new, unique name."""
        return f"x{self._random.getrandbits(_NAME_BITS):016x}"

    def text(self) -> str:
        """Draw a name, or repeat it to 10 kB to 1 MB."""
        name = self.name()
        if not self._large:
            return name
        return (name * (_LARGE_CHARACTERS[1] // len(name)))[: self.whole(*_LARGE_CHARACTERS)]

    def whole(self, low: int, high: int) -> int:
        """Draw an integer, both ends included."""
        return self._random.randint(low, high)

    def number(self, low: float, high: float) -> float:
        """Draw a number with two decimal places."""
        return round(self._random.uniform(low, high), 2)

    def flag(self) -> bool:
        """Draw True or False."""
        return self._random.random() < 0.5

    def one_of(self, choices: Sequence[T]) -> T:
        """Draw one of ``choices``."""
        return self._random.choice(choices)

    def some_of(self, choices: Sequence[T], count: int) -> list[T]:
        """Draw ``count`` of ``choices``, or all if there are fewer."""
        return self._random.sample(choices, min(count, len(choices)))
