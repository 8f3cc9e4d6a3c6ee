"""Table of the differences between the interfaces of SGLang's releases."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hybridbench.foundation.errors import ConfigError


@dataclass(frozen=True)
class Generation:
    """Releases with the same interface.

    Attributes:
        releases: their version numbers.
        token_ids: converts token ids to the type of a request's tokens.
        states: returns the free state slots, given the pool of request rows.
        has_unified_tree: whether a switch enables a unified tree.
        sessions: the modules of sessions that keep their KV, and of their records between turns;
            None before there were any.
    """

    releases: tuple[str, ...]
    token_ids: Callable[[Sequence[int]], Any]
    states: Callable[[Any], Any]
    sessions: tuple[str, str] | None
    has_unified_tree: bool = False


def _tokens(ids: Sequence[int]) -> Any:
    return array("q", ids)


def _of_pool(rows: Any) -> Any:
    return rows.mamba_pool.free_slots


def _of_allocator(rows: Any) -> Any:
    return rows.mamba_allocator.free_slots


_STREAMING: Final = ("session.session_controller", "session.streaming_session")

GENERATIONS: Final = (
    Generation(("0.5.9",), list, _of_pool, None),
    Generation(
        ("0.5.10", "0.5.10.post1"),
        list,
        _of_pool,
        ("managers.session_controller", "mem_cache.session_aware_cache"),
    ),
    Generation(("0.5.11", "0.5.12", "0.5.12.post1"), list, _of_pool, _STREAMING, True),
    Generation(("0.5.13", "0.5.14"), _tokens, _of_allocator, _STREAMING, True),
)


def generation_of(release: str) -> Generation:
    """
    Raises:
        ConfigError: this release is not supported.
    """
    for generation in GENERATIONS:
        if release in generation.releases:
            return generation
    known = ", ".join(number for one in GENERATIONS for number in one.releases)
    raise ConfigError(f"sglang {release} is not driven; there are {known}.")
