"""Small parts that layers share: norms, rotary position factors, gated units."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.dispatch import Kernels
from hybridbench.engine.models.config import state_dtype
from hybridbench.engine.models.weights import WeightSource


@dataclass(frozen=True)
class Loader:
    """Takes tensors from a source and converts them to a model's device and dtype."""

    source: WeightSource
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    """The kernels of the layers."""

    def matrix(self, *names: str) -> Tensor:
        """Return the stacked rows of all ``names``, in the model's dtype."""
        parts = [self.source.take(name).to(self.device, self.dtype) for name in names]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    def precise(self, name: str) -> Tensor:
        """Return ``name`` in the dtype of states and norms: float32 for a bfloat16 model."""
        return self.source.take(name).to(self.device, state_dtype(self.dtype))


class Norm:
    """Computes ``scale * x / sqrt(x.x + floor^2)`` over the last dimension, in ``scale``'s dtype.

    RMS and L2 norms both have this form.  On a CPU ``hypot`` takes half as many passes as
    ``rms_norm``, which is composed of separate operations.
    """

    def __init__(self, scale: Tensor, floor: float) -> None:
        """Compute in the dtype of ``scale``, which must broadcast over the input."""
        self._scale = scale
        self._floor = torch.tensor(floor, dtype=scale.dtype, device=scale.device)

    @classmethod
    def rms(cls, scale: Tensor, eps: float) -> Norm:
        """Build ``scale * x / sqrt(mean(x.x) + eps)`` for a ``scale`` of [..., size]."""
        size = scale.shape[-1]
        return cls(scale * size**0.5, (size * eps) ** 0.5)

    @classmethod
    def zero_centred(cls, loader: Loader, name: str, eps: float) -> Norm:
        """Build an RMS norm whose stored weight is its scale minus one."""
        return cls.rms(loader.precise(name) + 1.0, eps)

    def precise(self, x: Tensor) -> Tensor:
        """Return the normalised ``x`` in the dtype of the scale."""
        x = x.to(self._scale.dtype)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x / torch.hypot(length, self._floor)).mul_(self._scale)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normalised ``x`` in its own dtype, owned by the caller."""
        return self.precise(x).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Frequencies:
    """The angle by which each pair of rotated channels turns per position."""

    radians: Tensor
    """[rotary_dim / 2]"""
    scale: float = 1.0
    """Multiplies the rotated channels."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary factors for the new tokens of one step, shared by all attention layers.

    Both are [T, 1, rotary_dim].  The first half of ``sine`` is negated, so that a rotation is
    ``x * cosine + swap_halves(x) * sine``.
    """

    cosine: Tensor
    sine: Tensor

    @classmethod
    def build(cls, positions: Tensor, frequencies: Frequencies, dtype: torch.dtype) -> Rotation:
        """Build the factors for ``positions`` [T]."""
        radians, scale = frequencies.radians, frequencies.scale
        angles = positions.to(radians.dtype)[:, None, None] * radians
        cosine, sine = angles.cos() * scale, angles.sin() * scale
        return cls(
            torch.cat((cosine, cosine), dim=-1).to(dtype),
            torch.cat((-sine, sine), dim=-1).to(dtype),
        )

    def of_rows(self, rows: Tensor) -> Rotation:
        """Return the factors of the tokens ``rows``."""
        return Rotation(self.cosine.index_select(0, rows), self.sine.index_select(0, rows))

    def apply_(self, x: Tensor) -> None:
        """Rotate the leading channels of ``x`` [T, heads, hd], in place."""
        rotated = x[..., : self.cosine.shape[-1]]
        first, second = rotated.chunk(2, dim=-1)
        swapped = torch.cat((second, first), dim=-1)
        rotated.mul_(self.cosine).addcmul_(swapped, self.sine)


class DenseMLP:
    """Computes ``down(silu(gate x) * up x)``."""

    def __init__(self, loader: Loader, prefix: str, *, bias: bool = False) -> None:
        self._gate_up = loader.matrix(f"{prefix}.gate_proj.weight", f"{prefix}.up_proj.weight")
        self._down = loader.matrix(f"{prefix}.down_proj.weight")
        self._width = self._down.shape[1]
        self._gate_up_bias: Tensor | None = None
        self._down_bias: Tensor | None = None
        if bias:
            self._gate_up_bias = loader.matrix(f"{prefix}.gate_proj.bias", f"{prefix}.up_proj.bias")
            self._down_bias = loader.matrix(f"{prefix}.down_proj.bias")

    def __call__(self, x: Tensor) -> Tensor:
        """[T, h] -> [T, h]."""
        both = functional.linear(x, self._gate_up, self._gate_up_bias)
        hidden = functional.silu(both[:, : self._width]).mul_(both[:, self._width :])
        return functional.linear(hidden, self._down, self._down_bias)
