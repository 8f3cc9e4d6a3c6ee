"""``hybridbench bench``: the bundled engine's speed, and the limits that short runs get.

What compares the analysis with others, or the caches with a released sglang, is in ``benchmarks/``
of the repository.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli import bench_compare
from hybridbench.cli.command_group import Command, CommandGroup
from hybridbench.errors import ErrorCode, ExitCode, UsageError
from hybridbench.safe_output import echo, output_after_verdict
from hybridbench.units import format_percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridbench.bench.cache_pattern import CacheKind
    from hybridbench.bench.kernels import Ceilings, KernelBench, OperationRow, StepTable

app = typer.Typer(
    cls=CommandGroup,
    help="Benchmark the bundled engine, and measure the limits of short runs.",
    no_args_is_help=True,
)

app.command("compare", cls=Command)(bench_compare.compare)

Rounds = Annotated[
    int, typer.Option(metavar="N", min=1, help="Measured pairs, in alternating order.")
]


@app.command("engine", cls=Command)
def engine(rounds: Rounds = 9) -> None:
    """Measure the engine against transformers `generate`: same weights and prompts, one thread.

    Example: hybridbench bench engine --rounds 3

    32 requests of 64 cached + 48 new prompt tokens and 16 output tokens.
    """
    from hybridbench.bench import engine as bench

    result = bench.run(rounds)
    shape = f"{bench.CACHED_TOKENS} cached + {bench.NEW_TOKENS} new + {bench.OUTPUT_TOKENS} out"
    echo(f"{bench.MODEL}, {bench.REQUESTS} requests of {shape} tokens, 1 thread")
    echo(f"engine          {_spread_ms(result.engine_s)}  {result.requests_per_s:.0f} req/s")
    echo(f"transformers    {_spread_ms(result.transformers_s)}")
    ratios = sorted(result.ratios)
    echo(f"ratio           {result.ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    echo(f"same tokens     {100 * result.same_tokens:.1f}% (float32, greedy)")


@app.command("cache", cls=Command)
def cache(
    turns: Annotated[
        int, typer.Option(metavar="N", min=100, help="Measured turns per row.")
    ] = 8000,
) -> None:
    """Measure the prefix caches alone: match, insert, evict on multi-turn conversations.

    Example: hybridbench bench cache --turns 2000

    8 system prompts of 256 tokens, turns of 192, 48 conversations, 120,000 KV tokens, 200 states or
    40,000 tokens of sliding windows.
    """
    from hybridbench.bench.cache import bench_cache, bench_eviction

    echo("median microseconds a call, one thread")
    echo(
        f"{'cache':26} {'page':>4} {'match':>7} {'insert':>7} {'evict':>7} {'us/turn':>8} "
        f"{'turns/s':>8} {'in cache':>8} {'hit rate':>8}"
    )
    trees: tuple[tuple[CacheKind, int], ...] = (
        ("states", 1), ("full", 16), ("windows", 1), ("windows", 16),
    )  # fmt: skip
    for (kind, page_size), unified in product(trees, (False, True)):
        row = bench_cache(page_size, kind, turns, unified=unified)
        name = f"{row.cache}{', windows' * (kind == 'windows' and unified)}"
        echo(
            f"{name:26} {row.page_size:4} {row.match_us:7.1f} {row.insert_us:7.1f} "
            f"{row.evict_us:7.1f} {row.cache_us_per_turn:8.1f} {row.turns_per_s:8.0f} "
            f"{format_percent(row.cache_time_share):>8} {format_percent(row.hit_rate):>8}"
        )
    echo("\ncost of one eviction, most old nodes internal or locked")
    for cost in bench_eviction():
        echo(f"{cost.cache:17} {cost.nodes:7} nodes {cost.evict_us:7.1f} us")


@app.command("step", cls=Command)
def step(
    steps: Annotated[
        int, typer.Option(metavar="N", min=10, max=350, help="Timed decode steps per row.")
    ] = 200,
) -> None:
    """Measure a decode step without the model, in new and used pools of several sizes.

    Example: hybridbench bench step --steps 100

    The batch has 32 requests; used pools have served 2,000 requests before.  The last column is the
    time that checking every pool adds to a step.
    """
    from hybridbench.bench.step import BATCH, bench_step

    echo(f"decode steps of {BATCH} requests, medians over {steps} steps, one thread")
    echo(f"{'KV tokens':>10} {'served before':>14} {'us/token':>9} {'us/check':>9}")
    for row in bench_step(steps=steps):
        echo(
            f"{row.kv_tokens:10} {row.served:14} {row.us_per_token:9.2f} "
            f"{row.check_us_per_step:9.1f}"
        )


@app.command("kernels", cls=Command)
def kernels(
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|DIR", help="A preset or the directory of a checkpoint; repeatable."
        ),
    ] = None,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where the engine runs.")] = "cpu",
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Timed batches of requests.")] = 5,
) -> None:
    """Measure each operation of `list kernels` in prefill and decode steps of the engine.

    Bytes and FLOPs per second are printed with their share of the fastest copy and matrix product
    of the same run.  By default it runs two models that use all operations: tiny ones on a CPU (one
    thread, processor time), life-size ones on CUDA.

    Example: hybridbench bench kernels --rounds 2
    """
    from hybridbench.workload.catalog import model_fault
    from hybridbench.workload.validation import full_stop

    for fault in filter(None, map(model_fault, model or ())):
        raise UsageError(full_stop(f": {fault}"), code=ErrorCode.UNKNOWN_NAME, option="--model")
    from hybridbench.bench.kernels import bench_kernels, default_models

    for number, name in enumerate(model or default_models(device)):
        if number:
            echo()
        for line in _kernel_lines(bench_kernels(name, device, rounds)):
            echo(line)


@app.command("limits", cls=Command)
def limits(
    store: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the recordings.")
    ] = Path("results/limits"),
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Recordings per profile.")] = 5,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Soaks at a time.")] = 2,
    growth: Annotated[
        bool,
        typer.Option("--growth", help="Also judge the recordings with growth added to them."),
    ] = False,
) -> None:
    """Measure the memory limits of short runs: healthy soaks of 20 minutes, and their beginnings.

    Example: hybridbench bench limits --seeds 1

    Safe to rerun: stored recordings are reused.  Twenty recordings take
    three and a half hours, two at a time.  The tables are Markdown.

    Exits with code 12 if the growth table contradicts docs/explanation/detection.md.
    """
    from hybridbench.bench import limits as bench

    found = bench.record_missing(store, seeds, jobs, lambda text: echo(text, err=True))
    with output_after_verdict():
        echo("\n".join(bench.limit_table(list(bench.limit_rows(found)))))
    if growth:
        rows = list(bench.growth_rows(found))
        with output_after_verdict():
            echo("\nLEAK / INCONCLUSIVE / CLEAN, and other verdicts\n")
            echo("\n".join(bench.growth_table(rows)))
        broken = list(bench.missed_limits(rows))
        for sentence in broken:
            echo(sentence, err=True)
        if broken:
            raise typer.Exit(int(ExitCode.REGRESSION))


def _kernel_lines(result: KernelBench) -> Iterator[str]:
    from hybridbench.runs.machine import machine_facts

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


def _spread_ms(times_s: tuple[float, ...]) -> str:
    ordered = sorted(1000 * t for t in times_s)
    middle = ordered[len(ordered) // 2]
    return f"{middle:7.1f} ms ({ordered[0]:.1f} to {ordered[-1]:.1f})"
