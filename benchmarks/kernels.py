"""Time every operation of the dispatch table in an engine's steps, against the device's limits.

The engine serves batches of requests, so that the operations have the shapes of a model's prefill
and decode steps.  The limits, measured in the same run, are the fastest copy and the fastest matrix
product over several sizes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

import numpy as np
import torch
import typer

from benchmarks.batches import TRAFFIC, Batches, Traffic, default_models
from benchmarks.decode_steps import bench_decode, decode_lines
from benchmarks.kernel_compilation import TARGETS, compilation_lines
from benchmarks.kernel_rivals import RivalTimes
from benchmarks.kernel_watch import (
    PROJECTIONS,
    Call,
    Phase,
    Step,
    StepWatch,
    cpu_seconds,
    cuda_seconds,
)
from benchmarks.kernel_work import Work
from hybridbench.engine.assembly import device_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.kernels.dispatch import kernels_for
from hybridbench.foundation.errors import ErrorCode, UsageError, full_stop
from hybridbench.foundation.units import format_percent
from hybridbench.runs.machine import machine_facts
from hybridbench.workload.catalog import model_fault

PHASES: Final[tuple[Phase, ...]] = ("prefill", "decode")
_CALLS: Final = 2_000


@dataclass(frozen=True)
class Ceilings:
    """The maximum rates of this device in this run."""

    copy_bytes_per_s: float
    """Counts both bytes read and bytes written."""
    flops_per_s: Mapping[torch.dtype, float]
    """Rate of a square matrix product, by data type."""
    call_s: float
    """Host time of the smallest PyTorch call, which adds one number in place."""


@dataclass(frozen=True)
class OperationRow:
    """One operation in the steps of one phase."""

    operation: str
    calls: int
    """Number of calls per step."""
    step_s: float
    """Time of all calls of a step; the median over steps."""
    work: Work
    """Work of all calls of a step; ``PROJECTIONS`` have only FLOPs."""
    dtype: torch.dtype
    """Data type of the operation's matrix products."""


@dataclass(frozen=True)
class StepTable:
    """Breakdown of a prefill or decode step's time; times are medians over ``steps`` steps.

    Attributes:
        tokens: number of new tokens per step.
        step_s: time of a whole step, including scheduling.
        forward_s: the part of ``step_s`` in the model and in sampling.
        rows: the operations, longest first; on a CPU including ``PROJECTIONS``.
        products: all matrix products, including those within operations; None on a CUDA device.
        torch_calls: calls of PyTorch functions and methods per step.
        rivals: on a CUDA device, public kernels for the same work, from ``kernel_rivals.py``.
    """

    phase: Phase
    tokens: int
    steps: int
    step_s: float
    forward_s: float
    rows: tuple[OperationRow, ...]
    products: OperationRow | None
    torch_calls: int
    rivals: RivalTimes


@dataclass(frozen=True)
class KernelBench:
    """One model on one device."""

    model: str
    card: str | None
    """Name of the GPU; None on a CPU."""
    traffic: Traffic
    ceilings: Ceilings
    tables: tuple[StepTable, ...]
    state_copy: OperationRow | None
    """``copy_states`` for all requests, timed alone as few steps use it; None without states."""


def bench_kernels(
    model: str, device: str = "cpu", rounds: int = 5, traffic: Traffic | None = None
) -> KernelBench:
    """Serve ``rounds`` batches of requests with ``model`` and time the operations in their steps.

    Raises:
        ConfigError: there is no such device or model here.
    """
    target = device_of(device)
    chosen = TRAFFIC[target.type] if traffic is None else traffic
    torch.set_num_threads(1)
    watch = StepWatch(target)
    build = partial(Engine, kernels=watch.watched(kernels_for(device)))
    batches = Batches(model, device, chosen, build)
    _serve(batches, watch, counting=False)
    timed: list[Step] = []
    counted: list[Step] = []
    for _ in range(rounds):
        timed += _serve(batches, watch, counting=False)
        # Count in separate steps, because intercepting calls to PyTorch slows all of them.
        counted += _serve(batches, watch, counting=True)
    return KernelBench(
        model=model,
        card=torch.cuda.get_device_name(target) if target.type == "cuda" else None,
        traffic=chosen,
        ceilings=measure_ceilings(target, {getattr(torch, chosen.dtype), torch.float32}),
        tables=tuple(_table(phase, timed, counted, watch, target) for phase in PHASES),
        state_copy=_copied_states(batches, watch),
    )


