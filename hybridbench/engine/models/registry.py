"""Turn the value of ``--model`` into a runnable model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from hybridbench.engine.kernels.dispatch import Kernels
from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.falcon_h1 import FalconH1, FalconH1Config
from hybridbench.engine.models.gpt_oss import GptOss, GptOssConfig
from hybridbench.engine.models.hf_config import ConfigFields, excerpt
from hybridbench.engine.models.nemotron_h import NemotronH, NemotronHConfig
from hybridbench.engine.models.presets import PRESETS
from hybridbench.engine.models.qwen3_5_config import Qwen35Config, Qwen35MoeConfig
from hybridbench.engine.models.qwen3_next import Qwen3Next
from hybridbench.engine.models.qwen3_next_config import Qwen3NextConfig
from hybridbench.engine.models.weights import CheckpointWeights, RandomWeights, WeightSource
from hybridbench.foundation.errors import ConfigError

Model: TypeAlias = Qwen3Next | GptOss | NemotronH | FalconH1
Config: TypeAlias = Qwen3NextConfig | GptOssConfig | NemotronHConfig | FalconH1Config

_FAMILIES: tuple[type[Config], ...] = (
    Qwen3NextConfig,
    Qwen35Config,
    Qwen35MoeConfig,
    GptOssConfig,
    NemotronHConfig,
    FalconH1Config,
)
_MULTIMODAL = ("qwen3_5", "qwen3_5_moe")
"""Model types whose ``text_config`` describes the model; its own type ends in ``_text``."""
_INSTEAD = "; soak a preset such as qwen3-next, or a server of this model with --url"
_CPU_STAND_INS: Mapping[str, tuple[str, str]] = {
    "qwen3-next": ("qwen3-next-tiny", "1.8 M"),
    "qwen3.5": ("qwen3.5-tiny", "1.8 M"),
    "gpt-oss": ("gpt-oss-tiny", "1.8 M"),
    "nemotron-h": ("nemotron-h-tiny", "1.7 M"),
    "falcon-h1": ("falcon-h1-tiny", "1.9 M"),
}


@dataclass(frozen=True)
class ResolvedModel:
    """The model that a name refers to on a device, before anything is loaded."""

    name: str
    """The preset, or the path as given."""
    config: ModelConfig
    path: Path | None
    """The checkpoint directory; None for a preset, whose weights come from a seed."""
    note: str
    """One sentence for the run to print, or an empty string."""


def resolve_model(name_or_path: str, device: str | torch.device) -> ResolvedModel:
    """Find the preset with this name, or the checkpoint directory at this path.

    On a CPU a full-size preset is replaced by its tiny variant, because it does not fit in memory.

    Raises:
        ConfigError: neither exists, or the checkpoint's config.json is not usable.
    """
    name, note = name_or_path, ""
    if name in _CPU_STAND_INS and torch.device(device).type == "cpu":
        name, parameters = _CPU_STAND_INS[name]
        note = (
            f"{name_or_path} on a CPU means {name}: the same architecture, {parameters} random "
            "parameters."
        )
    if name in PRESETS:
        return ResolvedModel(name, PRESETS[name], None, note)
    path = Path(name_or_path)
    if path.is_dir():
        return ResolvedModel(name_or_path, read_hf_config(path), path, note)
    if path.is_file():
        raise ConfigError(
            f"model {name_or_path!r} is a file; give the directory of a Hugging Face checkpoint, "
            "with config.json and *.safetensors (GGUF is not read)."
        )
    near = difflib.get_close_matches(name_or_path, PRESETS, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ConfigError(
        f"model {name_or_path!r} is neither a directory nor a preset{hint}; presets are "
        f"{', '.join(PRESETS)}."
    )


def read_hf_config(directory: Path) -> Config:
    """Read the configuration of the checkpoint in ``directory``.

    Raises:
        ConfigError: names the file, the key and the supported values in one sentence.
    """
    whole = ConfigFields.of_checkpoint(directory)
    fields = _text_fields(whole)
    named = fields.values.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else None
    architectures = [family.architecture for family in _FAMILIES]
    if architecture is not None and architecture not in architectures:
        raise fields.error(
            "architectures",
            f"names {excerpt(architecture)}; supported are {', '.join(architectures)}{_INSTEAD}",
        )
    model_type = fields.values.get("model_type")
    family = next((family for family in _FAMILIES if family.model_type == model_type), None)
    if family is None:
        known = ", ".join(family.model_type for family in _FAMILIES)
        raise fields.error(
            "model_type",
            f"{'is missing' if model_type is None else f'is {excerpt(model_type)}'}; supported are "
            f"{known}{_INSTEAD}",
        )
    if architecture not in {None, family.architecture}:
        raise fields.error(
            "architectures",
            f"names {excerpt(architecture)}; {model_type} goes with {family.architecture}",
        )
    for part in (whole, fields):
        part.refuse_what_is_ignored()
    fields.one_of("hidden_act", "silu", "swish")
    return family.from_fields(fields)


def _text_fields(fields: ConfigFields) -> ConfigFields:
    """Return the text model's fields of a multimodal config.json, other files' fields unchanged."""
    model_type = fields.values.get("model_type")
    if model_type not in _MULTIMODAL:
        return fields
    _, text = fields.nested("text_config")
    if not text.values:
        raise fields.error(
            "text_config", f"is missing; {model_type} describes its text model there"
        )
    tied = fields.flag("tie_word_embeddings", text.flag("tie_word_embeddings", False))
    named = fields.values.get("architectures")
    if isinstance(named, list):
        named = [str(name).replace("ForConditionalGeneration", "ForCausalLM") for name in named]
    return text.with_values(
        model_type=f"{model_type}_text", architectures=named, tie_word_embeddings=tied
    )


def build_model(
    config: ModelConfig,
    dtype: torch.dtype,
    device: str | torch.device,
    seed: int,
    kernels: Kernels | None = None,
) -> Model:
    """Build a model of this shape with random weights from ``seed``.

    ``kernels``, if given, replace the device's.
    """
    target = torch.device(device)
    return _assembled(config, RandomWeights(config, seed, target), dtype, target, kernels)


def load_model(
    path: Path | str,
    dtype: torch.dtype,
    device: str | torch.device,
    kernels: Kernels | None = None,
) -> Model:
    """Load the model of a Hugging Face checkpoint directory.

    ``kernels``, if given, replace the device's.

    Raises:
        ConfigError: names the file and the wrong key or tensor in one sentence.
    """
    directory, target = Path(path), torch.device(device)
    config = read_hf_config(directory)
    source = CheckpointWeights(directory, config, target)
    return _assembled(config, source, dtype, target, kernels)


def _assembled(
    config: ModelConfig,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels | None,
) -> Model:
    match config:
        case Qwen3NextConfig():
            return Qwen3Next(config, source, dtype, device, kernels)
        case GptOssConfig():
            return GptOss(config, source, dtype, device, kernels)
        case NemotronHConfig():
            return NemotronH(config, source, dtype, device, kernels)
        case FalconH1Config():
            return FalconH1(config, source, dtype, device, kernels)
        case _:
            raise TypeError(f"no model is built from a {type(config).__name__}")
