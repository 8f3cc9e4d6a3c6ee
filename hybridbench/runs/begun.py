"""A run that has begun: its directory and its observers, for any kind of target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybridbench.records.manifest import Manifest
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs.loop import RunContext


@dataclass
class BegunRun:
    """A run in progress, owned by the soak; ``manifest`` is its current manifest."""

    context: RunContext
    writer: RunWriter
    manifest: Manifest
    started_wall_s: float

    @property
    def run_dir(self) -> Path:
        """The run's directory."""
        return self.writer.run_dir

    def describe(self, manifest: Manifest) -> None:
        """Store ``manifest``, which describes the actual target."""
        self.manifest = manifest
        self.writer.update_manifest(manifest)
