"""Weights from checkpoint files in every supported layout, and from seeds."""

from __future__ import annotations

import json
from dataclasses import replace
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
    """Check that the tensors read from ``directory`` equal those generated from seed 0."""
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


def test_the_draft_head_and_computed_frequencies_are_left_alone(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / FILE)
    tensors["mtp.fc.weight"] = torch.zeros(1)
    tensors["model.visual.patch.weight"] = torch.zeros(1)
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.zeros(1)
    rewrite(checkpoint, tensors)

    assert_same_as_seeded(checkpoint)


@pytest.mark.parametrize(
    "name", ["self_attn.q_proj.bias", "self_attn.sinks", "self_attn.q_proj.weight_scale"]
)
def test_a_tensor_that_the_model_would_ignore_is_refused(checkpoint: Path, name: str) -> None:
    tensors = load_file(checkpoint / FILE)
    tensors[f"model.layers.1.{name}"] = torch.zeros(1)
    tensors["model.layers.1.self_attn.z"] = torch.zeros(1)
    rewrite(checkpoint, tensors)

    with pytest.raises(ConfigError, match=f"layers.1.{name} and 1 more are not used by a model"):
        load_model(checkpoint, torch.float32, "cpu")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.uint8])
def test_quantised_tensors_are_refused_whatever_config_says(
    checkpoint: Path, dtype: torch.dtype
) -> None:
    tensors = load_file(checkpoint / FILE)
    name = "model.layers.1.self_attn.o_proj.weight"
    tensors[name] = tensors[name].to(dtype)
    rewrite(checkpoint, tensors)

    with pytest.raises(ConfigError, match=f"{name} is stored as .*; quantised weights are not"):
        load_model(checkpoint, torch.float32, "cpu")


def test_a_stored_head_must_be_the_embedding_if_both_are_tied(tmp_path: Path) -> None:
    config = replace(NANO_MODEL, tie_word_embeddings=True)
    write_checkpoint(config, RandomWeights(config, 0, CPU), tmp_path)
    tensors = load_file(tmp_path / FILE)
    embedding = tensors["model.embed_tokens.weight"]

    rewrite(tmp_path, {**tensors, "lm_head.weight": embedding.clone()})
    assert load_model(tmp_path, torch.float32, "cpu").config == config

    rewrite(tmp_path, {**tensors, "lm_head.weight": embedding + 1.0})
    with pytest.raises(
        ConfigError, match=r"lm_head\.weight differs from the embedding, but config"
    ):
        load_model(tmp_path, torch.float32, "cpu")


def test_two_files_with_one_tensor_are_refused(checkpoint: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(16)}, checkpoint / "old.safetensors")
    with pytest.raises(
        ConfigError, match=r"norm\.weight is in both model\.safetensors and old\.saf"
    ):
        load_model(checkpoint, torch.float32, "cpu")


def test_an_index_beside_a_single_file_that_it_does_not_list_is_refused(checkpoint: Path) -> None:
    single = (checkpoint / FILE).read_bytes()
    shard(checkpoint)
    (checkpoint / FILE).write_bytes(single)
    with pytest.raises(
        ConfigError, match=r"holds both model\.safetensors and model\.safetensors\.in"
    ):
        load_model(checkpoint, torch.float32, "cpu")


def test_missing_tensor_is_named(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / FILE)
    del tensors["model.layers.1.self_attn.q_norm.weight"]
    rewrite(checkpoint, tensors)
    with pytest.raises(
        ConfigError, match=r"self_attn\.q_norm\.weight is in none of its files; download the files"
    ):
        load_model(checkpoint, torch.float32, "cpu")


def test_wrong_shape_is_named_with_both_shapes(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / FILE)
    tensors["model.norm.weight"] = torch.zeros(5)
    rewrite(checkpoint, tensors)
    with pytest.raises(ConfigError, match=r"model\.norm\.weight the shape \[5\].*requires \[16\]"):
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


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 3231\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (FILE, b"not a tensor in sight", "is not a complete safetensors file; download it again"),
        (FILE, b"", "is not a complete safetensors file; download it again"),
        (FILE, POINTER, "is a Git LFS pointer; fetch the file with git lfs pull"),
        (f"{FILE}.index.json", POINTER, "is a Git LFS pointer; fetch the file with git lfs pull"),
        ("config.json", POINTER, "cannot be read as JSON: it is a Git LFS pointer; fetch"),
    ],
)
def test_what_a_download_left_in_place_of_a_file_is_named(
    checkpoint: Path, name: str, content: bytes, message: str
) -> None:
    (checkpoint / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_model(checkpoint, torch.float32, "cpu")
    assert str(caught.value).startswith(f"{checkpoint / name}: {message}")


def test_a_link_to_nothing_is_named_and_a_hidden_file_is_left_alone(checkpoint: Path) -> None:
    (checkpoint / "._a.safetensors").write_bytes(b"AppleDouble")
    (checkpoint / FILE).rename(checkpoint / "a.safetensors")
    assert_same_as_seeded(checkpoint)
    (checkpoint / "b.safetensors").symlink_to("../blobs/gone")
    with pytest.raises(ConfigError, match=r"b\.safetensors: is a link to a file that is not there"):
        load_model(checkpoint, torch.float32, "cpu")


@pytest.mark.parametrize(
    ("name", "stored", "advice"),
    [
        ("model.norm.weight", "language_model.model.norm.weight", "save the model with transf"),
        ("model.norm.weight", "norm.weight", "save the model with transformers"),
        (
            "model.layers.1.self_attn.q_proj.weight",
            "model.layers.1.self_attn.q_proj.qweight",
            "quantised weights and adapters are not read",
        ),
    ],
)
def test_what_stands_in_the_place_of_a_missing_tensor_is_named(
    checkpoint: Path, name: str, stored: str, advice: str
) -> None:
    tensors = load_file(checkpoint / FILE)
    tensors[stored] = tensors.pop(name)
    rewrite(checkpoint, tensors)
    with pytest.raises(
        ConfigError, match=f"tensor {name} is in none .*hold {stored} instead; {advice}"
    ):
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
    with pytest.raises(ConfigError, match="has no readable weight_map"):
        load_model(checkpoint, torch.float32, "cpu")


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("model.norm.weight", float("nan"), True),
        ("model.norm.weight", float("inf"), True),
        ("model.norm.weight", -float("inf"), False),
        ("lm_head.weight", -float("inf"), True),
    ],
)
def test_values_with_which_nothing_can_be_computed_are_refused(
    checkpoint: Path, name: str, value: float, refused: bool
) -> None:
    tensors = load_file(checkpoint / FILE)
    tensors[name].view(-1)[5] = value
    rewrite(checkpoint, {**tensors, name: tensors[name].to(torch.bfloat16)})

    source = CheckpointWeights(checkpoint, NANO_MODEL, CPU)

    if not refused:
        assert source.take(name).min() == value
        return
    with pytest.raises(ConfigError, match=f"{name} contains NaN or infinite values"):
        source.take(name)


def test_what_an_index_does_not_list_is_read_and_checked_too(checkpoint: Path) -> None:
    shard(checkpoint)
    path = checkpoint / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps(index))
    assert_same_as_seeded(checkpoint)

    name = "model.layers.1.self_attn.q_proj.bias"
    save_file(
        {**load_file(checkpoint / "a.safetensors"), name: torch.zeros(1)},
        checkpoint / "a.safetensors",
    )
    with pytest.raises(ConfigError, match=f"{name} is not used by a model"):
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
