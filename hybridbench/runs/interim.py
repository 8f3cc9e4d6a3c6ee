"""Judge or report a run while it continues, in separate processes, so that no sample is late.

``python -m hybridbench.runs.interim RUN_DIR [final]`` writes the current verdict, pickled, to its
standard output; only the process that started it reads it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import IO, Protocol

from hybridbench.records.verdict import Verdict
from hybridbench.targets.background_process import ONE_THREAD, BackgroundProcess

_NICE = 10
_REPORT_PATIENCE_S = 30.0


class Judge(Protocol):
    """Gives verdicts during a run; implemented by ``InterimJudge``."""

    @property
    def busy(self) -> bool:
        """Whether an analysis is in progress."""
        ...

    @property
    def could_run_s(self) -> float:
        """Seconds for which the current analysis could have run; 0 if there is none."""
        ...

    def start(self) -> None:
        """Start judging what is stored now."""
        ...

    def collect(self) -> Verdict | None:
        """Return the verdict of an analysis that has ended; None if it has not, or if it failed.

        Afterwards ``busy`` is false if it ended.
        """
        ...

    def close(self) -> None:
        """End all child processes."""
        ...


class InterimJudge:
    """Judges one run, with one analysis at a time."""

    def __init__(self, run_dir: Path, *, final: bool = False) -> None:
        """``final`` judges as thoroughly as at the end of a run; otherwise coarser and faster."""
        self._command = [sys.executable, "-m", "hybridbench.runs.interim", str(run_dir.resolve())]
        self._command += ["final"] * final
        self._process: BackgroundProcess | None = None
        self._output: IO[bytes] | None = None

    @property
    def busy(self) -> bool:
        return self._process is not None

    @property
    def could_run_s(self) -> float:
        return 0.0 if self._process is None else self._process.could_run_s

    def start(self) -> None:
        """Start an analysis, unless one is in progress or no process can be started."""
        if self._process is not None:
            return
        self.close()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # lives until it is collected
        with contextlib.suppress(OSError):
            self._process = BackgroundProcess(
                self._command, settings=ONE_THREAD, output=self._output
            )

    def collect(self) -> Verdict | None:
        if self._process is None or self._process.exit_code is None:
            return None
        assert self._output is not None
        verdict = None
        if self._process.exit_code == 0:
            self._output.seek(0)
            # Trusted: our own child process wrote it to an unnamed file.
            verdict = pickle.load(self._output)  # noqa: S301
        self.close()
        return verdict if isinstance(verdict, Verdict) else None

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._output is not None:
            self._output.close()
            self._output = None


class InterimReport:
    """Run ``hybridbench report RUN --so-far``, one at a time."""

    def __init__(self, run_dir: Path) -> None:
        report = [sys.executable, "-m", "hybridbench", "report", str(run_dir.resolve())]
        self._command = ["nice", *report, "--so-far"]
        self._process: BackgroundProcess | None = None

    def start(self) -> bool:
        """Start a report; False if the last one is still running or no process can be started."""
        if self._process is not None and self._process.exit_code is None:
            return False
        with contextlib.suppress(OSError):
            self._process = BackgroundProcess(self._command)
            return True
        return False

    def close(self) -> None:
        """Wait for the report in progress; leave no process behind."""
        if self._process is not None:
            self._process.close(_REPORT_PATIENCE_S)


def main(run_dir: Path, *, final: bool = False) -> int:
    """Judge ``run_dir`` in its current state."""
    from hybridbench.analysis.judge import judge, judge_so_far
    from hybridbench.rundir.reader import read_run

    # The engine and its clients have priority.
    os.nice(_NICE)
    verdict = (judge if final else judge_so_far)(read_run(run_dir))
    sys.stdout.buffer.write(pickle.dumps(verdict))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), final="final" in sys.argv[2:]))
