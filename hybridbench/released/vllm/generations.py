"""Table of the differences between the interfaces of vLLM's releases."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hybridbench.foundation.errors import ConfigError


@dataclass(frozen=True)
class Generation:
    """Releases with the same interface.

    Attributes:
        releases: their version numbers.
        block_sizes: of the scheduler and of hashes, given the module of cache utilities, the cache
            configuration and the settings.
        hash_function: returns the hash function of a name.
    """

    releases: tuple[str, ...]
    block_sizes: Callable[[Any, Any, Any], tuple[int, int]]
    hash_function: Callable[[str], Callable[[Any], bytes]]


def _resolved(utils: Any, kept: Any, settings: Any) -> tuple[int, int]:
    sizes: tuple[int, int] = utils.resolve_kv_cache_block_sizes(kept, settings)
    return sizes


def _hash_function(name: str) -> Callable[[Any], bytes]:
    module: Any = importlib.import_module("vllm.utils.hashing")
    function: Callable[[Any], bytes] = module.get_hash_fn_by_name(name)
    return function


GENERATIONS: Final = (
    Generation(
        (
            "0.20.2", "0.22.1", "0.25.1", "0.27.1", "0.28.0", "0.29.0", "0.30.0",
            "0.31.0", "0.32.0",
        ),
        _resolved,
        _hash_function,
    ),
)  # fmt: skip


def generation_of(release: str) -> Generation:
    """
    Raises:
        ConfigError: this release is not supported.
    """
    for generation in GENERATIONS:
        if release in generation.releases:
            return generation
    known = ", ".join(number for one in GENERATIONS for number in one.releases)
    raise ConfigError(f"vllm {release} is not driven; there are {known}.")
