"""Build a released engine from its name and a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.errors import ConfigError
from hybridbench.released.adapter import DrivenScheduler
from hybridbench.released.engine import ReleasedEngine
from hybridbench.released.sglang.scheduler import SGLangScheduler
from hybridbench.released.vllm.scheduler import VllmScheduler

# The only path that a release has a switch to force; only SGLang has it.
_RETRACT = "retract"


def build_released(
    name: str, config: EngineConfig, force: Mapping[str, int] | None = None
) -> ReleasedEngine:
    """Build the engine ``name``, in the release installed for this interpreter.

    ``force`` gives, by name, the number of steps between two uses of a path that a profile forces.

    Raises:
        ConfigError: there is no such engine, or it does not support ``config``.
    """
    if name not in _SCHEDULERS:
        raise ConfigError(f"{name}: there is {', '.join(_SCHEDULERS)}.")
    forced = {path: every for path, every in (force or {}).items() if every}
    unknown = sorted(forced.keys() - ({_RETRACT} if name == "sglang-cache" else set()))
    if unknown:
        raise ConfigError(f"force.{unknown[0]}: released engines are driven without it.")
    return ReleasedEngine(config, _SCHEDULERS[name](config, forced.get(_RETRACT, 0)))


def _vllm(config: EngineConfig, retract_every: int) -> DrivenScheduler:
    return VllmScheduler(config)


_SCHEDULERS: Mapping[str, Callable[[EngineConfig, int], DrivenScheduler]] = {
    "sglang-cache": SGLangScheduler,
    "vllm-core": _vllm,
}
