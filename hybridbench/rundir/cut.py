"""A run that was cut off: how far it came, and whether anything is left to go on with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybridbench.analysis.facts.limits import served_s
from hybridbench.analysis.facts.window import borders, last_segment, segments
from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.errors import ErrorCode, RunDirectoryError
from hybridbench.records.events import Interrupted, Phase, WorkloadFailed
from hybridbench.records.manifest import OBSERVED, Manifest
from hybridbench.rundir.layout import SAMPLES
from hybridbench.rundir.listing import last_sample
from hybridbench.rundir.reader import read_run


@dataclass(frozen=True)
class CutRun:
    """What is known of a run that ended before its time.

    Args:
        end_s: time of the run at its last sign of life.
        end_wall_s: the same by the wall clock; None if no sample says.
        served_s: traffic of all segments together, warm-ups included.
        segments: how many there were.
    """

    manifest: Manifest
    end_s: float
    end_wall_s: float | None
    served_s: float
    segments: int


def read_cut_run(run_dir: Path) -> CutRun:
    """How far the run in ``run_dir`` came.

    Raises:
        RunDirectoryError: there is no run, it never got a worker, or it ended as planned.
    """
    record = read_run(run_dir)
    if record.manifest.target.kind == OBSERVED:
        raise RunDirectoryError(
            f"{run_dir} only observed a target that others ran, so it cannot be resumed: start it "
            "anew instead",
            code=ErrorCode.NOTHING_TO_RESUME,
        )
    if not record.manifest.engine_hash:
        raise RunDirectoryError(
            f"{run_dir} was cut off before its engine was built: start it anew instead",
            code=ErrorCode.NOTHING_TO_RESUME,
        )
    if is_finished(record):
        raise RunDirectoryError(
            f"{run_dir} ended as planned and has nothing left to resume: "
            "see it with 'hybridbench report', or start a new run",
            code=ErrorCode.NOTHING_TO_RESUME,
        )
    last = last_sample(run_dir / SAMPLES)
    return CutRun(
        manifest=record.manifest,
        end_s=record.last_moment_s,
        end_wall_s=last.wall if last is not None and last.wall else None,
        served_s=sum(served_s(part) for part in segments(record)),
        segments=len(borders(record)) + 1,
    )


def is_finished(record: RunRecord) -> bool:
    """Whether the run came to an end of its own: one that was interrupted, or whose trace could not
    be read any further, may go on.
    """
    part = last_segment(record)
    phase = part.last_event(Phase)
    if phase is None or part.last_event(Interrupted) or part.last_event(WorkloadFailed):
        return False
    return phase.name == "done"
