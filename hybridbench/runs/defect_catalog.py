"""What defects there are: a process that imports the engine is asked, since they patch it."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from typing import Final

from hybridbench.defects.defect import Defect
from hybridbench.errors import ExitCode, UsageError, WorkerFailedError
from hybridbench.targets.own_process import own_command

AS_OF: Final = "defects-as-of:"  # as in defects/releases.py, which imports the engine
_PATIENCE_S = 120.0


@functools.cache
def described_defects(*names: str) -> tuple[Defect, ...]:
    """The defects that ``names`` mean as ``--defect`` takes them, each once; all without any.

    They have no patches: those are applied in the worker.

    Raises:
        UsageError: no such defect, release or file, or two of them patch the same method.
        WorkerFailedError: the engine cannot be imported.
    """
    command = [sys.executable, "-m", "hybridbench.worker.defect_catalog", *names]
    try:
        done = subprocess.run(
            own_command(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkerFailedError(f"the catalog of defects cannot be read: {error}.") from error
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode == ExitCode.USAGE:
        raise UsageError(said)
    if done.returncode != 0:
        last = (said.splitlines() or ["it printed nothing"])[-1]
        raise WorkerFailedError(f"the catalog of defects cannot be read: {last}.")
    # Our own child wrote it.
    found: tuple[Defect, ...] = pickle.loads(done.stdout)  # noqa: S301
    return found
