"""``hybridbench diagnose``: what a stored run can still tell about the growth it saw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridbench.cli.completion import complete_result


def diagnose(
    run: Annotated[Path, typer.Argument(autocompletion=complete_result, help="A run directory.")],
) -> None:
    """Print what the growth of a stored run consists of, as a paragraph for a bug report.

    Only runs that recorded a diagnosis can be shown in full; the worker process no longer exists.
    """
    # Imported here: `--help` and usage errors should not wait for numpy.
    from hybridbench.report.console import render_diagnosis
    from hybridbench.report.diagnosis import diagnosis_text, stored_evidence
    from hybridbench.rundir.reader import read_run
    from hybridbench.safe_output import one_line
    from hybridbench.terminal import Terminal

    record = read_run(run)
    found = diagnosis_text(record)
    console = Terminal()
    if found is not None:
        console.print(render_diagnosis(found))
        return
    for line in stored_evidence(record):
        console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)
