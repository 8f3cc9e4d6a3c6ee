"""Rotary positional encoding (RoPE): read a config.json's frequencies, plain or scaled.

Source: the RoPE types of transformers; the papers and models that introduced them are named below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Protocol, TypeAlias

import torch
from torch import Tensor

from hybridbench.engine.models.config import state_dtype
from hybridbench.engine.models.hf_config import ConfigFields, excerpt
from hybridbench.engine.models.layers import Frequencies


class Scaling(Protocol):
    """Scales the frequencies for contexts longer than those in training."""

    rope_type: ClassVar[str]

    @property
    def scale(self) -> float:
        """The factor applied to rotated queries and keys."""

    def scaled(self, frequencies: Tensor, theta: float) -> Tensor:
        """Return scaled frequencies [rotary_dim / 2] for unscaled ones of base ``theta``."""


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Divides positions by ``factor`` (position interpolation, arXiv:2306.15595)."""

    rope_type: ClassVar[str] = "linear"
    factor: float
    scale: ClassVar[float] = 1.0

    def scaled(self, frequencies: Tensor, theta: float) -> Tensor:
        del theta
        return frequencies / self.factor


@dataclass(frozen=True, kw_only=True)
class Dynamic:
    """Leaves frequencies unchanged within ``max_position_embeddings``, the longest context here."""

    rope_type: ClassVar[str] = "dynamic"
    factor: float
    scale: ClassVar[float] = 1.0

    def scaled(self, frequencies: Tensor, theta: float) -> Tensor:
        del theta
        return frequencies


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """Divides slow frequencies by ``factor``, keeps fast ones (YaRN, arXiv:2309.00071)."""

    rope_type: ClassVar[str] = "yarn"
    factor: float = 32.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = False
    original_max_position_embeddings: int = 4096
    attention_factor: float | None = None
    """``scale``; None computes it from ``factor``, and from ``mscale`` and ``mscale_all_dim`` if
    both are given.
    """
    mscale: float | None = None
    mscale_all_dim: float | None = None

    @property
    def scale(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    def _magnitude(self, by: float) -> float:
        return 0.1 * by * math.log(self.factor) + 1.0 if self.factor > 1.0 else 1.0

    def scaled(self, frequencies: Tensor, theta: float) -> Tensor:
        dim = 2 * frequencies.numel()
        low, high = (
            dim
            * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi))
            / (2 * math.log(theta))
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        # An empty ramp has this width, as in transformers.
        width = high - low if high != low else 0.001
        places = torch.arange(dim // 2, dtype=frequencies.dtype, device=frequencies.device)
        slow = ((places - low) / width).clamp(0.0, 1.0)
        return frequencies * (1.0 - slow) + frequencies / self.factor * slow


@dataclass(frozen=True, kw_only=True)
class LongRope:
    """Divides each frequency by its own factor (LongRoPE, arXiv:2402.13753).

    The long factors are for contexts longer than those in training, which are refused here: their
    cached keys would differ from those of shorter requests with the same prefix.
    """

    rope_type: ClassVar[str] = "longrope"
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    factor: float
    attention_factor: float | None = None

    @property
    def scale(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1.0:
            return 1.0
        original = self.original_max_position_embeddings
        return math.sqrt(1.0 + math.log(self.factor) / math.log(original))

    def scaled(self, frequencies: Tensor, theta: float) -> Tensor:
        del theta
        return frequencies / frequencies.new_tensor(self.short_factor)


@dataclass(frozen=True, kw_only=True)
class Llama3:
    """Divides slow frequencies by ``factor``, with a smooth transition (as in Llama 3.1)."""

    rope_type: ClassVar[str] = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    scale: ClassVar[float] = 1.0

    def scaled(self, frequencies: Tensor, theta: float) -> Tensor:
        del theta
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        width = self.high_freq_factor - self.low_freq_factor
        fast = ((turns - self.low_freq_factor) / width).clamp(0.0, 1.0)
        return frequencies * fast + frequencies / self.factor * (1.0 - fast)


@dataclass(frozen=True, kw_only=True)
class Rope:
    """A model's rotation of queries and keys."""

    rope_theta: float = 10_000.0
    partial_rotary_factor: float = 1.0
    scaling: Scaling | None = None

    def rotary_dim(self, head_dim: int) -> int:
        """Return how many leading channels of each head are rotated."""
        return int(head_dim * self.partial_rotary_factor)

    def frequencies(self, head_dim: int, dtype: torch.dtype, device: torch.device) -> Frequencies:
        """Return the frequencies for heads of ``head_dim`` channels, in the dtype of states."""
        dim = self.rotary_dim(head_dim)
        exponents = torch.arange(0, dim, 2, dtype=state_dtype(dtype)) / dim
        plain = (1.0 / self.rope_theta**exponents).to(device)
        if self.scaling is None:
            return Frequencies(plain)
        return Frequencies(self.scaling.scaled(plain, self.rope_theta), self.scaling.scale)

    def longest_context(self, max_position_embeddings: int) -> int:
        """Return the number of positions for which these frequencies are valid."""
        if isinstance(self.scaling, LongRope):
            return min(max_position_embeddings, self.scaling.original_max_position_embeddings)
        return max_position_embeddings

    def hf_fields(self) -> dict[str, object]:
        """Return the ``rope_parameters`` of a config.json."""
        # Includes a fraction of 1, because some families have another default.
        fields: dict[str, object] = {
            "rope_type": "default",
            "rope_theta": self.rope_theta,
            "partial_rotary_factor": self.partial_rotary_factor,
        }
        if self.scaling is not None:
            given = {key: value for key, value in vars(self.scaling).items() if value is not None}
            fields |= {**given, "rope_type": self.scaling.rope_type}
        return fields


def read_rope(
    fields: ConfigFields,
    head_dim: int,
    longest: int,
    *,
    theta: float = 10_000.0,
    partial: float | None = None,
    unset: Scaling | None = None,
) -> Rope:
    """Read the rotary positional encoding of a config.json, with older or newer keys.

    Newer files have everything in ``rope_parameters``.  Older ones have base and fraction at the
    top level, and the scaling in ``rope_scaling``.  From a file with both, transformers reads only
    ``rope_scaling``, and other engines read a mixture.

    Args:
        fields: the config.json.
        head_dim: channels of a head.
        longest: the file's ``max_position_embeddings``.
        theta: the base if the file has none.
        partial: the rotated fraction if the file has none; None if the architecture rotates all.
        unset: the scaling if the file has neither of the two objects.

    Raises:
        ConfigError: a type, a fraction or a key is not supported, or two rotations differ.
    """
    objects = {key: fields.nested(key)[1] for key in ("rope_scaling", "rope_parameters")}
    given = {key: rope for key, rope in objects.items() if rope.values}
    ropes = [
        _scaled(fields, key, rope, _plain(fields, key, rope, theta, partial), head_dim, longest)
        for key, rope in given.items()
    ]
    if not ropes:
        key, rope = next(iter(objects.items()))
        return replace(_plain(fields, key, rope, theta, partial), scaling=unset)
    if ropes[0] != ropes[-1]:
        raise fields.error(
            "rope_scaling",
            "and rope_parameters describe different rotations; keep one of them, with rope_theta",
        )
    return ropes[0]


def _plain(
    fields: ConfigFields, key: str, rope: ConfigFields, theta: float, partial: float | None
) -> Rope:
    """Read base and fraction from the object ``rope`` or the top level."""
    name = "partial_rotary_factor"
    base = _given_once((rope, fields), "rope_theta", theta)
    fraction = _given_once((rope, fields), name, partial or 1.0)
    if fraction > 1.0:
        raise fields.error(name, f"is {fraction}; it must be at most 1")
    if partial is None and fraction != 1.0:
        raise fields.error(key, "rotates a part of each head; only all of it is supported")
    return Rope(rope_theta=base, partial_rotary_factor=fraction)


def _scaled(
    fields: ConfigFields, key: str, rope: ConfigFields, plain: Rope, head_dim: int, longest: int
) -> Rope:
    """Return ``plain`` with the scaling of the object ``rope``."""
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise fields.error(key, "differs between kinds of layers; only one for all is supported")
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind == "default":
        if rope.values.get("factor") not in (None, 1):
            raise fields.error(key, "has a factor, but no rope_type that uses it")
        return plain
    read = _SCALINGS.get(kind) if isinstance(kind, str) else None
    if read is None:
        supported = ", ".join(("default", *_SCALINGS))
        raise fields.error(key, f"has rope_type {excerpt(kind)}; supported are {supported}")
    original = fields.whole(
        "original_max_position_embeddings", rope.whole("original_max_position_embeddings", longest)
    )
    sizes = _Sizes(plain.rotary_dim(head_dim), longest, original)
    return replace(plain, scaling=read(rope, sizes))


def _given_once(parts: Sequence[ConfigFields], key: str, default: float) -> float:
    given = {part.number(key, default) for part in parts if part.values.get(key) is not None}
    if len(given) > 1:
        values = " and ".join(str(value) for value in sorted(given))
        raise parts[-1].error(key, f"is given as {values}; keep one of them")
    return given.pop() if given else default


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes that a scaling depends on besides its own keys."""

    rotary_dim: int
    longest: int
    original: int

    def factor(self, rope: ConfigFields) -> float:
        return rope.number("factor", self.longest / self.original)


_Read: TypeAlias = Callable[[ConfigFields, _Sizes], Scaling]


def _optional(rope: ConfigFields, key: str) -> float | None:
    return None if rope.values.get(key) is None else rope.number(key, 1.0)


def _require(rope: ConfigFields, key: str) -> None:
    if rope.values.get(key) is None:
        raise rope.error(key, "is missing among the keys of its rope_type")


def _required(rope: ConfigFields, key: str) -> float:
    _require(rope, key)
    return rope.number(key, 1.0)


def _yarn(rope: ConfigFields, sizes: _Sizes) -> Yarn:
    return Yarn(
        factor=sizes.factor(rope),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        original_max_position_embeddings=sizes.original,
        attention_factor=_optional(rope, "attention_factor"),
        mscale=_optional(rope, "mscale"),
        mscale_all_dim=_optional(rope, "mscale_all_dim"),
    )


def _longrope(rope: ConfigFields, sizes: _Sizes) -> LongRope:
    def factors(key: str) -> tuple[float, ...]:
        _require(rope, key)
        given = rope.finite_numbers(key, (1.0,) * (sizes.rotary_dim // 2))
        if min(given, default=1.0) <= 0.0:
            raise rope.error(key, "must hold numbers above 0")
        return given

    return LongRope(
        short_factor=factors("short_factor"),
        long_factor=factors("long_factor"),
        original_max_position_embeddings=sizes.original,
        factor=sizes.factor(rope),
        attention_factor=_optional(rope, "attention_factor"),
    )


def _llama3(rope: ConfigFields, sizes: _Sizes) -> Llama3:
    low, high = _required(rope, "low_freq_factor"), _required(rope, "high_freq_factor")
    if high <= low:
        raise rope.error("high_freq_factor", f"is {high:g}; it must exceed low_freq_factor {low:g}")
    return Llama3(
        factor=_required(rope, "factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=sizes.original,
    )


_SCALINGS: Final[Mapping[str, _Read]] = {
    "linear": lambda rope, _: Linear(factor=_required(rope, "factor")),
    "dynamic": lambda rope, _: Dynamic(factor=_required(rope, "factor")),
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