def measure_ceilings(device: torch.device, dtypes: Iterable[torch.dtype]) -> Ceilings:
    """Return the fastest copy, and each data type's fastest product, over a range of sizes.

    One CPU thread copies fastest within its caches; a CUDA device needs large sizes.
    """
    on_cpu = device.type == "cpu"
    seconds = cpu_seconds if on_cpu else cuda_seconds
    copies = []
    for exponent in range(16, 29, 2) if on_cpu else range(24, 32, 2):
        source = torch.zeros(2**exponent, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copies.append(2 * 2**exponent / seconds(partial(target.copy_, source)))
    products = {}
    for dtype in dtypes:
        rates = []
        for size in (256, 512, 1024) if on_cpu else (2048, 4096, 8192):
            left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
            rates.append(2 * size**3 / seconds(partial(torch.mm, left, right)))
        products[dtype] = max(rates)
    number = torch.zeros(1)

    def calls() -> None:
        for _ in range(_CALLS):
            number.add_(1.0)

    return Ceilings(max(copies), products, cpu_seconds(calls) / _CALLS)


def _serve(batches: Batches, watch: StepWatch, *, counting: bool) -> list[Step]:
    """Serve one batch to its end; return its steps."""
    batches.submit()
    steps = []
    while batches.engine.has_work:
        step = watch.watch(batches.engine, counting=counting)
        if step is not None:
            steps.append(step)
    return steps


def _copied_states(batches: Batches, watch: StepWatch) -> OperationRow | None:
    """Copy the states of a batch's requests to other slots."""
    pools, count = batches.engine.pools, batches.traffic.requests
    if not pools.has_states:
        return None
    source, target = np.arange(1, 1 + count), np.arange(1 + count, 1 + 2 * count)
    return _rows([watch.alone(lambda: pools.mamba_pool.copy_from(source, target))])[0]


def _table(
    phase: Phase,
    timed: Sequence[Step],
    counted: Sequence[Step],
    watch: StepWatch,
    device: torch.device,
) -> StepTable:
    """Return the table of the steps with the most tokens; smaller ones begin or end a batch."""
    timed, counted = _largest(phase, timed), _largest(phase, counted)
    if device.type == "cuda":
        rows = _rows([watch.kept(phase)])
        products = None
    else:
        rows = _rows([step.calls for step in timed])
        rows += _rows([[p for p in s.products if p.operation == PROJECTIONS] for s in counted])
        products = _row("all matrix products", [step.products for step in counted])
    return StepTable(
        phase=phase,
        tokens=timed[0].tokens,
        steps=len(timed),
        step_s=statistics.median(step.step_s for step in timed),
        forward_s=statistics.median(step.forward_s for step in timed),
        rows=tuple(sorted(rows, key=lambda row: -row.step_s)),
        products=products,
        torch_calls=round(statistics.median(step.torch_calls for step in counted)),
        rivals=watch.rivals(phase) if device.type == "cuda" else {},
    )


def _largest(phase: Phase, steps: Sequence[Step]) -> list[Step]:
    own = [step for step in steps if step.phase == phase]
    most = max(step.tokens for step in own)
    return [step for step in own if step.tokens == most]


def _rows(steps: Sequence[Sequence[Call]]) -> list[OperationRow]:
    names = dict.fromkeys(call.operation for step in steps for call in step)
    return [
        _row(name, [[call for call in step if call.operation == name] for step in steps])
        for name in names
    ]


def _row(name: str, steps: Sequence[Sequence[Call]]) -> OperationRow:
    """A row from the calls of one operation in each of ``steps``."""
    works = [sum((call.work for call in step), Work()) for step in steps]
    middle = len(steps) // 2
    return OperationRow(
        operation=name,
        calls=round(statistics.median(len(step) for step in steps)),
        step_s=statistics.median(sum(call.seconds for call in step) for step in steps),
        work=sorted(works, key=lambda work: work.moved_bytes + work.flops)[middle],
        dtype=next(call.dtype for step in steps for call in step),
    )


def main(
    model: Annotated[
        list[str] | None,
        typer.Option(help="A preset or the directory of a checkpoint; repeatable."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where the engine runs: cpu or cuda.")] = "cpu",
    rounds: Annotated[int, typer.Option(min=1, help="Timed batches of requests.")] = 5,
    compile_for: Annotated[
        str | None,
        typer.Option(
            help="Only compile the Triton kernels for this GPU (none is needed): "
            f"{' or '.join(TARGETS)}."
        ),
    ] = None,
) -> None:
    """Each operation of `hybridbench list kernels` in prefill and decode steps of the engine.

    Bytes and FLOPs per second are printed with their share of the fastest copy and matrix product
    of the same run.  By default it runs two models that use all operations: tiny ones on a CPU (one
    thread, CPU time), life-size ones on CUDA.  The last lines compare decode steps: CUDA graphs
    with plain steps, and overlapped steps with sequential ones.

    With `--compile-for`: registers, shared memory and spills of each kernel, for shapes of
    life-size models.
    """
    if compile_for is not None:
        for line in compilation_lines(compile_for):
            typer.echo(line)
        return
    for fault in filter(None, map(model_fault, model or ())):
        raise UsageError(full_stop(f": {fault}"), code=ErrorCode.UNKNOWN_NAME, option="--model")
    for number, name in enumerate(model or default_models(device)):
        if number:
            typer.echo()
        for line in _kernel_lines(bench_kernels(name, device, rounds)):
            typer.echo(line)
        typer.echo()
        for line in decode_lines(bench_decode(name, device, rounds)):
            typer.echo(line)


def _kernel_lines(result: KernelBench) -> Iterator[str]:
    traffic, ceilings = result.traffic, result.ceilings
    device = result.card or f"one thread of {machine_facts().cpu}"
    shape = f"{traffic.cached_tokens} cached + {traffic.new_tokens} new"
    yield (
        f"{result.model}, {traffic.dtype}, {device}: {traffic.requests} requests of "
        f"{shape} + {traffic.output_tokens} out tokens"
    )
    products = ", ".join(
        f"{rate / 1e9:,.0f} GFLOP/s in {str(dtype).removeprefix('torch.')}"
        for dtype, rate in ceilings.flops_per_s.items()
    )
    yield f"fastest copy {ceilings.copy_bytes_per_s / 1e9:,.1f} GB/s; fastest product {products}"
    for table in result.tables:
        yield ""
        yield from _step_lines(table, ceilings)
    if result.state_copy is not None:
        yield ""
        yield f"states of {traffic.requests} requests copied, outside of steps"
        yield _operation_line(result.state_copy, ceilings, None)


def _step_lines(table: StepTable, ceilings: Ceilings) -> Iterator[str]:
    beside_ms = 1000 * (table.step_s - table.forward_s)
    yield (
        f"{table.phase} step of {table.tokens} tokens: {1000 * table.step_s:.2f} ms, "
        f"{beside_ms:.2f} of them outside of the model; median of {table.steps}"
    )
    yield (
        f"{'operation':26}{'calls':>6}{'us/step':>9}{'share':>7}{'GB/s':>9}{'of copy':>9}"
        f"{'GFLOP/s':>10}{'of product':>11}"
    )
    for row in table.rows:
        yield _operation_line(row, ceilings, table.step_s)
    rest_s = table.step_s - sum(row.step_s for row in table.rows)
    yield f"{'everything else':32}{1e6 * rest_s:9.1f}{format_percent(rest_s / table.step_s):>7}"
    if table.products is not None:
        yield _operation_line(table.products, ceilings, table.step_s)
    calls_s = table.torch_calls * ceilings.call_s
    yield (
        f"{table.torch_calls} calls into PyTorch; at {1e6 * ceilings.call_s:.2f} us, the smallest, "
        f"they take {format_percent(calls_s / table.step_s)} of the step"
    )
    ours = {row.operation: row.step_s for row in table.rows}
    for operation, rival in table.rivals.items():
        yield _rival_line(operation, ours[operation], *rival)


def _rival_line(operation: str, ours_s: float, name: str, theirs_s: float | str) -> str:
    if isinstance(theirs_s, str):
        return f"{operation} beside {name}: not run: {theirs_s}"
    return (
        f"{operation} beside {name}: {1e6 * theirs_s:.1f} us/step there, "
        f"{theirs_s / ours_s:.2f} times ours"
    )


def _operation_line(row: OperationRow, ceilings: Ceilings, step_s: float | None) -> str:
    share = "" if step_s is None else format_percent(row.step_s / step_s)
    line = f"{row.operation:26}{row.calls:6}{1e6 * row.step_s:9.1f}{share:>7}"
    bytes_per_s = row.work.moved_bytes / row.step_s
    moved, of_copy = "-", "-"
    if row.work.moved_bytes:
        moved = f"{bytes_per_s / 1e9:,.1f}"
        of_copy = format_percent(bytes_per_s / ceilings.copy_bytes_per_s)
    flops, of_product = "-", "-"
    if row.work.flops:
        rate = row.work.flops / row.step_s
        flops = f"{rate / 1e9:,.1f}"
        of_product = format_percent(rate / ceilings.flops_per_s[row.dtype])
    return f"{line}{moved:>9}{of_copy:>9}{flops:>10}{of_product:>11}"
