"""What a soak left behind, as a cell stores it; and which command goes on with it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, cast

import msgspec
import numpy as np

from hybridbench.analysis.facts.window import judged_length_s, last_segment, segments
from hybridbench.analysis.record import RunRecord
from hybridbench.errors import RunDirectoryError
from hybridbench.foreign import DOCUMENT_BYTES_MAX, read_json
from hybridbench.nightly.cells import DEFECT, DEFECTS_AS_OF, THIS_ENGINE, Cell
from hybridbench.nightly.machine_class import machine_words
from hybridbench.nightly.policy import STATISTICAL
from hybridbench.nightly.records import AttemptRecord, finding_record, rate_record
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Verdict
from hybridbench.report.json import verdict_from_json
from hybridbench.rundir.cut import is_finished
from hybridbench.rundir.layout import MANIFEST, SAMPLES, VERDICT
from hybridbench.rundir.manifest import as_mapping
from hybridbench.rundir.reader import read_run
from hybridbench.runs.extension import EXTENDED, EXTENSION_ENDED

# Shown from night to night; medians over the judged window.
_METRICS: Final = (
    "throughput_tokens_per_s",
    "requests_per_s",
    "ttft_ms_p50",
    "ttft_ms_p99",
    "itl_ms_p50",
    "itl_ms_p99",
    "rss_anon_swap_bytes",
)
HYBRIDBENCH: Final = (sys.executable, "-m", "hybridbench")


class Progress(Enum):
    """How far the newest run in an attempt's store is."""

    NONE = "none"
    CUT = "cut"  # soak --resume goes on with it
    UNJUDGED = "unjudged"  # ran to its end and was cut off before the verdict
    DONE = "done"


@dataclass(frozen=True)
class Stored:
    """The newest run of an attempt; no ``run_dir`` if there is none."""

    progress: Progress
    run_dir: Path | None = None


def soak_command(cell: Cell, attempt: AttemptRecord, store: Path) -> list[str]:
    """The soak of ``cell``, as anybody could type it."""
    words = [*HYBRIDBENCH, "soak", "--ui", "plain", "--store", str(store)]
    words += ["--profile", cell.profile_source, "--model", cell.model]
    words += ["--duration", f"{attempt.duration_s:g}s", "--seed", str(attempt.seed)]
    words += ["--extend", f"{attempt.extend_s:g}s" if attempt.extend_s else "0"]
    if cell.gc is not None:
        words += ["--gc", cell.gc]
    if cell.ballast is not None:
        words += ["--ballast", str(cell.ballast)]
    if cell.device is not None:
        words += ["--device", cell.device]
    for version in cell.versions:
        words += _version_words(version)
    for key, value in cell.settings:
        words += ["--set", f"{key}={value}"]
    for threshold in cell.thresholds:
        words += ["--threshold", threshold]
    return words


def resume_command(cell: Cell, run_dir: Path) -> list[str]:
    """Go on with a run that was cut off, as a segment of its own."""
    words = [*HYBRIDBENCH, "soak", "--resume", str(run_dir), "--ui", "plain"]
    for version in cell.versions:
        # No code is run because a manifest names it: files are given again.
        words += _version_words(version) if version.endswith(".py") else []
    return words


def judge_command(run_dir: Path) -> list[str]:
    """Judge a run that has ended."""
    return [*HYBRIDBENCH, "report", str(run_dir)]


def stored_run(store: Path) -> Stored:
    """How far the newest run in ``store`` came."""
    try:
        runs = sorted(path for path in store.iterdir() if (path / MANIFEST).exists())
    except OSError:
        return Stored(Progress.NONE)
    for run_dir in reversed(runs):
        try:
            record = read_run(run_dir)
        except RunDirectoryError:
            continue
        if is_finished(record):
            judged = (run_dir / VERDICT).exists()
            return Stored(Progress.DONE if judged else Progress.UNJUDGED, run_dir)
        interrupted = last_segment(record).last_event("interrupted") is not None
        if (run_dir / VERDICT).exists() and not interrupted and not _went_on(run_dir):
            return Stored(Progress.DONE, run_dir)
        return Stored(Progress.CUT, run_dir)
    return Stored(Progress.NONE)


def with_result(attempt: AttemptRecord, run_dir: Path, cell_dir: Path) -> AttemptRecord:
    """``attempt`` completed from the verdict of its run.

    Raises:
        RunDirectoryError: the run or its verdict cannot be read.
    """
    record, verdict = read_run(run_dir), _verdict(run_dir)
    window = verdict.window_s
    return msgspec.structs.replace(
        attempt,
        run=run_dir.relative_to(cell_dir).as_posix(),
        exit_code=int(verdict.exit_code),
        verdict=verdict.kind.value,
        headline=verdict.headline.removeprefix(f"{verdict.kind}: "),
        findings=tuple(
            finding_record(finding, exact=finding.kind not in STATISTICAL)
            for finding in verdict.findings
        ),
        metrics=_medians(record, window),
        growth={
            result.metric: rate_record(result.rate_per_hour)
            for result in verdict.metrics
            if result.rate_per_hour is not None
        },
        judged_s=0.0 if window is None else judged_length_s(record, window),
        segments=len(segments(record)),
        extended_s=_extended_s(record),
        machine_class=machine_words(record.manifest),
        engine=str(record.manifest.get("engine_hash", "")),
    )


def _version_words(version: str) -> list[str]:
    if version == THIS_ENGINE:
        return []
    name = version if version.startswith(DEFECTS_AS_OF) else version.removeprefix(DEFECT)
    return ["--defect", name]


def _went_on(run_dir: Path) -> bool:
    """Whether the verdict is older than the last sample: a later segment was cut off."""
    return (run_dir / VERDICT).stat().st_mtime < (run_dir / SAMPLES).stat().st_mtime


def _verdict(run_dir: Path) -> Verdict:
    return verdict_from_json(as_mapping(_json(run_dir / VERDICT)))


def _json(path: Path) -> JsonValue:
    try:
        return cast("JsonValue", read_json(path, DOCUMENT_BYTES_MAX))
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"cannot read {path}: {error}") from error


def _extended_s(record: RunRecord) -> float:
    """How long the run went on beyond its planned time, undecided."""
    began = record.last_event(EXTENDED)
    ended = last_segment(record).last_event(EXTENSION_ENDED)
    return 0.0 if began is None or ended is None else max(ended.t_s - began.t_s, 0.0)


def _medians(record: RunRecord, window: tuple[float, float] | None) -> dict[str, float]:
    if window is None:
        return {}
    medians = {}
    for name in _METRICS:
        series = record.series.get(name)
        values = np.array([]) if series is None else series.between(*window).value
        if values.size:
            medians[name] = float(np.median(values))
    return medians
