"""The benchmarks, one command each: ``python -m benchmarks --help`` in a checkout."""

from __future__ import annotations

import sys

import typer

from benchmarks import (
    against_sglang,
    answer_cost,
    answer_tolerance,
    cache,
    compare,
    comparison_calls,
    detectors,
    engine,
    kept_entries,
    kernels,
    limits,
    load_client,
    probe_cost,
    released_mutants,
    step,
)
from hybridbench.foundation.errors import HybridbenchError
from hybridbench.foundation.safe_output import print_error

app = typer.Typer(
    name="python -m benchmarks",
    help="Measure the engine, the analysis and the tools around them; benchmarks/README.md.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("cache")(cache.main)
app.command("step")(step.main)
app.command("engine")(engine.main)
app.command("kernels")(kernels.main)
app.command("limits")(limits.main)
app.command("compare")(compare.main)
app.command("against-sglang")(against_sglang.main)
app.command("detectors")(detectors.main)
app.command("comparison-calls")(comparison_calls.main)
app.command("kept-entries")(kept_entries.main)
app.command("answer-tolerance")(answer_tolerance.main)
app.command("answer-cost")(answer_cost.main)
app.command("load-client")(load_client.main)
app.command("probe-cost")(probe_cost.main)
app.command("released-mutants")(released_mutants.main)

if __name__ == "__main__":
    try:
        app()
    except HybridbenchError as error:
        print_error(error)
        sys.exit(int(error.exit_code))
