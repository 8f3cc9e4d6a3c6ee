"""``hybridbench list models``."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.engine.models.presets import PRESETS


def test_each_preset_is_a_row() -> None:
    result = CliRunner().invoke(app, ["list", "models"])

    assert result.exit_code == 0, result.output
    rows = dict(line.split(maxsplit=1) for line in filter(None, result.output.splitlines()))
    assert rows.keys() >= PRESETS.keys()
    assert rows["falcon-h1-tiny"].startswith("1.87 M")


def test_programs_get_bytes_and_what_fits_beside_the_weights() -> None:
    result = CliRunner().invoke(app, ["list", "models", "--format", "json"])

    models = {model["name"]: model for model in json.loads(result.output)}
    assert models.keys() == PRESETS.keys()
    tiny, plain = models["qwen3-next-tiny"], models["attention-tiny"]
    assert tiny["state_bytes_per_slot"] == 57 * 1024
    assert tiny["kv_bytes_per_token"] == 512
    assert tiny["weight_bytes"] == 4 * tiny["parameters"]
    slots, tokens = tiny["mamba_slots_that_fit"], tiny["kv_tokens_that_fit"]
    assert slots == tokens * 512 // tiny["state_bytes_per_slot"]
    assert plain["mamba_slots_that_fit"] is None
