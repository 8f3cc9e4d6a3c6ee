"""``hybridbench bench``: the engine's speed as ratios measured side by side, and how well the
analysis tells leaks from healthy memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli import bench_compare
from hybridbench.errors import ExitCode

if TYPE_CHECKING:
    from hybridbench.bench.detectors import Row

app = typer.Typer(
    help="Benchmarks: the bundled engine as ratios from one run, the analysis beside others.",
    no_args_is_help=True,
)

app.command("compare")(bench_compare.compare)

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
    against: Annotated[
        str,
        typer.Option(
            metavar="PYTHON",
            help="An interpreter with sglang, whose caches then run the same turns beside ours.",
        ),
    ] = "",
    blocks: Annotated[
        int, typer.Option(min=1, help="With --against: how often the two take turns.")
    ] = 10,
) -> None:
    """The prefix caches alone: match, insert, evict on multi-turn conversations.

    8 system prompts of 256 tokens, turns of 192, 48 conversations, 120,000 KV tokens, 200 states.
    """
    from hybridbench.bench.cache import bench_cache, bench_eviction

    if against:
        _cache_against(against, turns, blocks)
    else:
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


def _cache_against(python: str, turns: int, blocks: int) -> None:
    from hybridbench.bench.against import KINDS, AgainstRow, Spread, bench_against

    def spread(figure: Spread) -> str:
        return f"{figure.median:6.1f} ({figure.least:.1f} to {figure.most:.1f})"

    def lines(row: AgainstRow) -> tuple[str, ...]:
        name = f"{row.cache} {row.page_size}"
        kinds = "".join(f"{row.ours_us[kind]:8.1f}" for kind in KINDS)
        other = "".join(f"{row.theirs_us[kind]:8.1f}" for kind in KINDS)
        return (
            f"{name:18} {'ours':14}{kinds}  {spread(row.ours_us_per_turn)}",
            f"{'':18} {'sglang ' + row.version:14}{other}  {spread(row.theirs_us_per_turn)}",
            f"{'':18} {'theirs / ours':14}{'':32}  {row.ratio.median:6.2f} "
            f"({row.ratio.least:.2f} to {row.ratio.most:.2f}); hit rate "
            f"{row.ours_hit_rate:.1%} and {row.theirs_hit_rate:.1%}",
        )

    typer.echo(
        f"microseconds inside cache calls, medians; {turns} turns in {blocks} blocks on each side, "
        "taken in turns; one thread each"
    )
    head = "".join(f"{kind:>8}" for kind in KINDS)
    typer.echo(f"{'cache, page size':18} {'':14}{head}  a turn (least to most block)")
    for page_size in (1, 16):
        for line in lines(bench_against(python, page_size, turns, blocks)):
            typer.echo(line)


@app.command("step")
def step(
    steps: Annotated[int, typer.Option(min=10, max=350, help="Timed decode steps a row.")] = 200,
) -> None:
    """A decode step beside the model, for pools of several sizes, young and after 2,000 requests.

    32 requests; the last column is what checking every pool after each step adds to a step.
    """
    from hybridbench.bench.step import BATCH, bench_step

    typer.echo(f"decode steps of {BATCH} requests, medians over {steps} steps, one thread")
    typer.echo(f"{'KV tokens':>10} {'served before':>14} {'us/token':>9} {'us/check':>9}")
    for row in bench_step(steps=steps):
        typer.echo(
            f"{row.kv_tokens:10} {row.served:14} {row.us_per_token:9.2f} "
            f"{row.check_us_per_step:9.1f}"
        )


@app.command("detectors")
def detectors(
    traces: Annotated[int, typer.Option(min=1, help="Traces of each kind.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of the first trace of each kind.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that share the work.")] = 1,
    kinds: Annotated[bool, typer.Option("--kinds", help="This analysis kind by kind too.")] = False,
    corpus: Annotated[
        str, typer.Option(help="curves, processes, processes-held-out or services.")
    ] = "curves",
) -> None:
    """The analysis against lines, ranks and rules of thumb, on labelled traces of memory.

    Curves: 23 healthy and 19 leaking kinds.  Processes: simulated mechanisms in pairs, half of the
    pairs held out.  Services: other mechanisms, never looked at.  Every detector sees every trace,
    none gets a steady event.
    """
    from hybridbench.bench.detectors import CORPORA, by_kind, judge_corpus, rows

    if corpus not in CORPORA:
        raise typer.BadParameter(f"{corpus} is none of {', '.join(CORPORA)}", param_hint="--corpus")
    answers = judge_corpus(traces, seed, jobs, corpus)
    table = rows(answers)
    typer.echo(
        f"{table[0].clean} clean traces, {table[0].resolvable} leaks that can be resolved, "
        f"{traces} traces of each kind from seed {seed}"
    )
    typer.echo(_detector_line(_DETECTOR_HEAD))
    for row in table:
        typer.echo(_detector_line((row.detector, *_figures(row))))
    for kind, row in by_kind(answers) if kinds else ():
        typer.echo(_detector_line((kind, *_figures(row))))


@app.command("limits")
def limits(
    store: Annotated[Path, typer.Option(help="Where the recordings are, or are made.")] = Path(
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

    Safe to start again: recordings that are in the store are not made anew.  Twenty recordings take
    three and a half hours, two at a time.  The tables are Markdown.

    Exit code 12 if the growth table breaks what docs/detection.md says of it.
    """
    from hybridbench.bench import limits as bench

    found = bench.record_missing(store, seeds, jobs, lambda text: typer.echo(text, err=True))
    typer.echo("\n".join(bench.limit_table(list(bench.limit_rows(found)))))
    if growth:
        typer.echo("\nLEAK / INCONCLUSIVE / CLEAN, and other verdicts\n")
        rows = list(bench.growth_rows(found))
        typer.echo("\n".join(bench.growth_table(rows)))
        broken = list(bench.broken_promises(rows))
        for sentence in broken:
            typer.echo(sentence, err=True)
        if broken:
            raise typer.Exit(int(ExitCode.REGRESSION))


@app.command("calls")
def calls(
    repeat: Annotated[int, typer.Option(min=1, help="Comparisons of each row.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Of each row's machines.")] = 5,
) -> None:
    """How often the calls of `compare` are right: planted speeds on simulated machines.

    The table is Markdown; the looks, margin and intervals are those of a live comparison.
    """
    from hybridbench.bench.comparison import TABLE_HEAD, run, table_row

    typer.echo("\n".join(TABLE_HEAD))
    for row in run(repeat, seed):
        typer.echo(table_row(row))


_DETECTOR_HEAD = (
    "detector",
    "false alarms",
    "found",
    "called clean",
    "inconclusive",
    "coverage",
    "ms/trace",
)


def _detector_line(cells: tuple[str, ...]) -> str:
    return f"{cells[0]:30}" + "".join(f"{cell:>15}" for cell in cells[1:])


def _figures(row: Row) -> tuple[str, ...]:
    return (
        _share(row.false_alarms, row.clean),
        _share(row.found, row.resolvable),
        _share(row.called_clean, row.resolvable),
        _share(row.clean_inconclusive, row.clean),
        "-" if row.coverage is None else f"{row.coverage:.3f}",
        f"{row.ms:.1f}",
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f} ({part})" if whole else "-"


def _spread_ms(times_s: tuple[float, ...]) -> str:
    ordered = sorted(1000 * t for t in times_s)
    middle = ordered[len(ordered) // 2]
    return f"{middle:7.1f} ms ({ordered[0]:.1f} to {ordered[-1]:.1f})"
