"""``hybridbench diagnose``: explain the growth that a stored run recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridbench.cli.completion import complete_result


def diagnose(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN_DIR", autocompletion=complete_result, help="A run directory."),
    ],
) -> None:
    """Print what the growth of a stored run consists of, as a paragraph for a bug report.

    Example: hybridbench diagnose results/20261124-101500-qwen3-next-chat-churn

    A run that leaks records its diagnosis at the end; for other runs only what their samples
    contain is printed.
    """
    # Imported here: `--help` and usage errors should not wait for numpy.
    from hybridbench.foundation.safe_output import one_line
    from hybridbench.foundation.terminal import Terminal
    from hybridbench.report.console import render_diagnosis
    from hybridbench.report.diagnosis import diagnosis_text, stored_evidence
    from hybridbench.rundir.reader import read_run

    record = read_run(run)
    found = diagnosis_text(record)
    console = Terminal()
    if found is not None:
        console.print(render_diagnosis(found))
        return
    for line in stored_evidence(record):
        console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)
