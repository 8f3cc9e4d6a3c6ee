"""From the name of an engine and a configuration to a released engine that can be served."""

from __future__ import annotations

from collections.abc import Mapping

from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.errors import ConfigError
from hybridbench.released.engine import ReleasedEngine
from hybridbench.released.sglang import ReleasedScheduler

_NAMES = ("sglang-cache",)
# The one path that the release can be made to take by a switch of its own.
_RETRACT = "retract"


def build_released(
    name: str, config: EngineConfig, force: Mapping[str, int] | None = None
) -> ReleasedEngine:
    """The engine called ``name``, in the release that this interpreter has.

    ``force`` are paths that a profile forces, by name: how often each is taken.

    Raises:
        ConfigError: there is no such engine, or it cannot be driven as ``config`` asks.
    """
    if name not in _NAMES:
        raise ConfigError(f"{name}: there is {', '.join(_NAMES)}.")
    forced = {path: every for path, every in (force or {}).items() if every}
    unknown = sorted(forced.keys() - {_RETRACT})
    if unknown:
        raise ConfigError(f"force.{unknown[0]}: released engines are driven without it.")
    return ReleasedEngine(config, ReleasedScheduler(config, forced.get(_RETRACT, 0)))
