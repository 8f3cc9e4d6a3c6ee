"""Which kernels run on which device, and an engine on Triton compared with the references."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields, replace

import pytest
import torch

from hybridbench.engine.engine import Engine
from hybridbench.engine.kernels import dispatch
from hybridbench.engine.kernels.dispatch import REFERENCE, Kernels, kernels_for, triton_kernels
from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.gpt_oss import GptOss, GptOssConfig
from hybridbench.engine.models.nemotron_h import NemotronH, NemotronHConfig
from hybridbench.engine.models.qwen3_next import Qwen3Next
from hybridbench.engine.models.registry import Model
from hybridbench.engine.models.weights import RandomWeights
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import NANO_ENGINE, NANO_MODEL
from tests.unit.engine.kernels.agreement import CPU, DEVICES, device_of
from tests.unit.engine.models.test_families import FAMILIES

OPERATIONS = [field.name for field in fields(Kernels)]
ENGINE_ON_A_CPU = """
import sys
from hybridbench.engine import Engine, EngineConfig, SamplingParams

engine = Engine(EngineConfig(model="qwen3-next-nano", kv_tokens=256, mamba_slots=16))
assert engine.generate([[1, 2, 3]], SamplingParams(max_new_tokens=2))
assert "triton" not in sys.modules
"""


def test_a_cpu_runs_the_references() -> None:
    assert kernels_for("cpu") is REFERENCE
    assert set(REFERENCE.implementations().values()) == {"reference"}


def test_cuda_runs_triton_and_without_it_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels_for("cuda:1") is triton_kernels()
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)

    assert kernels_for("cuda") is REFERENCE


@pytest.mark.parametrize("operation", OPERATIONS)
def test_both_forms_take_the_same_arguments(operation: str) -> None:
    forms = [vars(kernels)[operation] for kernels in (REFERENCE, triton_kernels())]

    reference, kernel = (inspect.signature(form).parameters for form in forms)

    assert list(kernel.values()) == list(reference.values())


def test_an_engine_on_a_cpu_does_not_import_triton() -> None:
    subprocess.run([sys.executable, "-c", ENGINE_ON_A_CPU], check=True, timeout=60)


CONFIGS: dict[str, ModelConfig] = {"qwen3-next": NANO_MODEL, **FAMILIES}


def model_of(family: str, kernels: Kernels, device: torch.device) -> Model:
    """Build a model with weights from the CPU's generator; other devices' generators differ."""
    config = CONFIGS[family]
    parts = RandomWeights(config, 1, CPU), torch.float64, device, kernels
    if isinstance(config, GptOssConfig):
        return GptOss(config, *parts)
    if isinstance(config, NemotronHConfig):
        return NemotronH(config, *parts)
    return Qwen3Next(NANO_MODEL, *parts)


def texts(family: str, kernels: Kernels, device: torch.device) -> list[list[int]]:
    """Return an engine's outputs for three prompts, two of which share a prefix."""
    config = replace(
        NANO_ENGINE,
        device=str(device),
        mamba_scheduler_strategy="extra_buffer",
        mamba_cache_chunk_size=16,
        mamba_track_interval=16,
        page_size=16,
    )
    model = model_of(family, kernels, device)
    engine = Engine(config, model=model, kernels=kernels)
    prompts = [list(range(1, 36)), [*range(1, 20), 3], [7]]
    return engine.generate(prompts, SamplingParams(max_new_tokens=3, ignore_eos=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "family",
    [
        "qwen3-next",
        pytest.param("gpt-oss", marks=pytest.mark.slow),
        pytest.param("nemotron-h", marks=pytest.mark.slow),
    ],
)
def test_an_engine_on_triton_says_what_the_reference_says(family: str, device: str) -> None:
    on_triton = texts(family, triton_kernels(), device_of(device))

    assert on_triton == texts(family, REFERENCE, CPU)
