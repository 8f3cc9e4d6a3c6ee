"""``hybridbench demo``: replay a recorded leak in the live view, then print its report."""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from hybridbench.cli.options import Store
from hybridbench.cli.output import check_directory
from hybridbench.cli.render import OutputOptions, render_ended
from hybridbench.cli.run_options import SoakUi, Ui
from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.safe_output import echo
from hybridbench.records.documents import writing
from hybridbench.rundir.layout import STORE

if TYPE_CHECKING:
    from hybridbench.records.manifest import Manifest

_LASTS_S: Final = 15.0
_SHOWN: Final = """
That was a recording of a leak: the soak ended with exit code 10, and this
command ends with 0.  Next, on this machine:
"""
_NEXT: Final = {
    "hybridbench soak --duration 5m": "the engine that hybridbench bundles",
    "hybridbench watch -- COMMAND": "a server of yours, such as vllm serve",
}
# Shown if the bundled engine cannot run here.
_NEXT_OF_CORE: Final = {
    "hybridbench watch -- COMMAND": "a server of yours, such as vllm serve",
    "hybridbench judge FILE": "memory recorded with ps, Prometheus, ...",
}


def demo(store: Store = STORE, ui: Ui = SoakUi.AUTO) -> None:
    """Show a recorded leak in 15 seconds: the live view of a soak, then its report.

    Example: hybridbench demo

    The recording is a stored run, replayed by the view and judged by the analysis that a soak uses.
    Nothing is measured, and no engine is needed.  The run and its report are written to a new
    directory below --store.  The exit code is 0, or 130 after Ctrl-C.
    """
    check_directory("--store", store)
    # Imported here: `--help` should not wait for numpy.
    from hybridbench.foundation.clock import SystemClock
    from hybridbench.rundir.layout import make_run_dir
    from hybridbench.rundir.manifest import read_manifest
    from hybridbench.runs.interrupts import SecondSignalError, handled_interrupts
    from hybridbench.runs.live import make_view
    from hybridbench.runs.replay import RECORDING, replay
    from hybridbench.targets.own_process import missing_engine_packages

    view = make_view(ui.value)
    try:
        with handled_interrupts() as interrupts:
            view.note(_title(read_manifest(RECORDING)))
            replay(RECORDING, _LASTS_S, view, SystemClock(), interrupts)
    except SecondSignalError:
        pass
    finally:
        view.close()
    if interrupts.exit_code is not None:
        raise typer.Exit(int(interrupts.exit_code))
    directory = make_run_dir(store, "demo")
    _copy(RECORDING, directory)
    code = render_ended(directory, OutputOptions(), None)
    if code != ExitCode.LEAK:
        raise typer.Exit(code)
    echo(_SHOWN)
    for command, what in (_NEXT_OF_CORE if missing_engine_packages() else _NEXT).items():
        echo(f"  {command:32}{what}")


def _title(manifest: Manifest) -> str:
    day = time.strftime("%Y-%m-%d", time.gmtime(manifest.started_wall_s))
    speed = round((manifest.planned_duration_s or 0.0) / _LASTS_S)
    return f"recorded on {day}, {speed} times as fast: {shlex.join(manifest.command)}"


def _copy(recording: Path, directory: Path) -> None:
    """
    Raises:
        RunDirectoryError: ``directory`` cannot be written.
    """
    with writing(f"write {directory}", "choose another --store"):
        for file in recording.iterdir():
            shutil.copyfile(file, directory / file.name)
