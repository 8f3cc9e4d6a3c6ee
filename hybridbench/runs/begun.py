"""A run that has begun: where it is written and who watches it, for what is under soak."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybridbench.records.manifest import Manifest
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs.loop import RunContext


@dataclass
class BegunRun:
    """Owned by the soak; ``manifest`` is that of the run so far."""

    context: RunContext
    writer: RunWriter
    manifest: Manifest
    started_wall_s: float

    @property
    def run_dir(self) -> Path:
        """Where the run is written."""
        return self.writer.run_dir

    def describe(self, manifest: Manifest) -> None:
        """Store what is known now of what really runs."""
        self.manifest = manifest
        self.writer.update_manifest(manifest)
