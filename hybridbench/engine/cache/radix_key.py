"""The key of a prefix: token ids and a namespace, stored as bytes so that comparing is a memcmp."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

TOKEN_BYTES = 8  # one token id is a 64-bit integer in the machine's byte order

TokenIds = Sequence[int] | NDArray[np.int64] | NDArray[np.int32]
# The key of a child in its parent's table: the bytes of the child's first page and, for children of
# the root, the namespace.  A namespace applies to a whole path, so deeper nodes need not repeat it.
ChildKey = bytes | tuple[str, bytes]


class RadixKey:
    """Token ids of a prefix; keys with different ``extra_key`` never match each other.

    Attributes:
        raw: the ids, eight bytes each.
        extra_key: namespace (an adapter, a tenant), or None for the common one.
    """

    __slots__ = ("extra_key", "raw")

    def __init__(self, token_ids: TokenIds | array[int], extra_key: str | None = None) -> None:
        if isinstance(token_ids, array) and token_ids.typecode == "q":
            self.raw = token_ids.tobytes()
        elif isinstance(token_ids, np.ndarray):
            self.raw = token_ids.astype(np.int64, copy=False).tobytes()
        else:
            self.raw = array("q", token_ids).tobytes()
        self.extra_key = extra_key

    def namespace(self) -> bytes:
        """``extra_key`` as bytes to hash; any characters from a client are accepted."""
        return (self.extra_key or "").encode("utf-8", "surrogatepass")

    @classmethod
    def from_raw(cls, raw: bytes, extra_key: str | None) -> RadixKey:
        """The key whose ids are ``raw``, eight bytes each."""
        key = cls.__new__(cls)
        key.raw = raw
        key.extra_key = extra_key
        return key

    @property
    def token_ids(self) -> list[int]:
        """The ids, as a new list."""
        return array("q", self.raw).tolist()

    def __len__(self) -> int:
        return len(self.raw) // TOKEN_BYTES

    def __iter__(self) -> Iterator[int]:
        return iter(array("q", self.raw))

    def __getitem__(self, index: int | slice[int | None, int | None, int | None]) -> RadixKey:
        """A new key with the same namespace; one id gives a key of length 1."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                part = self.raw[start * TOKEN_BYTES : max(start, stop) * TOKEN_BYTES]
                return RadixKey.from_raw(part, self.extra_key)
            return RadixKey(self.token_ids[index], self.extra_key)
        return RadixKey([self.token_ids[index]], self.extra_key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RadixKey):
            return NotImplemented
        return self.raw == other.raw and self.extra_key == other.extra_key

    def __hash__(self) -> int:
        return hash((self.raw, self.extra_key))

    def __repr__(self) -> str:
        ids = self.token_ids
        text = f"{ids[:10]}..." if len(ids) > 10 else f"{ids}"
        return f"RadixKey(extra_key={self.extra_key!r}, token_ids={text})"

    def match(self, other: RadixKey, page_size: int = 1) -> int:
        """Length of the common prefix, in whole pages.

        Raises:
            ValueError: the namespaces differ; such keys must not be compared at all.
        """
        if self.extra_key != other.extra_key:
            raise ValueError(
                f"keys with extra_key {self.extra_key!r} and {other.extra_key!r} do not compare"
            )
        return common_tokens(self.raw, 0, other.raw, page_size)

    def child_key(self, page_size: int = 1) -> ChildKey:
        """The key under which the root stores this: its first page, with the namespace if any."""
        first = self.raw[: page_size * TOKEN_BYTES]
        return first if self.extra_key is None else (self.extra_key, first)

    def page_aligned(self, page_size: int) -> RadixKey:
        """This key without the tokens after its last whole page; itself if there are none."""
        excess = len(self.raw) % (page_size * TOKEN_BYTES)
        return RadixKey.from_raw(self.raw[:-excess], self.extra_key) if excess else self


def common_tokens(raw: bytes, offset: int, other: bytes, page_size: int) -> int:
    """Number of tokens, in whole pages, in the common prefix of ``raw[offset:]`` and ``other``."""
    count = min(len(raw) - offset, len(other)) // TOKEN_BYTES
    left = np.frombuffer(raw, dtype=np.int64, count=count, offset=offset)
    right = np.frombuffer(other, dtype=np.int64, count=count)
    differs = left != right
    first = int(differs.argmax()) if count else 0
    common = first if count and differs[first] else count
    return common // page_size * page_size
