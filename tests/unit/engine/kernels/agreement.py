"""Run a Triton kernel and its reference and compare everything that they write.

Every tensor given to the kernel lies between canaries, NaN around numbers and -1 around indices, so
that reading out of bounds spoils the result and writing out of bounds is detected.  Memory that the
kernel allocates for its results is filled with NaN first.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan

Device: TypeAlias = torch.device
Placed: TypeAlias = Callable[[Device], object]
"""An argument that is created on the device, such as a plan."""
Argument: TypeAlias = (
    "Tensor | Placed | int | float | bool | tuple[Argument, ...] | list[Argument] | None"
)

CPU = torch.device("cpu")
CANARY = {True: float("nan"), False: -1}
DEVICES = [
    pytest.param("cpu", id="interpreter"),
    pytest.param("cuda", id="gpu", marks=pytest.mark.gpu),
]

HALVES = [
    # Triton's interpreter multiplies bfloat16 incorrectly.
    pytest.param("cpu", torch.float16, id="interpreter-float16"),
    pytest.param("cuda", torch.float16, id="gpu-float16", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, id="gpu-bfloat16", marks=pytest.mark.gpu),
]


def device_of(name: str) -> Device:
    """Return the device for a case; skip the test if this process cannot use it."""
    interprets = os.environ.get("TRITON_INTERPRET") == "1"
    if name == "cuda" and (interprets or not torch.cuda.is_available()):
        pytest.skip("needs a CUDA device, and the kernels compiled: pytest -m gpu")
    if name == "cpu" and not interprets:
        pytest.skip("kernels are compiled in this process: pytest -m 'not gpu'")
    return torch.device(name)


def assert_agrees(
    reference: Callable[..., object],
    kernel: Callable[..., object],
    *arguments: Argument,
    device: Device = CPU,
    atol: float = 1e-12,
) -> None:
    """Call both with equal arguments; results and arguments must agree within ``atol``.

    Elements that the reference leaves unchanged must stay bitwise unchanged.
    """
    expected = _Arguments(CPU)
    given = _Arguments(device)
    wanted = reference(*(expected.copy(argument) for argument in arguments))
    passed = [given.copy(argument) for argument in arguments]
    with _poisoned_results():
        got = kernel(*passed)

    for fence in given.fences:
        assert fence.is_whole(), "the kernel wrote outside of an argument"
    _assert_close(got, wanted, atol)
    for before, after, wanted_after in zip(
        expected.originals, given.copies, expected.copies, strict=True
    ):
        kept = (wanted_after == before) | (wanted_after.isnan() & before.isnan())
        moved = after.cpu()
        same = (moved == before) | (moved.isnan() & before.isnan())
        assert bool(same[kept].all()), "the kernel wrote where nothing was to be written"
        _assert_close(moved, wanted_after, atol)


def assert_agrees_in_half(
    reference: Callable[..., Tensor],
    kernel: Callable[..., Tensor],
    *arguments: Argument,
    device: Device,
    dtype: torch.dtype,
) -> None:
    """Check a kernel's result in ``dtype`` against the reference's in float64 on the same numbers.

    A few of its steps round; each adds a third of the type's epsilon to the relative error.
    """
    # Scaled to a quarter, sums of some hundred products stay far below the largest float16.
    quarters = [typed(argument, dtype, device, scale=0.25) for argument in arguments]
    wanted = reference(*(typed(each, torch.float64, device) for each in quarters))
    with _poisoned_results():
        found = kernel(*quarters)

    assert found.dtype == dtype
    error = float((found.double() - wanted).norm() / wanted.norm())
    assert error < 2 * torch.finfo(dtype).eps


def typed(
    argument: object, dtype: torch.dtype, device: Device = CPU, *, scale: float = 1.0
) -> object:
    """Return the argument on ``device``, with numbers in ``dtype`` and indices unchanged."""
    if isinstance(argument, Tensor):
        moved = argument.to(device)
        return (moved * scale).to(dtype) if argument.is_floating_point() else moved
    if isinstance(argument, tuple | list):
        return [typed(part, dtype, device, scale=scale) for part in argument]
    return argument(device) if callable(argument) else argument


def but_for_the_dump(form: Callable[..., Tensor], pool: int, slots: int) -> Callable[..., Tensor]:
    """Wrap ``form`` to ignore the results of padding: its outputs, and row 0 of the pool.

    Padded requests share that row, so their results depend on their order.
    """

    def run(*arguments: Tensor) -> Tensor:
        output = form(*arguments)
        arguments[pool][0] = 0.0
        return output[arguments[slots] != 0]

    return run


def plan_on(plan: ChunkPlan, device: torch.device) -> ChunkPlan:
    """Return the plan with its index tensors on ``device``."""
    rows = {name: getattr(plan, name).to(device) for name in ("order", "conv_rows", "gate_rows")}
    return replace(plan, **rows, output_rows=plan.output_rows.to(device))


def some_first(mutants: Sequence[tuple[str, str]], ids: Sequence[str]) -> list[Any]:
    """Return mutants as test parameters; those after the first only run in ``make test-deep``.

    Each runs a kernel in Triton's interpreter.
    """
    return [
        pytest.param(*pair, id=name, marks=() if number < 1 else pytest.mark.slow)
        for number, (pair, name) in enumerate(zip(mutants, ids, strict=True))
    ]


def mutant(module: ModuleType, old: str, new: str, folder: Path) -> ModuleType:
    """Return a copy of the module with one piece of its source replaced."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{old!r} is in {module.__name__} {source.count(old)} times"
    path = folder / f"mutant_{module.__name__.rpartition('.')[2]}.py"
    path.write_text(source.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    changed = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module in ``sys.modules``.
    sys.modules[spec.name] = changed
    spec.loader.exec_module(changed)
    return changed


@dataclass
class _Fence:
    """A tensor's storage with canaries before and behind it."""

    buffer: Tensor
    before: int
    behind: int

    def is_whole(self) -> bool:
        for part in (self.buffer[: self.before], self.buffer[-self.behind :]):
            canary = torch.full_like(part, CANARY[part.is_floating_point()])
            if not bool(((part == canary) | part.isnan()).all()):
                return False
        return True


@dataclass
class _Arguments:
    """Copies of arguments on one device, and the fences around them."""

    device: Device
    originals: list[Tensor] = field(default_factory=list)
    copies: list[Tensor] = field(default_factory=list)
    fences: list[_Fence] = field(default_factory=list)

    def copy(self, argument: Argument) -> object:
        if isinstance(argument, Tensor):
            return self._fenced(argument)
        if isinstance(argument, tuple):
            return tuple(self.copy(part) for part in argument)
        if isinstance(argument, list):
            return [self.copy(part) for part in argument]
        return argument(self.device) if callable(argument) else argument

    def _fenced(self, tensor: Tensor) -> Tensor:
        storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        # Two rows on each side, so that an index of -1 hits a canary.
        rows = 2 * (tensor.stride(0) if tensor.dim() else 1) + 64
        canary = CANARY[tensor.is_floating_point()]
        size = storage.numel() + 2 * rows
        buffer = torch.full((size,), canary, dtype=tensor.dtype, device=self.device)
        buffer[rows:-rows] = storage
        copy = buffer.as_strided(tensor.size(), tensor.stride(), rows + tensor.storage_offset())
        self.originals.append(tensor.clone())
        self.copies.append(copy)
        self.fences.append(_Fence(buffer, rows, rows))
        return copy


@contextmanager
def _poisoned_results() -> Iterator[None]:
    """Make torch fill newly allocated memory with NaN, or with the largest integer."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _assert_close(got: object, wanted: object, atol: float) -> None:
    if isinstance(wanted, tuple):
        assert isinstance(got, tuple)
        for one, other in zip(got, wanted, strict=True):
            _assert_close(one, other, atol)
    elif isinstance(wanted, Tensor):
        assert isinstance(got, Tensor)
        torch.testing.assert_close(got.cpu(), wanted, rtol=0.0, atol=atol, equal_nan=True)
    else:
        assert got == wanted


def random(*shape: int) -> Tensor:
    """Return float64 numbers that depend only on the shape."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def pool_of_layers(slots: int, shape: tuple[int, ...], read: Tensor) -> Tensor:
    """Return [slots, *shape], a view of the second of three layers; NaN except for ``read``."""
    layers = torch.full((slots, 3, *shape), float("nan"), dtype=torch.float64)
    layers[read, 1] = random(len(read), *shape)
    return layers[:, 1]
