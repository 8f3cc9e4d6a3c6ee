"""A decode step asks for no value of a tensor, so that a device never waits and can record it.

On the meta device nothing has a value, and whatever asks for one raises.  Kernels are called up to
their launch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hybridbench.engine.kernels.dispatch import REFERENCE, Kernels, triton_kernels
from hybridbench.engine.models.registry import build_model
from hybridbench.engine.models.weights import RandomWeights
from tests.model_steps import Stepper, make_pools
from tests.unit.engine.kernels.agreement import device_of
from tests.unit.engine.test_cuda_graph_runner import MODELS

META = torch.device("meta")


class Launches:
    """In the place of a Triton function: counts its launches."""

    def __init__(self) -> None:
        self.count = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Launches:
        assert all(type(size) is int for size in grid)
        return self

    def __call__(self, *arguments: object, **constants: object) -> None:
        self.count += 1


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    device_of("cpu")
    from triton.runtime.interpreter import InterpretedFunction

    counted = Launches()
    for kernel in vars(triton_kernels()).values():
        module: Any = __import__(kernel.__module__, fromlist=["_"])
        for name, value in list(vars(module).items()):
            if isinstance(value, InterpretedFunction):
                monkeypatch.setattr(module, name, counted)
    return counted


def decoded(family: str, kernels: Kernels) -> Tensor:
    """Logits of a decode step of two requests, padded to four."""
    config = MODELS[family]
    stepper = Stepper(build_model(config, torch.float64, "cpu", seed=4))
    requests = [stepper.start(), stepper.start()]
    stepper.extend(requests, [[1, 2, 3], [4]])
    batch = stepper.batch("decode", requests, [[1], [2]])
    inputs = stepper.model.decode_inputs(batch, stepper.kv_pool).padded(4)
    source = RandomWeights(config, 0, torch.device("cpu"))
    model = type(stepper.model)(config, source, torch.bfloat16, META, kernels)  # type: ignore[arg-type]
    return model.decode(inputs.to(META), make_pools(config, torch.bfloat16, META))


@pytest.mark.parametrize("family", MODELS)
def test_decoding_asks_for_no_value(family: str, launches: Launches) -> None:
    logits = decoded(family, triton_kernels())

    assert logits.shape == (4, MODELS[family].vocab_size)
    assert launches.count > 0


def test_a_kernel_that_asks_for_one_is_seen() -> None:
    # The reference of attention lays its groups out on the host.
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        decoded("gpt-oss", REFERENCE)
