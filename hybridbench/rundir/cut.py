"""Determine how far an interrupted run got, and whether it can be resumed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybridbench.analysis.facts.limits import served_s
from hybridbench.analysis.facts.window import borders, last_segment, segments
from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.records.events import Interrupted, Phase, WorkloadFailed
from hybridbench.records.manifest import OBSERVED, Manifest
from hybridbench.rundir.layout import SAMPLES
from hybridbench.rundir.listing import last_sample
from hybridbench.rundir.reader import read_run


@dataclass(frozen=True)
class CutRun:
    """The state of a run that ended before its planned end.

    Args:
        end_s: run time of its last record.
        end_wall_s: wall-clock time of its last sample; None if unknown.
        served_s: traffic time of all segments together, including warm-ups.
        segments: number of segments.
    """

    manifest: Manifest
    end_s: float
    end_wall_s: float | None
    served_s: float
    segments: int


def read_cut_run(run_dir: Path) -> CutRun:
    """Read how far the run in ``run_dir`` got.

    Raises:
        RunDirectoryError: there is no run, its worker never started, or it ended as planned.
    """
    record = read_run(run_dir)
    if record.manifest.target.kind == OBSERVED:
        raise RunDirectoryError(
            f"{run_dir} only observed a target that others ran, so it cannot be resumed: start it "
            "anew instead",
        )
    if not record.manifest.engine_hash:
        raise RunDirectoryError(
            f"{run_dir} was cut off before its engine was built: start it anew instead",
        )
    if is_finished(record):
        raise RunDirectoryError(
            f"{run_dir} ended as planned and has nothing left to resume: "
            "see it with 'hybridbench report', or start a new run",
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
    """Whether the run ended as planned.  An interrupted run, or one that could not read the rest of
    its trace, can be resumed.
    """
    part = last_segment(record)
    phase = part.last_event(Phase)
    if phase is None or part.last_event(Interrupted) or part.last_event(WorkloadFailed):
        return False
    return phase.name == "done"
