"""What lies in a store of runs: one summary each, damaged ones included."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hybridbench.analysis.record import JsonValue
from hybridbench.errors import RunDirectoryError
from hybridbench.rundir.layout import MANIFEST, SAMPLES, VERDICT
from hybridbench.rundir.manifest import as_mapping
from hybridbench.rundir.reader import SampleLine, decoded_sample, read_manifest

_TAIL_BYTES: Final = 1 << 17


@dataclass(frozen=True)
class RunSummary:
    """One line of a list of runs; ``problem`` says why the rest is empty."""

    path: Path
    run_id: str
    model: str = ""
    profile: str = ""
    defects: tuple[str, ...] = ()
    started_wall_s: float | None = None
    duration_s: float | None = None  # time of the last sample that can be read
    verdict: str | None = None  # None: not judged yet
    headline: str = ""
    problem: str = ""


def list_runs(store: Path) -> list[RunSummary]:
    """The runs under ``store``, newest first; none for a store that does not exist."""
    try:
        folders = [path for path in store.iterdir() if path.is_dir()]
    except OSError:
        return []
    runs = [_summary(path) for path in folders if _looks_like_a_run(path)]
    return sorted(runs, key=lambda run: (run.started_wall_s or 0.0, run.run_id), reverse=True)


def last_sample(path: Path) -> SampleLine | None:
    """The last whole sample; reads the end of the file only, for a store of long runs."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        sample = decoded_sample(line)
        if sample is not None:
            return sample
    return None


def _looks_like_a_run(path: Path) -> bool:
    try:
        return (path / MANIFEST).exists() or (path / SAMPLES).exists()
    except OSError:
        return False


def _summary(path: Path) -> RunSummary:
    try:
        manifest = read_manifest(path)
        verdict, headline = _stored_verdict(path / VERDICT)
        last = last_sample(path / SAMPLES)
        return RunSummary(
            path=path,
            run_id=str(manifest["run_id"]),
            model=str(as_mapping(manifest["model"]).get("name", "")),
            profile=str(as_mapping(manifest["profile"]).get("name", "")),
            defects=_texts(manifest["defects"]),
            started_wall_s=_number(manifest["started_wall_s"]),
            duration_s=None if last is None else last.t,
            verdict=verdict,
            headline=headline,
        )
    except (RunDirectoryError, OSError) as error:
        return RunSummary(path=path, run_id=path.name, problem=str(error))


def _stored_verdict(path: Path) -> tuple[str | None, str]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None, ""
    if not isinstance(stored, dict) or not isinstance(stored.get("verdict"), str):
        return None, ""
    return stored["verdict"], str(stored.get("headline", ""))


def _texts(value: JsonValue) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _number(value: JsonValue) -> float | None:
    return float(value) if isinstance(value, int | float) else None
