"""Write a model's weights as a Hugging Face checkpoint, for tools that read only this format."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.weights import WeightSource


def write_checkpoint(
    config: ModelConfig, source: WeightSource, directory: Path, dtype: torch.dtype = torch.float32
) -> None:
    """Write model.safetensors and config.json, with the newer keys, to an existing directory."""
    tensors = {name: source.take(name).to("cpu", dtype).contiguous() for name in config.tensors()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    fields = json.dumps(config.hf_fields(), indent=2)
    (directory / "config.json").write_text(fields + "\n", encoding="utf-8")
