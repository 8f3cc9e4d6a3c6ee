"""Interpret the metric names of each engine's metrics page.

The bundled engine behind ``serve`` reports the same metrics there as in a soak: they keep their
soak names, so that the same findings are made.  For other engines' pools, a page shows the slots in
use, which are neither free nor evictable from the prefix cache.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from hybridbench.records.events import IN_USE
from hybridbench.records.load import COUNTED

_OURS: Final = "hybridbench_"
_POOL: Final = re.compile(
    r"pool_(?P<pool>\w+)_(?P<part>total|available|evictable|protected|in_flight|session_held|"
    r"waiting_held|residual)_slots"
)
_TAKEN: Final = re.compile(r"(?P<family>waiting_taken|lost_taken)_(?P<rest>\w+)_slots_total")
_EVENT: Final = re.compile(r"(?P<family>events|steps_with)_(?P<event>\w+)_total")
# Gauges of requests that are stuck or that their clients have abandoned.
_LEVELS: Final[Mapping[str, str]] = {
    "requests_without_client": "requests_without_client",
    "oldest_request_seconds": "oldest_request_s",
    "oldest_silence_seconds": "oldest_silence_s",
}
_SGLANG: Final = re.compile(r"sglang:(?P<pool>kv|swa|mamba)_used_tokens")
_SGLANG_SESSIONS: Final = "sglang:num_streaming_sessions"
_SGLANG_HELD: Final = "sglang:streaming_session_held_tokens"


def series_names(page: Collection[str]) -> Mapping[str, str]:
    """Map the bundled engine's metric names on ``page`` to series names.

    Events that the load client also counts are left out, so they keep their names on the page.
    """
    ours = [name.removeprefix(_OURS) for name in page if name.startswith(_OURS)]
    pools = {found["pool"] for name in ours if (found := _POOL.fullmatch(name))}
    named = {name: _series(name, pools) for name in ours}
    return {f"{_OURS}{name}": series for name, series in named.items() if series}


def _series(name: str, pools: Collection[str]) -> str:
    if found := _POOL.fullmatch(name):
        return f"pool.{found['pool']}.{found['part']}"
    if found := _TAKEN.fullmatch(name):
        of = max((p for p in pools if found["rest"].startswith(f"{p}_")), key=len, default="")
        event = found["rest"].removeprefix(f"{of}_")
        return f"{found['family']}.{of}.{event}" if of else ""
    if found := _EVENT.fullmatch(name):
        series = f"{found['family']}.{found['event']}"
        return "" if found["event"] in COUNTED and found["family"] == "events" else series
    return _LEVELS.get(name, "")


def pools_of(
    levels: Mapping[str, float], in_use: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Return slots by pool and part, from a page's series and gauges; empty for unknown engines.

    Args:
        levels: gauges by their names from ``series_names``, or else by their names on the page.
        in_use: what vLLM and its derivatives have in use, by pool.
    """
    pools = {pool: {IN_USE: used} for pool, used in in_use.items()}
    for name, value in levels.items():
        if name.startswith("pool."):
            _, pool, part = name.split(".")
            pools.setdefault(pool, {})[part] = value
        elif sglang := _SGLANG.fullmatch(name):
            held = _held_by_sessions(sglang["pool"], levels)
            if held is not None:
                pools[sglang["pool"]] = {IN_USE: value - held}
    if not any(parts.get("session_held") for parts in pools.values()):
        # When the engine is idle, no request or session is left that could hold a lock.
        for parts in pools.values():
            if "protected" in parts:
                parts[IN_USE] = parts["protected"]
    return pools


def _held_by_sessions(pool: str, levels: Mapping[str, float]) -> float | None:
    """Return how much of a pool SGLang's open sessions hold; None if its page does not say."""
    if not levels.get(_SGLANG_SESSIONS):
        return 0.0
    return levels.get(_SGLANG_HELD) if pool == "kv" else None
