"""The engines that can be prepared; parse the name and release that a user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hybridbench.foundation.errors import ErrorCode, UsageError, full_stop, nearest
from hybridbench.targets.engines.engine import Engine
from hybridbench.targets.engines.llamacpp import LLAMACPP
from hybridbench.targets.engines.sglang import SGLANG
from hybridbench.targets.engines.sglang_cache import SGLANG_CACHE
from hybridbench.targets.engines.vllm import VLLM
from hybridbench.targets.engines.vllm_core import VLLM_CORE

ENGINES: Mapping[str, Engine] = {
    one.name: one for one in (VLLM, SGLANG, LLAMACPP, VLLM_CORE, SGLANG_CACHE)
}

SERVERS: Final = tuple(one.name for one in ENGINES.values() if one.servers)
"""Names of the engines that run as servers; a worker drives the classes of the others."""


def named_engine(text: str, engines: Mapping[str, Engine] = ENGINES) -> tuple[Engine, str]:
    """Return the engine and release that ``text`` names, such as ``vllm==0.32.0``.

    Raises:
        UsageError: there is no such engine, or the release is missing or not a version number.
    """
    from packaging.version import InvalidVersion, Version

    name, _, release = (part.strip() for part in text.partition("=="))
    engine = engine_called(name, engines)
    try:
        Version(release)
    except InvalidVersion as error:
        problem = f"{release!r} is not a release" if release else "the release is missing"
        raise UsageError(
            f"{problem}: write {engine.name}==RELEASE, such as {engine.name}=={engine.example}.",
            code=ErrorCode.BAD_VALUE,
        ) from error
    return engine, release


def engine_called(name: str, engines: Mapping[str, Engine] = ENGINES, option: str = "") -> Engine:
    """Return the engine with this name, or with this package name.

    Raises:
        UsageError: there is no such engine; about ``option``, if given.
    """
    known = _by_every_name(engines)
    engine = known.get(name.lower())
    if engine is None:
        there = nearest(name.lower(), known, f"there are {', '.join(engines)}")
        said = f"{name}: there is no such engine" if option else f"no engine is called {name!r}"
        raise UsageError(full_stop(f"{said}; {there}"), code=ErrorCode.UNKNOWN_NAME, option=option)
    return engine


def is_server_name(text: str) -> bool:
    """Return whether ``text`` names a server, rather than an engine whose classes a worker drives.

    The release is not checked.
    """
    engine = _by_every_name(ENGINES).get(text.partition("==")[0].strip().lower())
    return engine is not None and bool(engine.servers)


def _by_every_name(engines: Mapping[str, Engine]) -> Mapping[str, Engine]:
    """Map engine names and package names to engines; an engine name has precedence."""
    servers_first = sorted(engines.values(), key=lambda one: not one.servers)
    by_package = {one.package: one for one in reversed(servers_first)}
    return {**by_package, **engines}
