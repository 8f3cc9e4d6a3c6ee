"""Weights from files in every layout they come in, and from seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hybridbench.engine.models.export import write_checkpoint
from hybridbench.engine.models.registry import load_model
from hybridbench.engine.models.weights import CheckpointWeights, RandomWeights
from hybridbench.foundation.errors import ConfigError
from tests.model_steps import NANO_MODEL

CPU = torch.device("cpu")
FILE = "model.safetensors"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_checkpoint(NANO_MODEL, RandomWeights(NANO_MODEL, 0, CPU), tmp_path)
    return tmp_path


def rewrite(directory: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, directory / FILE)


def assert_same_as_seeded(directory: Path) -> None:
    """Every tensor read from ``directory`` is the one that seed 0 makes."""
    source = CheckpointWeights(directory, NANO_MODEL, CPU)
    seeded = RandomWeights(NANO_MODEL, 0, CPU)
    for name in NANO_MODEL.tensors():
        assert torch.equal(source.take(name), seeded.take(name)), name


def test_single_file_gives_back_what_was_written(checkpoint: Path) -> None:
    assert_same_as_seeded(checkpoint)


def test_shards_are_found_by_their_index(checkpoint: Path) -> None:
    shard(checkpoint)
    assert_same_as_seeded(checkpoint)


def test_packed_experts_are_unpacked(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / FILE)
    for layer in range(NANO_MODEL.num_hidden_layers):
        prefix = f"model.layers.{layer}.mlp.experts"
        units = [
            {
                unit: tensors.pop(f"{prefix}.{expert}.{unit}_proj.weight")
                for unit in ("gate", "up", "down")
            }
            for expert in range(NANO_MODEL.num_experts)
        ]
        gate_up = [torch.cat((unit["gate"], unit["up"])) for unit in units]
        tensors[f"{prefix}.gate_up_proj"] = torch.stack(gate_up)
        tensors[f"{prefix}.down_proj"] = torch.stack([unit["down"] for unit in units])
    rewrite(checkpoint, tensors)

    assert_same_as_seeded(checkpoint)
    assert CheckpointWeights(checkpoint, NANO_MODEL, CPU).unexpected == ()


def test_tensors_without_a_use_are_reported_but_for_the_draft_head(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / FILE)
    tensors["mtp.fc.weight"] = torch.zeros(1)
    tensors["vision.patch.weight"] = torch.zeros(1)
    rewrite(checkpoint, tensors)

    assert load_model(checkpoint, torch.float32, "cpu").unexpected_tensors == (
        "vision.patch.weight",
    )


def test_missing_tensor_is_named(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / FILE)
    del tensors["model.layers.1.self_attn.q_norm.weight"]
    rewrite(checkpoint, tensors)
    with pytest.raises(ConfigError, match=r"tensor model\.layers\.1\.self_attn\.q_norm\.weight is"):
        load_model(checkpoint, torch.float32, "cpu")


def test_wrong_shape_is_named_with_both_shapes(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / FILE)
    tensors["model.norm.weight"] = torch.zeros(5)
    rewrite(checkpoint, tensors)
    with pytest.raises(ConfigError, match=r"model\.norm\.weight the shape \[5\].*asks for \[16\]"):
        load_model(checkpoint, torch.float32, "cpu")


def test_too_few_packed_experts_are_an_error(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / FILE)
    prefix = "model.layers.0.mlp.experts"
    gone = [name for name in tensors if name.startswith(prefix)]
    hidden, width = NANO_MODEL.hidden_size, NANO_MODEL.moe_intermediate_size
    for name in gone:
        del tensors[name]
    tensors[f"{prefix}.gate_up_proj"] = torch.zeros(1, 2 * width, hidden)
    tensors[f"{prefix}.down_proj"] = torch.zeros(1, hidden, width)
    rewrite(checkpoint, tensors)
    with pytest.raises(ConfigError, match=r"experts\.1\.gate_proj\.weight the shape \[0\]"):
        load_model(checkpoint, torch.float32, "cpu")


def test_directory_without_weights_is_one_sentence(checkpoint: Path) -> None:
    (checkpoint / FILE).unlink()
    with pytest.raises(ConfigError, match=r"there are no \*\.safetensors files"):
        load_model(checkpoint, torch.float32, "cpu")


def test_file_that_is_no_safetensors_is_one_sentence(checkpoint: Path) -> None:
    (checkpoint / FILE).write_bytes(b"not a tensor in sight")
    with pytest.raises(ConfigError, match=r"model\.safetensors: cannot be read as safetensors"):
        load_model(checkpoint, torch.float32, "cpu")


def test_missing_shard_and_wrong_index_are_named(checkpoint: Path) -> None:
    shard(checkpoint)
    (checkpoint / "b.safetensors").rename(checkpoint / "elsewhere")
    with pytest.raises(ConfigError, match=r"lists b\.safetensors, which is not there"):
        load_model(checkpoint, torch.float32, "cpu")
    (checkpoint / "a.safetensors").rename(checkpoint / "b.safetensors")
    (checkpoint / "elsewhere").rename(checkpoint / "a.safetensors")
    with pytest.raises(ConfigError, match=r"places tensor .* which lacks it"):
        load_model(checkpoint, torch.float32, "cpu")
    (checkpoint / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds no weight_map that can be read"):
        load_model(checkpoint, torch.float32, "cpu")


@pytest.mark.parametrize("file", ["../b.safetensors", "/b.safetensors", "x/b.safetensors", ""])
def test_an_index_names_only_files_beside_it(checkpoint: Path, file: str) -> None:
    index = {"weight_map": {"model.norm.weight": file}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(ConfigError, match="which is not in the checkpoint directory"):
        load_model(checkpoint, torch.float32, "cpu")


def test_seeds_name_weights_whatever_the_order() -> None:
    names = list(NANO_MODEL.tensors())
    one, other = RandomWeights(NANO_MODEL, 4, CPU), RandomWeights(NANO_MODEL, 4, CPU)
    forward = {name: one.take(name) for name in names}
    for name in reversed(names):
        assert torch.equal(other.take(name), forward[name]), name
    name = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    assert not torch.equal(RandomWeights(NANO_MODEL, 5, CPU).take(name), forward[name])


def test_random_norms_and_decays_are_off_identity() -> None:
    weights = RandomWeights(NANO_MODEL, 0, CPU)
    for name in NANO_MODEL.tensors():
        if name.endswith(("norm.weight", "A_log", "dt_bias")):
            assert float(weights.take(name).std()) > 0.01, name


def shard(directory: Path) -> None:
    """Spread the tensors of the single file over a.safetensors and b.safetensors."""
    tensors = load_file(directory / FILE)
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, directory / file)
    weight_map = {name: file for file, part in halves.items() for name in part}
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (directory / "model.safetensors.index.json").write_text(index)
    (directory / FILE).unlink()
