"""Record the calls of an engine's steps: operations of the dispatch table, and matrix products.

On a CPU, calls are timed as they happen.  A CUDA device works asynchronously, so there a step's
arguments are kept, and its calls are repeated and timed alone.  Times on a CPU are CPU time of the
thread, because on a busy machine a step takes longer than one time slice of the process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from benchmarks.kernel_rivals import RivalTimes, timed
from benchmarks.kernel_work import Work, work_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.kernels.dispatch import Kernels

Phase = Literal["prefill", "decode"]
PROJECTIONS: Final = "projections"
"""Matrix products outside the dispatch table: those of the layers and of the head."""

_DECODES: Final = "decode_attention"
_PRODUCTS: Final = frozenset(
    {
        functional.linear,
        torch.mm,
        torch.bmm,
        torch.matmul,
        torch.baddbmm,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
    }
)
_REPEATS: Final = 20
# Written to flush a CUDA device's cache.  Writing takes longer than the host needs to launch the
# timed call, so the measured time includes no waiting for the host.
_FLUSH_BYTES: Final = 2**30


@dataclass(frozen=True)
class Call:
    """One call of an operation, or one matrix product."""

    operation: str
    """For a matrix product, the operation that contains it, or ``PROJECTIONS``."""
    seconds: float
    work: Work
    dtype: torch.dtype


@dataclass(frozen=True)
class Step:
    """One step of an engine."""

    phase: Phase
    tokens: int
    step_s: float
    forward_s: float
    calls: tuple[Call, ...]
    products: tuple[Call, ...]
    """Empty unless calls to PyTorch were counted."""
    torch_calls: int


@dataclass(frozen=True)
class _Seen:
    """A recorded call with its arguments."""

    operation: str
    seconds: float
    function: Callable[..., object]
    arguments: tuple[Any, ...]

    def alone(self, seconds: Callable[[Callable[[], object]], float]) -> Call:
        return self.call(seconds(partial(self.function, *self.arguments)))

    def call(self, seconds: float) -> Call:
        first = next(each for each in self.arguments if isinstance(each, Tensor | list | tuple))
        of = first if isinstance(first, Tensor) else first[0]
        return Call(self.operation, seconds, work_of(self.operation, self.arguments), of.dtype)


class StepWatch:
    """Watches the steps of an engine that uses the table from ``watched``."""

    def __init__(self, device: torch.device) -> None:
        self._keeps = device.type == "cuda"
        # Wall time on a CUDA device, because the host may sleep while it waits.
        self._now_s = time.perf_counter if self._keeps else time.thread_time
        self._forward = "forward_s" if self._keeps else "forward_cpu_s"
        self._seen: list[_Seen] = []
        self._counter = _TorchCalls()
        self._kept: dict[Phase, tuple[int, list[_Seen]]] = {}

    def watched(self, table: Kernels) -> Kernels:
        """``table`` with functions that record their calls."""
        forms: dict[str, Any] = {
            name: partial(self._called, name, function) for name, function in vars(table).items()
        }
        return Kernels(**forms)

    def watch(self, engine: Engine, *, counting: bool) -> Step | None:
        """Run a step of ``engine``, which uses the watched table; return None if no model ran.

        With ``counting``, intercept all calls to PyTorch, which slows them.
        """
        self._seen, self._counter.products, self._counter.count = [], [], 0
        prompt_tokens = engine.counters.prompt_tokens
        forward_s = engine.timings()[self._forward]
        began_s = self._now_s()
        with self._counter if counting else nullcontext():
            engine.step()
        step_s = self._now_s() - began_s
        forward_s = engine.timings()[self._forward] - forward_s
        attention = [e for e in self._seen if e.operation in ("extend_attention", _DECODES)]
        if not attention:
            return None
        tokens = engine.counters.prompt_tokens - prompt_tokens
        phase: Phase = "prefill" if tokens else "decode"
        # In a decode step, every layer's attention has one query per request.
        tokens = tokens or len(attention[0].arguments[0])
        if self._keeps and tokens >= self._kept.get(phase, (0, []))[0]:
            self._kept[phase] = tokens, self._seen
        return Step(
            phase=phase,
            tokens=tokens,
            step_s=step_s,
            forward_s=forward_s,
            calls=tuple(each.call(each.seconds) for each in self._seen),
            products=tuple(self._counter.products),
            torch_calls=self._counter.count,
        )

    @torch.inference_mode()
    def kept(self, phase: Phase) -> list[Call]:
        """On a CUDA device, return the calls of the last of the largest steps, each timed alone."""
        _, seen = self._kept[phase]
        return [each.alone(cuda_seconds) for each in seen]

    @torch.inference_mode()
    def rivals(self, phase: Phase) -> RivalTimes:
        """Time the public kernels for the calls of ``kept``, on the same arguments."""
        _, seen = self._kept[phase]
        return timed([(each.operation, each.arguments) for each in seen], cuda_seconds)

    @torch.inference_mode()
    def alone(self, function: Callable[[], object]) -> list[Call]:
        """Return the calls that ``function`` makes, each repeated and timed alone."""
        self._seen = []
        function()
        seconds = cuda_seconds if self._keeps else cpu_seconds
        return [each.alone(seconds) for each in self._seen]

    def _called(self, name: str, function: Callable[..., object], *arguments: object) -> object:
        self._counter.operation = name
        began_s = time.thread_time()
        result = function(*arguments)
        seconds = time.thread_time() - began_s
        self._counter.operation = PROJECTIONS
        self._seen.append(_Seen(name, seconds, function, arguments))
        return result


class _TorchCalls(TorchFunctionMode):
    """Counts calls to PyTorch, and times matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.operation = PROJECTIONS
        self.count = 0
        self.products: list[Call] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        self.count += 1
        if func not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        began_s = time.thread_time()
        result = func(*args, **(kwargs or {}))
        seconds = time.thread_time() - began_s
        # The left factor has the summed dimension; baddbmm takes an addend first.
        left = args[1] if func is torch.baddbmm else args[0]
        work = Work(flops=2 * result.numel() * left.shape[-1])
        self.products.append(Call(self.operation, seconds, work, result.dtype))
        return result


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU time of one call; the median of several."""
    took = []
    for _ in range(_REPEATS):
        began_s = time.thread_time()
        function()
        took.append(time.thread_time() - began_s)
    return statistics.median(took)


def cuda_seconds(function: Callable[[], object]) -> float:
    """Time of one call on the current device with a cold cache; the median of several."""
    flushed = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    # The first call compiles.
    function()
    spans = []
    for _ in range(_REPEATS):
        flushed.zero_()
        begin, end = (_event() for _ in range(2))
        begin.record()
        function()
        end.record()
        spans.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(float(begin.elapsed_time(end)) for begin, end in spans) / 1000


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
