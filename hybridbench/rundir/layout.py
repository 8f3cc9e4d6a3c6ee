"""Names inside a run directory, run ids, and making or removing a new directory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from hybridbench.foundation.errors import ErrorCode, RunDirectoryError
from hybridbench.records.documents import writing
from hybridbench.records.json_value import JsonValue

DIAGNOSIS_SCHEMA: Final = "hybridbench.diagnosis/1"
REPORT_SCHEMA: Final = "hybridbench.report/1"
COMPARISON_VERDICT_SCHEMA: Final = "hybridbench.comparison/1"

# Where runs are stored unless --store says otherwise.
STORE: Final = Path("results")
MANIFEST: Final = "manifest.json"
SAMPLES: Final = "samples.jsonl"
EVENTS: Final = "events.jsonl"
VERDICT: Final = "verdict.json"
# Marker files of directories without a manifest: a comparison, a nightly run.
COMPARISON: Final = "comparison.json"
# One line for each block of a live comparison.
BLOCKS: Final = "blocks.jsonl"
NIGHTLY: Final = "night.json"
# An unfinished nightly run has only these: a folder with a directory per cell, and a file in each.
CELLS: Final = "cells"
CELL: Final = "cell.json"
DIAGNOSIS: Final = "diagnosis.json"
# The requests that crash a watched server, without their texts.
CRASH_SEQUENCE: Final = "crash-sequence.json"
# Memray's format, for `memray flamegraph --leaks`.
ALLOCATIONS: Final = "allocations.bin"
# Actual effects of injected defects.  Only the self-test reads it: no verdict may depend on it.
TRUTH: Final = "truth.json"
WORKER_STDERR: Final = "worker.stderr.log"
# Names the process that is writing this run.
LOCK: Final = "run.lock"
REPORT_HTML: Final = "report.html"
REPORT_MARKDOWN: Final = "report.md"
JUNIT: Final = "junit.xml"
SUMMARY: Final = "summary.md"
# A file of this name, made by the user, keeps `prune` from deleting the directory.
KEEP: Final = "KEEP"
# Tracebacks of failed parts of the analysis; exists only if one failed.
ANALYSIS_ERRORS: Final = "analysis-errors.txt"
# Tracebacks of the bench itself during the run or its report; exists only if there are any.
BENCH_ERRORS: Final = "bench-errors.txt"
# Interim files, written on SIGUSR1 during a run; the end of the run leaves them unchanged.
VERDICT_SO_FAR: Final = "verdict-so-far.json"
REPORT_HTML_SO_FAR: Final = "report-so-far.html"
REPORT_MARKDOWN_SO_FAR: Final = "report-so-far.md"
ANALYSIS_ERRORS_SO_FAR: Final = "analysis-errors-so-far.txt"

# Names that suggest a directory of ours; the files' contents must confirm it.
MARKERS: Final = (MANIFEST, SAMPLES, COMPARISON, NIGHTLY, CELL)
# Evidence, verdicts and markers, which no report may overwrite.  The pages (report.html, report.md,
# junit.xml) can be rebuilt from these at any time.
RECORDED: Final = frozenset(
    {
        *MARKERS,
        *(EVENTS, BLOCKS, VERDICT, VERDICT_SO_FAR, DIAGNOSIS, ALLOCATIONS, TRUTH),
        *(WORKER_STDERR, BENCH_ERRORS, CRASH_SEQUENCE, LOCK, KEEP),
    }
)

# Pages of runs, comparisons and nightly runs, derived from the records.
WRITTEN_PAGES: Final = frozenset(
    {
        *(REPORT_HTML, REPORT_MARKDOWN, JUNIT, SUMMARY),
        *(REPORT_HTML_SO_FAR, REPORT_MARKDOWN_SO_FAR),
        *(ANALYSIS_ERRORS, ANALYSIS_ERRORS_SO_FAR),
    }
)

# Files that exist before the first sample.
_BEFORE_SAMPLES: Final = frozenset({MANIFEST, SAMPLES, EVENTS, WORKER_STDERR, COMPARISON, BLOCKS})

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9.]+")
_COLLISIONS_MAX = 1000


def new_run_id(wall_s: float, model: str, profile: str, defects: Sequence[str] = ()) -> str:
    """``YYYYmmdd-HHMMSS-model-profile[-defect]`` in UTC; paths contribute only their file name."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(wall_s))
    names = [
        _slug(Path(model).name),
        _slug(Path(profile).stem),
        *(_slug(_stem(d)) for d in defects),
    ]
    return "-".join([stamp, *(name for name in names if name)])


def make_run_dir(store: Path, run_id: str) -> Path:
    """Make and return a new directory for ``run_id``; append ``-2``, ``-3``, ... on a collision.

    Its name is the manifest's run id.  Two processes never get the same directory.

    Raises:
        RunDirectoryError: the store cannot be written.
    """
    with writing(f"make a run directory in {store}", "choose another --store"):
        store.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _COLLISIONS_MAX):
            path = store / (run_id if attempt == 1 else f"{run_id}-{attempt}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    raise RunDirectoryError(
        f"{store} already holds {_COLLISIONS_MAX} runs named {run_id}", code=ErrorCode.NOT_EMPTY
    )


def remove_unused(directory: Path) -> bool:
    """Remove ``directory`` if no sample was stored below it; return whether it is gone.

    Only our own files are deleted: a directory with any other file stays.
    """
    with contextlib.suppress(OSError):
        if any(path.stat().st_size for path in directory.rglob(SAMPLES)):
            return False
        for folder, _, files in os.walk(directory, topdown=False):
            for name in _BEFORE_SAMPLES.intersection(files):
                (Path(folder) / name).unlink()
            os.rmdir(folder)
    return not directory.exists()


def make_directory(path: Path) -> None:
    """Make ``path`` and its parents; an existing directory is accepted.

    Raises:
        RunDirectoryError: it cannot be made, or is a file.
    """
    with writing(f"make the directory {path}", "name another place"):
        path.mkdir(parents=True, exist_ok=True)


def published_schema(name: str) -> dict[str, JsonValue]:
    """The shipped JSON Schema called ``name``, such as ``manifest`` or ``verdict``."""
    text = (resources.files(__package__) / "schemas" / f"{name}.schema.json").read_text("utf-8")
    schema: dict[str, JsonValue] = json.loads(text)
    return schema


def _stem(defect: str) -> str:
    """The name of a defect, which is a slug or the path of a Python file."""
    return Path(defect).stem if defect.endswith(".py") else defect


def _slug(name: str) -> str:
    return _NOT_IN_A_NAME.sub("-", name).strip("-.").lower()[:60]
