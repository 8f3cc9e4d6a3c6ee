"""How the name given as --model is resolved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hybridbench.engine.models.export import write_checkpoint
from hybridbench.engine.models.presets import PRESETS
from hybridbench.engine.models.registry import resolve_model
from hybridbench.engine.models.weights import RandomWeights
from hybridbench.foundation.errors import ConfigError
from tests.model_steps import NANO_MODEL


def test_the_full_model_on_a_cpu_is_the_tiny_one_and_says_so() -> None:
    resolved = resolve_model("qwen3-next", "cpu")
    assert resolved.name == "qwen3-next-tiny"
    assert resolved.config == PRESETS["qwen3-next-tiny"]
    assert "qwen3-next on a CPU means qwen3-next-tiny" in resolved.note


def test_the_full_model_on_a_gpu_is_itself_without_a_note() -> None:
    resolved = resolve_model("qwen3-next", "cuda")
    assert (resolved.config, resolved.note) == (PRESETS["qwen3-next"], "")


def test_directory_is_read_as_a_checkpoint(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    write_checkpoint(NANO_MODEL, RandomWeights(NANO_MODEL, 0, cpu), tmp_path)
    resolved = resolve_model(str(tmp_path), "cpu")
    assert (resolved.config, resolved.path) == (NANO_MODEL, tmp_path)


def test_unknown_name_lists_the_presets_and_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean qwen3-next-mini\?.*qwen3-next-small"):
        resolve_model("qwen3-next-mni", "cpu")
    with pytest.raises(ConfigError, match=r"nor a preset; presets are"):
        resolve_model("./nowhere", "cpu")
    with pytest.raises(ConfigError, match=r"is a file; give the directory.*GGUF is not read"):
        resolve_model(__file__, "cpu")


@pytest.mark.parametrize(
    ("name", "millions", "state_kib", "kv_bytes", "dtype"),
    [
        ("qwen3-next-tiny", 1.8, 57, 512, torch.float32),
        ("attention-nano", 0.14, 0, 128, torch.float32),
        ("qwen3-next-mini", 2.5, 114, 1024, torch.float32),
        ("qwen3-next-small", 14.6, 840, 2048, torch.float32),
        ("qwen3-next-1b", 820, 12.3 * 1024, 4096, torch.bfloat16),
        ("qwen3-next-2b", 2250, 18.4 * 1024, 6144, torch.bfloat16),
        ("qwen3-next-4b", 3900, 36.8 * 1024, 12288, torch.bfloat16),
        ("qwen3-next", 79_700, 73.7 * 1024, 24576, torch.bfloat16),
        ("qwen3.5-tiny", 1.8, 57, 512, torch.float32),
        ("qwen3.5", 34_700, 61.4 * 1024, 20480, torch.bfloat16),
        ("gpt-oss-1b", 946, 0, 12288, torch.bfloat16),
        ("nemotron-h-1b", 1100, 24.4 * 1024, 4096, torch.bfloat16),
        ("nemotron-h", 8100, 97.4 * 1024, 16384, torch.bfloat16),
        ("falcon-h1-1b", 894, 30.2 * 1024, 10240, torch.bfloat16),
        ("falcon-h1", 7586, 132.9 * 1024, 45056, torch.bfloat16),
    ],
)
def test_presets_have_the_sizes_that_are_promised(
    name: str, millions: float, state_kib: float, kv_bytes: int, dtype: torch.dtype
) -> None:
    config = PRESETS[name]
    parameters = sum(torch.Size(shape).numel() for shape in config.tensors().values())
    assert parameters / 1e6 == pytest.approx(millions, rel=0.02)
    assert config.state_bytes_per_slot(dtype) / 1024 == pytest.approx(state_kib, rel=0.01)
    assert config.kv_bytes_per_token(dtype) == kv_bytes


def test_the_attention_only_preset_has_no_recurrent_layer() -> None:
    config = PRESETS["attention-tiny"]

    assert config.linear_layer_ids == ()
    assert len(config.kv_layer_ids) == 4
