"""Models with Mamba2 layers in transformers: random weights, logits and cache contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from tests.model_steps import Running, Stepper
from tests.oracle.agreement import Look

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def randomise(model: PreTrainedModel) -> None:
    """Randomise every parameter, so that none has a value that hides errors."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(("norm.weight", "norm_f.weight", ".D")):
                tensor.uniform_(0.7, 1.3)
            elif name.endswith("A_log"):
                tensor.uniform_(-1.0, 1.5)
            elif name.endswith("dt_bias"):
                tensor.uniform_(-3.0, 0.5)
            elif name.endswith("bias"):
                tensor.normal_(0.0, 0.2)
            elif name.endswith(("weight", "_proj")):
                tensor.normal_(0.0, tensor[0].numel() ** -0.5)


@contextmanager
def exact() -> Iterator[None]:
    """Make transformers compute norms, scans and routing in float64; by default it uses float32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        yield


@torch.inference_mode()
def logits(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """Return logits [T, vocab]."""
    output: Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return output


@torch.inference_mode()
def cached(model: PreTrainedModel, tokens: list[int], conv_kernel: int) -> list[Tensor]:
    """Return the layers' cache contents after ``tokens``, in the order of ``_held``."""
    from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

    layers = model(torch.tensor([tokens]), use_cache=True).past_key_values.layers
    found: list[Tensor] = []
    for layer in layers:
        if isinstance(layer, LinearAttentionLayer):
            window, state = layer.conv_states[0], layer.recurrent_states[0]
            found += [_only(window)[:, 1 - conv_kernel :], _only(state)]
    for layer in layers:
        if isinstance(layer, DynamicLayer):
            found += [_only(part).transpose(0, 1) for part in (layer.keys, layer.values)]
    return found


def _only(batch: Tensor | None) -> Tensor:
    """Return the only request of a batch."""
    assert batch is not None
    return batch[0]


def at_cached(expected: Callable[[list[int]], list[Tensor]], most: float) -> Look:
    """Return a ``Look`` that compares states, keys and values with ``expected``."""

    def look(stepper: Stepper, request: Running, text: list[int]) -> None:
        for ours, theirs in zip(_held(stepper, request), expected(text), strict=True):
            assert ours.shape == theirs.shape
            assert float((ours - theirs).abs().max()) <= most

    return look


def _held(stepper: Stepper, request: Running) -> Iterator[Tensor]:
    """Yield conv windows [D, K-1] and states [H, P, N], then keys and values [T, heads, hd]."""
    config = stepper.model.config
    for layer in config.linear_layer_ids:
        yield from stepper.layer_state(layer, request)
    for layer in config.kv_layer_ids:
        for buffer in stepper.kv_pool.get_kv_buffer(layer):
            yield buffer[request.kv_slots]
