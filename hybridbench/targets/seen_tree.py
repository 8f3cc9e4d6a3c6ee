"""Base for targets whose processes are only observed: how to read them, and how they ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from hybridbench.records.processes import ProcessSample
from hybridbench.sampling.process_tree import ProcessTree
from hybridbench.sampling.runnable_time import RunnableTime
from hybridbench.targets.target import ExitStatus


class SeenTree:
    """The process ``pid`` and all its descendants, as ``tree`` shows them."""

    def __init__(self, pid: int, tree: ProcessTree) -> None:
        self._pid = pid
        self._tree = tree
        self._could_run = RunnableTime(pid)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def not_seen(self) -> list[str]:
        """What the samples lack, in words for the report."""
        return self._tree.not_seen

    def processes(self) -> Sequence[ProcessSample]:
        return self._tree.read()

    def counters(self) -> Mapping[str, float]:
        return {}

    def exit_of(self, pid: int) -> ExitStatus | None:
        status = self._tree.wait_status(pid)
        if status is None:
            return None
        return ExitStatus.from_returncode(os.waitstatus_to_exitcode(status))

    def could_run_s(self) -> float:
        return self._could_run.elapsed_s()
