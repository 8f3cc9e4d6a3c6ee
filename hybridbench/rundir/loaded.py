"""A stored run for programs: ``hybridbench.load_run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import Event
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import Finding, Verdict
from hybridbench.rundir.reader import read_run


@dataclass(frozen=True)
class Run:
    """A stored run: what was recorded, and what the analysis finds in it now.

    ``record`` is what the analysis reads.  The stored verdict.json is not read: an older version
    may have written it.
    """

    path: Path
    record: RunRecord

    @property
    def manifest(self) -> Manifest:
        """What ran: versions, machine, settings, profile, seed, defects."""
        return self.record.manifest

    @property
    def series(self) -> Mapping[str, Series]:
        """Each metric over time by its name: ``t_s``, seconds since the run began, and ``value``,
        in the unit that the name ends with; two arrays of float64, [samples].
        """
        return self.record.series

    @property
    def events(self) -> Sequence[Event]:
        """Phases, checkpoints, crashes and other rare events, in order of time."""
        return self.record.events

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict that ``hybridbench report`` gives, under the run's own thresholds."""
        return judge(self.record)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the verdict rests on, the gravest first."""
        return self.verdict.findings


def load_run(path: Path) -> Run:
    """The run stored in the directory ``path``.

    Raises:
        RunDirectoryError: there is no run, or a later version wrote it.
    """
    return Run(path, read_run(path))
