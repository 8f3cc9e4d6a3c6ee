"""From what a person writes after ``--model`` to a model that can run."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

import torch

from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.hf_config import read_hf_config
from hybridbench.engine.models.presets import PRESETS
from hybridbench.engine.models.qwen3_next import Qwen3Next
from hybridbench.engine.models.weights import CheckpointWeights, RandomWeights
from hybridbench.errors import ConfigError

_FULL_SIZE = "qwen3-next"
_CPU_STAND_IN = "qwen3-next-tiny"


@dataclass(frozen=True)
class ResolvedModel:
    """Which model a name means on a device; nothing is loaded yet."""

    name: str
    """The preset, or the path as given."""
    config: ModelConfig
    path: Path | None
    """The checkpoint directory; None for a preset, whose weights come from a seed."""
    note: str
    """One sentence that a run prints, or an empty string."""


def resolve_model(name_or_path: str, device: str | torch.device) -> ResolvedModel:
    """The preset of that name, or the checkpoint directory at that path.

    On a CPU ``qwen3-next`` means the tiny preset, because 80 billion parameters do not fit.

    Raises:
        ConfigError: neither exists, or the checkpoint's config.json is not usable.
    """
    name, note = name_or_path, ""
    if name == _FULL_SIZE and torch.device(device).type == "cpu":
        name = _CPU_STAND_IN
        note = (
            f"{_FULL_SIZE} on a CPU means {_CPU_STAND_IN}: the same architecture, 1.8 M random "
            "parameters."
        )
    if name in PRESETS:
        return ResolvedModel(name, PRESETS[name], None, note)
    path = Path(name_or_path)
    if path.is_dir():
        return ResolvedModel(name_or_path, read_hf_config(path), path, note)
    near = difflib.get_close_matches(name_or_path, PRESETS, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ConfigError(
        f"model {name_or_path!r} is neither a directory nor a preset{hint}; presets are "
        f"{', '.join(PRESETS)}."
    )


def build_model(
    config: ModelConfig, dtype: torch.dtype, device: str | torch.device, seed: int
) -> Qwen3Next:
    """A model of that shape with random weights named by ``seed``."""
    target = torch.device(device)
    return Qwen3Next(config, RandomWeights(config, seed, target), dtype, target)


@dataclass(frozen=True)
class LoadedModel:
    """A model from files, and what in the files it did not use."""

    model: Qwen3Next
    unexpected_tensors: tuple[str, ...]


def load_model(path: Path | str, dtype: torch.dtype, device: str | torch.device) -> LoadedModel:
    """The model of a Hugging Face checkpoint directory.

    Raises:
        ConfigError: one sentence naming the file and the key or tensor that is wrong.
    """
    directory, target = Path(path), torch.device(device)
    config = read_hf_config(directory)
    source = CheckpointWeights(directory, config, target)
    return LoadedModel(Qwen3Next(config, source, dtype, target), source.unexpected)
