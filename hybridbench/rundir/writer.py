"""Write a run directory: append-only files, each line passed to the system at once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from hybridbench.foundation.clock import Clock
from hybridbench.foundation.errors import ErrorCode, RunDirectoryError
from hybridbench.foundation.latency import LatencyCounts
from hybridbench.foundation.metrics import declared
from hybridbench.records.documents import writing
from hybridbench.records.events import Event, event_data, kind_of
from hybridbench.records.json_value import JsonValue, json_text, plain_mapping
from hybridbench.records.manifest import Manifest, manifest_to_json
from hybridbench.records.processes import ProcessSample
from hybridbench.rundir.atomic import sync_directory, write_atomically
from hybridbench.rundir.layout import EVENTS, MANIFEST, SAMPLES
from hybridbench.rundir.lines import LineFile, repair_tail, short


class RunWriter:
    """Owns the files of a run in progress.

    A kill loses at most the line being written; a power failure at most the last minute.
    """

    def __init__(
        self,
        run_dir: Path,
        manifest: Manifest,
        clock: Clock,
        *,
        goes_on: bool = False,
    ) -> None:
        """Open ``run_dir``, which must be new or empty, and write the manifest.

        With ``goes_on`` it holds an interrupted run: incomplete last lines are cut off
        (``repaired_bytes``), and new lines are appended to the rest.

        Raises:
            RunDirectoryError: the directory is not empty or cannot be written.
        """
        self.run_dir = run_dir
        self._clock = clock
        self.has_samples = False  # whether this writer stored one; forbids ``take_back``
        self.repaired_bytes: dict[str, int] = {}
        self._sizes: dict[Path, int] = {}
        if goes_on:
            self._before = (run_dir / MANIFEST).read_text("utf-8")
            for path in (run_dir / SAMPLES, run_dir / EVENTS):
                self.repaired_bytes[path.name] = repair_tail(path)
                self._sizes[path] = path.stat().st_size if path.exists() else 0
        else:
            self._before = ""
            _require_empty(run_dir)
        self.update_manifest(manifest)
        self._samples = LineFile(run_dir / SAMPLES, clock)
        self._events = LineFile(run_dir / EVENTS, clock)
        sync_directory(run_dir)

    def update_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest, to add what is known only later (worker versions, the end)."""
        write_atomically(self.run_dir / MANIFEST, json_text(manifest_to_json(manifest)))

    def sample(
        self,
        t_s: float,
        phase: str,
        metrics: Mapping[str, float],
        latencies: LatencyCounts | None = None,
        processes: Sequence[ProcessSample] = (),
    ) -> None:
        """Append a sample taken ``t_s`` seconds after the start, leaving out unmeasured metrics.

        A value that is not finite (an empty median) counts as unmeasured.  ``latencies`` cover the
        interval that ends with the sample; ``processes`` are those with a role.

        Raises:
            KeyError: a metric is undeclared; nothing is written then.
            RunDirectoryError: the line cannot be written.
        """
        line: dict[str, JsonValue] = {
            "t": round(t_s, 4),
            "wall": round(self._clock.wall_s(), 3),
            "phase": phase,
            "m": _stored(metrics),
        }
        if processes:
            line["processes"] = [
                {**plain_mapping(msgspec.to_builtins(one)), "m": _stored(one.m)}
                for one in processes
            ]
        if latencies:
            line["latencies"] = {
                name: {str(bucket): count for bucket, count in counts.items()}
                for name, counts in latencies.items()
            }
        self.has_samples = True
        self._samples.append(line)

    def event(self, event: Event) -> None:
        """Append a (rare) event.

        Raises:
            RunDirectoryError: the line cannot be written.
        """
        data = plain_mapping(event_data(event))
        self._events.append({"t": round(event.t_s, 4), "kind": kind_of(event), "data": data})

    def take_back(self) -> None:
        """Undo a refused continuation: restore the previous files, except for incomplete lines.

        Allowed only before the first sample: measurements are never removed.
        """
        assert not self.has_samples, "what was measured is never taken back"
        self.close()
        for path, size in self._sizes.items():
            os.truncate(path, size)
        write_atomically(self.run_dir / MANIFEST, self._before)

    def close(self) -> None:
        """Flush to disk and close the files; a second call does nothing."""
        try:
            self._samples.close()
        finally:
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _stored(metrics: Mapping[str, float]) -> dict[str, JsonValue]:
    """The measured values, shortened for storage.

    Raises:
        KeyError: a metric is undeclared.
    """
    for name in metrics:
        declared(name)
    return {name: short(value) for name, value in metrics.items() if math.isfinite(value)}


def _require_empty(run_dir: Path) -> None:
    with writing(f"use {run_dir}"):
        run_dir.mkdir(parents=True, exist_ok=True)
        occupied = any(run_dir.iterdir())
    if occupied:
        raise RunDirectoryError(
            f"{run_dir} is not empty; a run never writes over another one", code=ErrorCode.NOT_EMPTY
        )
