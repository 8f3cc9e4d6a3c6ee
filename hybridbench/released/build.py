"""Build a released engine from its name and a configuration."""

from __future__ import annotations

from collections.abc import Mapping

from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.errors import ConfigError
from hybridbench.released.engine import ReleasedEngine
from hybridbench.released.sglang import ReleasedScheduler

_NAMES = ("sglang-cache",)
# The only path that a switch of the release can force.
_RETRACT = "retract"


def build_released(
    name: str, config: EngineConfig, force: Mapping[str, int] | None = None
) -> ReleasedEngine:
    """Build the engine ``name``, in the release installed for this interpreter.

    ``force`` is how often to take each path that a profile forces, by name.

    Raises:
        ConfigError: there is no such engine, or it does not support ``config``.
    """
    if name not in _NAMES:
        raise ConfigError(f"{name}: there is {', '.join(_NAMES)}.")
    forced = {path: every for path, every in (force or {}).items() if every}
    unknown = sorted(forced.keys() - {_RETRACT})
    if unknown:
        raise ConfigError(f"force.{unknown[0]}: released engines are driven without it.")
    return ReleasedEngine(config, ReleasedScheduler(config, forced.get(_RETRACT, 0)))
