"""A model as on an asynchronous device: launching returns at once, and reading its logits waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.model_runner import LanguageModel
from hybridbench.engine.models.config import ModelConfig


class LateLogits(Tensor):
    """Logits that call ``wait`` before the first operation on them, except for attribute access."""

    wait: Callable[[], None] | None

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        if getattr(func, "__name__", "") != "__get__":
            for late in args:
                if isinstance(late, LateLogits) and late.wait is not None:
                    wait, late.wait = late.wait, None
                    wait()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class LateModel:
    """``model``, calling ``launched`` in each forward pass and ``waited`` on the first read."""

    def __init__(
        self, model: LanguageModel, launched: Callable[[], None], waited: Callable[[], None]
    ) -> None:
        self._model = model
        self._launched = launched
        self._waited = waited

    @property
    def config(self) -> ModelConfig:
        return self._model.config

    def forward(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> Tensor:
        self._launched()
        logits = self._model.forward(batch, kv_pool).as_subclass(LateLogits)
        logits.wait = self._waited
        return logits
