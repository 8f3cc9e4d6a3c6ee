"""Access to stored runs from Python: ``hybridbench.load_run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import Event
from hybridbench.records.finding import Finding
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import Verdict
from hybridbench.rundir.reader import read_run


@dataclass(frozen=True)
class Run:
    """A stored run: its records, and the findings of the current analysis.

    ``record`` is the input of the analysis.  The stored verdict.json is not read: an older version
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
        """Metrics over time, by name: ``t_s``, seconds since the run began, and ``value``, in the
        unit at the end of the name; both float64 arrays, [samples].
        """
        return self.record.series

    @property
    def events(self) -> Sequence[Event]:
        """Phases, checkpoints, crashes and other rare events, in time order."""
        return self.record.events

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict under the run's own thresholds, the same as in ``hybridbench report``."""
        return judge(self.record)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings behind the verdict, most severe first."""
        return self.verdict.findings


def load_run(path: Path) -> Run:
    """Load the run stored in the directory ``path``.

    Raises:
        RunDirectoryError: there is no run, or a later version wrote it.
    """
    return Run(path, read_run(path))
