"""A look at a run while it goes on: judged in a process of its own, so that no sample comes late.

``python -m hybridbench.runs.look RUN_DIR [final]`` writes the verdict so far to its standard
output, pickled; the only reader is the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from hybridbench.records.verdict import Verdict
from hybridbench.targets.own_process import own_command

_NICE = 10
_PATIENCE_S = 5.0


class Looker:
    """Starts one look at a time and hands over its verdict when there is one."""

    def __init__(self, run_dir: Path, *, final: bool = False) -> None:
        """``final`` looks as the end of a run does, with all its care; else coarser and sooner."""
        self._run_dir = run_dir
        self._final = final
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None

    @property
    def busy(self) -> bool:
        """Whether a look is under way."""
        return self._process is not None

    def start(self) -> None:
        """Begin a look at what is stored now; nothing happens while one is under way."""
        if self._process is not None:
            return
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # lives until the look is collected
        with contextlib.suppress(OSError):
            # A session of its own: a Ctrl-C is for the soak.
            self._process = subprocess.Popen(
                _command(self._run_dir, final=self._final),
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def collect(self) -> Verdict | None:
        """The verdict of a look that has ended since; None while it has not, or if it failed."""
        if self._process is None or self._said is None or self._process.poll() is None:
            return None
        worked, said = self._process.returncode == 0, self._said
        self._process = self._said = None
        with said:
            said.seek(0)
            return _unpickled(said.read()) if worked else None

    def close(self) -> None:
        """Leave no process behind."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_PATIENCE_S)
            self._process = None
        if self._said is not None:
            self._said.close()
            self._said = None


def main(run_dir: Path, *, final: bool = False) -> int:
    """Judge ``run_dir`` as it is now."""
    from hybridbench.analysis.judge import judge, judge_so_far
    from hybridbench.rundir.reader import read_run

    # The engine and its clients come first.
    os.nice(_NICE)
    verdict = (judge if final else judge_so_far)(read_run(run_dir))
    sys.stdout.buffer.write(pickle.dumps(verdict))
    return 0


def _command(run_dir: Path, *, final: bool) -> list[str]:
    settings = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    look = [sys.executable, "-m", "hybridbench.runs.look", str(run_dir.resolve())]
    look += ["final"] * final
    return own_command(look, settings)


def _unpickled(data: bytes) -> Verdict | None:
    # Our own child wrote it to a file that has no name.
    found = pickle.loads(data)  # noqa: S301
    return found if isinstance(found, Verdict) else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), final="final" in sys.argv[2:]))
