"""``hybridbench bench``: the engine's speed, as ratios measured side by side in one run."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    help="Benchmarks of the bundled engine: ratios from one run, since machines differ.",
    no_args_is_help=True,
)

Rounds = Annotated[int, typer.Option(min=1, help="Pairs measured, in alternating order.")]


@app.command("engine")
def engine(rounds: Rounds = 9) -> None:
    """The whole engine against transformers `generate`: same weights and prompts, one thread.

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


@app.command("cache")
def cache(
    turns: Annotated[int, typer.Option(min=100, help="Measured turns of each row.")] = 8000,
) -> None:
    """The prefix caches alone: match, insert, evict on multi-turn conversations.

    8 system prompts of 256 tokens, turns of 192, 48 conversations, 120,000 KV tokens, 200 states.
    """
    from hybridbench.bench.cache import bench_cache, bench_eviction

    typer.echo("median microseconds a call, one thread")
    typer.echo(
        f"{'cache':16} {'page':>4} {'match':>7} {'insert':>7} {'evict':>7} {'us/turn':>8} "
        f"{'turns/s':>8} {'in cache':>8} {'hit rate':>8}"
    )
    for page_size in (1, 16):
        row = bench_cache(page_size, turns)
        typer.echo(
            f"{row.cache:16} {row.page_size:4} {row.match_us:7.1f} {row.insert_us:7.1f} "
            f"{row.evict_us:7.1f} {row.cache_us_per_turn:8.1f} {row.turns_per_s:8.0f} "
            f"{row.cache_time_share:8.0%} {row.hit_rate:8.0%}"
        )
    typer.echo("\ncost of one eviction, most old nodes internal or locked")
    for cost in bench_eviction():
        typer.echo(f"{cost.cache:16} {cost.nodes:7} nodes {cost.evict_us:7.1f} us")


def _spread_ms(times_s: tuple[float, ...]) -> str:
    ordered = sorted(1000 * t for t in times_s)
    middle = ordered[len(ordered) // 2]
    return f"{middle:7.1f} ms ({ordered[0]:.1f} to {ordered[-1]:.1f})"
