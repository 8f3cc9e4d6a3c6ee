"""Names inside a run directory, run ids, and the making of a new directory or its taking back."""

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
from hybridbench.records.json_value import JsonValue

DIAGNOSIS_SCHEMA: Final = "hybridbench.diagnosis/1"
REPORT_SCHEMA: Final = "hybridbench.report/1"
COMPARISON_VERDICT_SCHEMA: Final = "hybridbench.comparison/1"

MANIFEST: Final = "manifest.json"
SAMPLES: Final = "samples.jsonl"
EVENTS: Final = "events.jsonl"
VERDICT: Final = "verdict.json"
# Each marks a directory of its kind, which has no manifest: a comparison, a nightly run.
COMPARISON: Final = "comparison.json"
# A line for each block of a live comparison.
BLOCKS: Final = "blocks.jsonl"
NIGHTLY: Final = "night.json"
# A nightly run in the making has only these: a folder with a directory a cell, and a file in each.
CELLS: Final = "cells"
CELL: Final = "cell.json"
DIAGNOSIS: Final = "diagnosis.json"
# The requests that end a watched server, without their texts.
CRASH_SEQUENCE: Final = "crash-sequence.json"
# As memray writes it; `memray flamegraph --leaks` reads it.
ALLOCATIONS: Final = "allocations.bin"
# What injected defects really did.  Only the self-test reads it: no verdict may rest on it.
TRUTH: Final = "truth.json"
WORKER_STDERR: Final = "worker.stderr.log"
# Names the process that writes this run, while it does.
LOCK: Final = "run.lock"
REPORT_HTML: Final = "report.html"
REPORT_MARKDOWN: Final = "report.md"
JUNIT: Final = "junit.xml"
SUMMARY: Final = "summary.md"
# Whoever wants a directory to stay, whatever `prune` deletes, puts a file of this name into it.
KEEP: Final = "KEEP"
# Tracebacks of the parts of the analysis that failed; only there when one did.
ANALYSIS_ERRORS: Final = "analysis-errors.txt"
# Tracebacks of the bench itself while the run went on, or as it was reported; likewise.
BENCH_ERRORS: Final = "bench-errors.txt"
# What SIGUSR1 asks for while a run goes on; the end of the run leaves them as they are.
VERDICT_SO_FAR: Final = "verdict-so-far.json"
REPORT_HTML_SO_FAR: Final = "report-so-far.html"
REPORT_MARKDOWN_SO_FAR: Final = "report-so-far.md"
ANALYSIS_ERRORS_SO_FAR: Final = "analysis-errors-so-far.txt"

# By these a directory is known as one of ours at first sight; what they hold must prove it.
MARKERS: Final = (MANIFEST, SAMPLES, COMPARISON, NIGHTLY, CELL)
# What was recorded, found or agreed on: no report may be written over it.  The pages (report.html,
# report.md, junit.xml) are made anew from these at any time.
RECORDED: Final = frozenset(
    {
        *MARKERS,
        *(EVENTS, BLOCKS, VERDICT, VERDICT_SO_FAR, DIAGNOSIS, ALLOCATIONS, TRUTH),
        *(WORKER_STDERR, BENCH_ERRORS, CRASH_SEQUENCE, LOCK, KEEP),
    }
)

# Of runs, comparisons and nightly runs; made of what was recorded.
WRITTEN_PAGES: Final = frozenset(
    {
        *(REPORT_HTML, REPORT_MARKDOWN, JUNIT, SUMMARY),
        *(REPORT_HTML_SO_FAR, REPORT_MARKDOWN_SO_FAR),
        *(ANALYSIS_ERRORS, ANALYSIS_ERRORS_SO_FAR),
    }
)

# What is written before the first sample.
_BEFORE_SAMPLES: Final = frozenset({MANIFEST, SAMPLES, EVENTS, WORKER_STDERR, COMPARISON, BLOCKS})

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9.]+")
_COLLISIONS_MAX = 1000


def new_run_id(wall_s: float, model: str, profile: str, defects: Sequence[str] = ()) -> str:
    """``YYYYmmdd-HHMMSS-model-profile[-defect]`` in UTC; of a path, only the name of the file."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(wall_s))
    names = [
        _slug(Path(model).name),
        _slug(Path(profile).stem),
        *(_slug(_stem(d)) for d in defects),
    ]
    return "-".join([stamp, *(name for name in names if name)])


def make_run_dir(store: Path, run_id: str) -> Path:
    """Make and return a directory of its own for ``run_id``: ``-2``, ``-3``, ... on a collision.

    Its name is the run id that goes into the manifest.  Two processes never get the same one.

    Raises:
        RunDirectoryError: when the store cannot be written.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _COLLISIONS_MAX):
            path = store / (run_id if attempt == 1 else f"{run_id}-{attempt}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise RunDirectoryError(
            f"cannot make a run directory in {store}: {error.strerror}; choose another --store",
            code=ErrorCode.NOT_WRITABLE,
        ) from error
    raise RunDirectoryError(
        f"{store} already holds {_COLLISIONS_MAX} runs named {run_id}", code=ErrorCode.NOT_EMPTY
    )


def remove_unused(directory: Path) -> bool:
    """Take ``directory`` away if no sample was stored below it; whether it is gone.

    Only files that we write are deleted: with anything else in it, the directory stays.
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
    """Make ``path`` and what is above it; one that is there is taken.

    Raises:
        RunDirectoryError: the place cannot be written, or is a file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(
            f"cannot make the directory {path}: {error.strerror}; name another place",
            code=ErrorCode.NOT_WRITABLE,
        ) from error


def published_schema(name: str) -> dict[str, JsonValue]:
    """The JSON Schema ``manifest`` or ``verdict`` as shipped with the package."""
    text = (resources.files(__package__) / "schemas" / f"{name}.schema.json").read_text("utf-8")
    schema: dict[str, JsonValue] = json.loads(text)
    return schema


def _stem(defect: str) -> str:
    """A defect is a slug or the path of a Python file."""
    return Path(defect).stem if defect.endswith(".py") else defect


def _slug(name: str) -> str:
    return _NOT_IN_A_NAME.sub("-", name).strip("-.").lower()[:60]
