"""Record a failure of the bench itself: the traceback in the run directory, and an event."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path

from hybridbench.records.events import BenchFailed
from hybridbench.rundir.layout import BENCH_ERRORS
from hybridbench.runs.recorder import Recorder


def record_bench_failure(
    run_dir: Path, recorder: Recorder, part: str, error: BaseException, *, ended_run: bool
) -> str:
    """Record a bug in the bench, or a refusal by the machine, in the run at ``run_dir``.

    Args:
        part: what failed, in words: "the soak".
        ended_run: whether the failure ended the traffic.

    Returns:
        The error in one line.  Failures in here are suppressed, so that none hides the run's
        result.
    """
    said = " ".join(f"{type(error).__name__}: {error}".split())
    trace = "".join(traceback.format_exception(error))
    with contextlib.suppress(OSError):
        path = run_dir / BENCH_ERRORS
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{part}\n\n{trace}\n")
    with contextlib.suppress(Exception):
        recorder.event(BenchFailed(part=part, error=said, file=BENCH_ERRORS, ended_run=ended_run))
    return said
