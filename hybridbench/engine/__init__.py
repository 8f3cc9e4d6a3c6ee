"""A small hybrid inference engine, usable without the CLI: build one, submit, step."""

from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.front_end import DuplicateRequestError
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import EngineConfig, NewTokenRatio

__all__ = [
    "DuplicateRequestError",
    "Engine",
    "EngineConfig",
    "EngineCounters",
    "EngineEvent",
    "EventKind",
    "NewTokenRatio",
    "SamplingParams",
]
