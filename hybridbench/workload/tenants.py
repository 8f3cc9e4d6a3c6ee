"""Which tenant sent what: an answer that reuses what only another tenant computed is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

# Prompts of one tenant that begin with the same tokens may share a prefix.
_BEGINNING = 8
# Beginnings remembered; there are as many as tenants and system prompts, unless those are short.
_BEGINNINGS_MAX = 10_000


class Beginnings:
    """How often each tenant has sent a prompt with these first tokens."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._first: dict[str, tuple[str, tuple[int, ...]]] = {}  # by request

    def sent(self, rid: str, tenant: str, prompt: Sequence[int]) -> None:
        """Count the beginning of a request's ``prompt``."""
        if len(self._times) >= _BEGINNINGS_MAX:
            return
        beginning = tenant, tuple(prompt[:_BEGINNING])
        self._times[beginning] += 1
        if self._times[beginning] == 1:
            self._first[rid] = beginning

    def fault_of(self, rid: str, cached_tokens: int) -> str:
        """Return that a request has reused ``cached_tokens`` although its tenant sent nothing like
        it; empty if it has reused none, or another request of the tenant began with the same
        tokens.
        """
        beginning = self._first.pop(rid, None)
        is_only = beginning is not None and self._times[beginning] == 1
        if beginning is None or not is_only or cached_tokens <= _BEGINNING:
            return ""
        return (
            f"{beginning[0]} got {cached_tokens:,} tokens from the cache, and no other prompt of "
            "that tenant begins like this one"
        )
