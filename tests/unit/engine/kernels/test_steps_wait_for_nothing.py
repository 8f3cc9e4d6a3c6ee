"""A step reads no tensor value and waits for no copy, so neither the host nor the device stalls.

The device can therefore record a decode step.  On the meta device, tensors have no values, and code
that reads one raises.  Kernels are called, but not launched.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hybridbench.engine.engine import Engine
from hybridbench.engine.forward_batch import ForwardMode
from hybridbench.engine.kernels.dispatch import REFERENCE, Kernels, triton_kernels
from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.models.causal_lm import CausalLM
from hybridbench.engine.models.registry import build_model
from hybridbench.engine.models.weights import RandomWeights
from hybridbench.engine.next_token import NextTokens
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import NANO_ENGINE
from tests.model_steps import Stepper, make_pools
from tests.unit.engine.kernels.agreement import device_of
from tests.unit.engine.test_cuda_graph_runner import MODELS

META = torch.device("meta")


class Launches:
    """Replaces a Triton function, and counts its launches."""

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


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts copies from the host to the device: those that the host waits for, and the others."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waited = 0
        self.not_waited = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
        given.update(kwargs or {})
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in given.values() if isinstance(each, Tensor)]
        # A scalar on the host, such as a factor, is passed with the launch.
        from_host = any(each.device.type == "cpu" and each.dim() for each in tensors)
        if from_host and isinstance(result, Tensor) and result.device == META:
            self.not_waited += given.get("non_blocking", False)
            self.waited += not given.get("non_blocking", False)
        return result


def decoded(family: str, kernels: Kernels) -> Tensor:
    """Return the logits of a decode step with two requests, padded to four."""
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
    # The reference attention builds its groups on the host.
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        decoded("gpt-oss", REFERENCE)


def on_meta(family: str) -> CausalLM[Any]:
    config = MODELS[family]
    source = RandomWeights(config, 0, torch.device("cpu"))
    kind: Any = type(build_model(config, torch.float64, "cpu", seed=4))
    model: CausalLM[Any] = kind(config, source, torch.bfloat16, META, triton_kernels())
    return model


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("mode", ["extend", "decode"])
def test_the_host_waits_neither_for_a_value_nor_for_a_copy(
    family: str, mode: ForwardMode, launches: Launches
) -> None:
    stepper = Stepper(build_model(MODELS[family], torch.float64, "cpu", seed=4))
    requests = [stepper.start(), stepper.start()]
    stepper.extend(requests, [[1, 2, 3], [4]])
    more = [list(range(20)), [5]] if mode == "extend" else [[1], [2]]
    batch = stepper.batch(mode, requests, more)
    model, pools = on_meta(family), make_pools(MODELS[family], torch.bfloat16, META)

    with Copies() as copies:
        model.forward(batch, pools)

    assert copies.waited == 0
    assert copies.not_waited >= 2
    assert launches.count > 0


def test_the_host_waits_neither_in_a_step_that_verifies_drafts(launches: Launches) -> None:
    config = MODELS["qwen3-next"]
    stepper = Stepper(build_model(config, torch.float64, "cpu", seed=4))
    requests = [stepper.start(), stepper.start()]
    stepper.extend(requests, [[1, 2, 3], [4]])
    pools = make_pools(config, torch.bfloat16, META)
    pools.mamba_pool = MambaPool(
        8, config.cache_params, config.linear_layer_ids, META,
        spec_state_size=2, speculative_num_draft_tokens=3, kernels=triton_kernels(),
    )  # fmt: skip

    model = on_meta("qwen3-next")
    batch = stepper.batch("verify", requests, [[4, 5, 6], [7]])

    with Copies() as copies:
        model.forward(batch, pools)
        pools.mamba_pool.update_mamba_state_after_verify([1, 2], [2, 0])

    assert copies.waited == 0
    assert copies.not_waited > 8
    assert launches.count > 0


def test_the_host_does_not_wait_for_the_slots_of_states_that_are_copied(
    launches: Launches,
) -> None:
    config = MODELS["qwen3-next"]
    states = MambaPool(
        8, config.cache_params, config.linear_layer_ids, META, kernels=triton_kernels()
    )

    with Copies() as copies:
        states.copy_from([1, 2], np.array([3, 4]))

    assert (copies.waited, copies.not_waited, launches.count) == (0, 2, 2)


def test_a_copy_that_the_host_waits_for_is_seen() -> None:
    with Copies() as copies:
        torch.arange(3).to(META)
        torch.zeros(3, device=META).copy_(torch.zeros(3))
        with torch.inference_mode():
            torch.arange(3).to(META)

    assert (copies.waited, copies.not_waited) == (3, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph_max_bs", [0, 4])
def test_an_engine_waits_for_a_device_only_to_read_tokens(
    cuda_graph_max_bs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device_of("cuda")
    engine = Engine(
        replace(
            NANO_ENGINE, model="qwen3-next-nano", device="cuda", enable_overlap_schedule=True,
            cuda_graph_max_bs=cuda_graph_max_bs,
        )
    )  # fmt: skip
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 9, 8, 7]]
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    # This compiles the kernels and fills the tree, so that the later prompts hit their prefixes.
    expected = engine.generate(prompts, params)
    healthy = engine._runner.next_tokens

    def reading(*arguments: Any) -> NextTokens:
        torch.cuda.set_sync_debug_mode("default")
        tokens = healthy(*arguments)
        torch.cuda.set_sync_debug_mode("error")
        return tokens

    monkeypatch.setattr(engine._runner, "next_tokens", reading)
    torch.cuda.set_sync_debug_mode("error")
    try:
        tokens = engine.generate(prompts, params)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert tokens == expected
