"""Stubs for SGLang's imports that a CPU machine lacks; loaded at the start of every process.

A kernel module is stubbed if the real one is not installed.  Operators from SGLang's CPU build
return zeros of the right shape.  This module runs in every Python process of the environment, so
it does little until something is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

_ABSENT = frozenset(
    {
        "cutlass", "decord", "decord2", "deep_gemm", "deepseek_recipe", "flash_mla", "flashinfer",
        "humming", "nvshmem", "quack", "sgl_kernel", "tilelang", "tml_renderers",
        "torch_memory_saver",
    }
)  # fmt: skip
# PyTorch's own index has a CPU torchvision.  Operators in other builds cannot be loaded here, and
# the Python files of those builds need the operators declared.
_VISION = (
    "_deform_conv2d_backward", "_ps_roi_align_backward", "_ps_roi_pool_backward",
    "_roi_align_backward", "_roi_pool_backward", "deform_conv2d", "nms", "ps_roi_align",
    "ps_roi_pool", "qnms", "qroi_align", "roi_align", "roi_pool",
)  # fmt: skip
# A declaration lasts only as long as its library object.
_libraries: list[Any] = []


class _Stub:
    """An object that returns another stub when called or asked for an attribute."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> _Stub:
        return _Stub()

    def __getattr__(self, name: str) -> _Stub:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub()

    def __iter__(self) -> Any:
        return iter(())


class _StubType(type):
    """A class whose attributes are their names, as enumeration members would print."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _StubModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not name[0].isupper():
            return _Stub()
        # Return the same class each time: SGLang compares types.
        made = _StubType(name, (), {})
        setattr(self, name, made)
        return made


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes a stub for a module that no other finder has."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".", maxsplit=1)[0] not in _ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module: Any = _StubModule(spec.name)
        module.__path__ = []
        module.__version__ = "0.0.0"
        return module  # type: ignore[no-any-return]

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "sgl_kernel":
            _add_gated_delta_rule(module)


class _Patched(importlib.abc.MetaPathFinder):
    """Loads a module as usual, and calls its entries in ``_BEFORE`` and ``_AFTER``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in _BEFORE:
            _BEFORE.pop(name)()
        patch = _AFTER.get(name)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _declare_vision() -> None:
    import torch

    declare: Any = torch.library.Library
    library = declare("torchvision", "DEF")
    for name in _VISION:
        library.define(f"{name}(Tensor x) -> Tensor")
    _libraries.append(library)


def _add_gated_delta_rule(sgl_kernel: types.ModuleType) -> None:
    """Add the hybrid model's operators, which come from Triton or sgl_kernel's CPU build."""
    import torch

    def convolve(x: Any, *args: Any, **kwargs: Any) -> Any:
        return x

    def chunk(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.zeros_like(v), None, None

    def gate(a_log: Any, a: Any, b: Any, dt_bias: Any) -> Any:
        return torch.zeros(1, *a.shape), torch.zeros(1, *b.shape)

    def update(*, v: Any, **kwargs: Any) -> Any:
        return torch.zeros_like(v)

    mamba: Any = types.ModuleType("sgl_kernel.mamba")
    mamba.causal_conv1d_fn_cpu = mamba.causal_conv1d_update_cpu = convolve
    mamba.chunk_gated_delta_rule_cpu = chunk
    stub: Any = sgl_kernel
    stub.mamba = sys.modules["sgl_kernel.mamba"] = mamba
    operators: Any = torch.ops.sgl_kernel
    operators.fused_gdn_gating_cpu = gate
    operators.fused_sigmoid_gating_delta_rule_update_cpu = update


def _patch_norm(module: Any) -> None:
    import torch

    def zeros(x: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.zeros_like(x)

    module.rms_norm_gated = zeros
    module.layer_norm_gated_fwd = None
    module.FusedRMSNormGated.forward = lambda self, x, *args, **kwargs: torch.zeros_like(x)


def _patch_experts(module: Any) -> None:
    module.Qwen2MoeSparseMoeBlock.forward = lambda self, hidden_states, *args, **kwargs: (
        hidden_states * 0.5
    )


_BEFORE: dict[str, Callable[[], None]] = {"torchvision": _declare_vision}
# Both call Triton and have no alternative on a CPU.
_AFTER: dict[str, Callable[[Any], None]] = {
    "sglang.kernels.ops.attention.fla.fused_norm_gate": _patch_norm,
    "sglang.srt.models.qwen2_moe": _patch_experts,
}
sys.meta_path.insert(0, _Patched())
# Added last, so that a real module has precedence.
sys.meta_path.append(_Absent())
