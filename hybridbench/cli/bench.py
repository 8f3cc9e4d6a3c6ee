"""``hybridbench bench``: the bundled engine's speed, and the limits that short runs get.

What compares the analysis with others, or the caches with a released sglang, is in ``benchmarks/``
of the repository.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from hybridbench.cli import bench_compare
from hybridbench.cli.command_group import Command, CommandGroup
from hybridbench.errors import ExitCode
from hybridbench.units import format_percent

app = typer.Typer(
    cls=CommandGroup,
    help="Benchmark the bundled engine, and measure the limits of short runs.",
    no_args_is_help=True,
)

app.command("compare", cls=Command)(bench_compare.compare)

Rounds = Annotated[int, typer.Option(min=1, help="Pairs measured, in alternating order.")]


@app.command("engine", cls=Command)
def engine(rounds: Rounds = 9) -> None:
    """Measure the engine against transformers `generate`: same weights and prompts, one thread.

    32 requests of 64 cached + 48 new prompt tokens and 16 output tokens.
    """
    from hybridbench.bench import engine as bench

    result = bench.run(rounds)
    shape = f"{bench.CACHED_TOKENS} cached + {bench.NEW_TOKENS} new + {bench.OUTPUT_TOKENS} out"
    typer.echo(f"{bench.MODEL}, {bench.REQUESTS} requests of {shape} tokens, 1 thread")
    typer.echo(f"engine          {_spread_ms(result.engine_s)}  {result.requests_per_s:.0f} req/s")
    typer.echo(f"transformers    {_spread_ms(result.transformers_s)}")
    ratios = sorted(result.ratios)
    typer.echo(f"ratio           {result.ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    typer.echo(f"same tokens     {100 * result.same_tokens:.1f} % (float32, greedy)")


@app.command("cache", cls=Command)
def cache(
    turns: Annotated[int, typer.Option(min=100, help="Measured turns of each row.")] = 8000,
) -> None:
    """Measure the prefix caches alone: match, insert, evict on multi-turn conversations.

    8 system prompts of 256 tokens, turns of 192, 48 conversations, 120,000 KV tokens, 200 states or
    40,000 tokens of sliding windows.
    """
    from hybridbench.bench.cache import bench_cache, bench_eviction

    typer.echo("median microseconds a call, one thread")
    typer.echo(
        f"{'cache':26} {'page':>4} {'match':>7} {'insert':>7} {'evict':>7} {'us/turn':>8} "
        f"{'turns/s':>8} {'in cache':>8} {'hit rate':>8}"
    )
    for windows, page_size, unified in product((False, True), (1, 16), (False, True)):
        row = bench_cache(page_size, turns, unified=unified, windows=windows)
        name = f"{row.cache}{', windows' * (windows and unified)}"
        typer.echo(
            f"{name:26} {row.page_size:4} {row.match_us:7.1f} {row.insert_us:7.1f} "
            f"{row.evict_us:7.1f} {row.cache_us_per_turn:8.1f} {row.turns_per_s:8.0f} "
            f"{format_percent(row.cache_time_share):>8} {format_percent(row.hit_rate):>8}"
        )
    typer.echo("\ncost of one eviction, most old nodes internal or locked")
    for cost in bench_eviction():
        typer.echo(f"{cost.cache:17} {cost.nodes:7} nodes {cost.evict_us:7.1f} us")


@app.command("step", cls=Command)
def step(
    steps: Annotated[int, typer.Option(min=10, max=350, help="Timed decode steps a row.")] = 200,
) -> None:
    """Measure a decode step without the model, in new and used pools of several sizes.

    32 requests; used is after 2,000 requests.  The last column is what checking every pool adds
    to a step.
    """
    from hybridbench.bench.step import BATCH, bench_step

    typer.echo(f"decode steps of {BATCH} requests, medians over {steps} steps, one thread")
    typer.echo(f"{'KV tokens':>10} {'served before':>14} {'us/token':>9} {'us/check':>9}")
    for row in bench_step(steps=steps):
        typer.echo(
            f"{row.kv_tokens:10} {row.served:14} {row.us_per_token:9.2f} "
            f"{row.check_us_per_step:9.1f}"
        )


@app.command("limits", cls=Command)
def limits(
    store: Annotated[Path, typer.Option(help="Directory for the recordings.")] = Path(
        "results/limits"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Recordings of each profile.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Soaks at a time.")] = 2,
    growth: Annotated[
        bool,
        typer.Option("--growth", help="Judge the recordings with growth added to them as well."),
    ] = False,
) -> None:
    """Measure the memory limits of short runs: healthy soaks of 20 minutes, and their beginnings.

    Safe to rerun: stored recordings are reused.  Twenty recordings take
    three and a half hours, two at a time.  The tables are Markdown.

    Exit code 12 if the growth table breaks what docs/explanation/detection.md says of it.
    """
    from hybridbench.bench import limits as bench

    found = bench.record_missing(store, seeds, jobs, lambda text: typer.echo(text, err=True))
    typer.echo("\n".join(bench.limit_table(list(bench.limit_rows(found)))))
    if growth:
        typer.echo("\nLEAK / INCONCLUSIVE / CLEAN, and other verdicts\n")
        rows = list(bench.growth_rows(found))
        typer.echo("\n".join(bench.growth_table(rows)))
        broken = list(bench.missed_limits(rows))
        for sentence in broken:
            typer.echo(sentence, err=True)
        if broken:
            raise typer.Exit(int(ExitCode.REGRESSION))


def _spread_ms(times_s: tuple[float, ...]) -> str:
    ordered = sorted(1000 * t for t in times_s)
    middle = ordered[len(ordered) // 2]
    return f"{middle:7.1f} ms ({ordered[0]:.1f} to {ordered[-1]:.1f})"
