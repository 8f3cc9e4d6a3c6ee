"""A run judged or reported while it goes on: by processes of their own, so that no sample is late.

``python -m hybridbench.runs.interim RUN_DIR [final]`` writes the verdict so far to its standard
output, pickled; the only reader is the process that started it.
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
    """Gives verdicts while a run goes on; an ``InterimJudge``."""

    @property
    def busy(self) -> bool:
        """Whether an analysis is under way."""
        ...

    @property
    def could_run_s(self) -> float:
        """For how long the analysis under way could have run; 0 if there is none."""
        ...

    def start(self) -> None:
        """Begin to judge what is stored now."""
        ...

    def collect(self) -> Verdict | None:
        """The verdict of an analysis that has ended since; None while it has not, or if it failed.

        Then ``busy`` is false.
        """
        ...

    def close(self) -> None:
        """Leave no process behind."""
        ...


class InterimJudge:
    """Judges one run, one analysis at a time."""

    def __init__(self, run_dir: Path, *, final: bool = False) -> None:
        """``final`` judges as the end of a run does, with all its care; else coarser and sooner."""
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
        """Begin; nothing happens while one is under way, or when no process can be started."""
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
            # Our own child wrote it to a file that has no name.
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
    """Starts ``hybridbench report RUN --so-far``, one at a time."""

    def __init__(self, run_dir: Path) -> None:
        report = [sys.executable, "-m", "hybridbench", "report", str(run_dir.resolve())]
        self._command = ["nice", *report, "--so-far"]
        self._process: BackgroundProcess | None = None

    def start(self) -> bool:
        """Begin; False while the last one is at work, or when no process can be started."""
        if self._process is not None and self._process.exit_code is None:
            return False
        with contextlib.suppress(OSError):
            self._process = BackgroundProcess(self._command)
            return True
        return False

    def close(self) -> None:
        """Wait for what is under way; nothing stays behind."""
        if self._process is not None:
            self._process.close(_REPORT_PATIENCE_S)


def main(run_dir: Path, *, final: bool = False) -> int:
    """Judge ``run_dir`` as it is now."""
    from hybridbench.analysis.judge import judge, judge_so_far
    from hybridbench.rundir.reader import read_run

    # The engine and its clients come first.
    os.nice(_NICE)
    verdict = (judge if final else judge_so_far)(read_run(run_dir))
    sys.stdout.buffer.write(pickle.dumps(verdict))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), final="final" in sys.argv[2:]))
