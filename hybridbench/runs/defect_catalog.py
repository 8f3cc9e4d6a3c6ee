"""List the known defects via a process that imports the engine, since defects patch it."""

from __future__ import annotations

import functools
import pickle
import sys
from typing import Final

from hybridbench.defects.defect import Defect
from hybridbench.foundation.errors import ExitCode, UsageError, WorkerFailedError
from hybridbench.targets.background_process import answer_of
from hybridbench.targets.own_process import require_engine_packages

AS_OF: Final = "defects-as-of:"  # as in defects/releases.py, which imports the engine
_PATIENCE_S = 120.0


@functools.cache
def described_defects(*names: str) -> tuple[Defect, ...]:
    """Return the defects that ``names`` select as for ``--defect``, each once; all if empty.

    They have no patches: those are applied in the worker.

    Raises:
        UsageError: no such defect, release or file, or two of them patch the same method.
        ConfigError: the engine needs a package that is not installed.
        WorkerFailedError: the engine cannot be imported.
    """
    require_engine_packages()
    command = [sys.executable, "-m", "hybridbench.worker.defect_catalog", *names]
    try:
        answer = answer_of(command, _PATIENCE_S)
    except OSError as error:
        raise _unread(f"{error}") from error
    if answer.timed_out:
        raise _unread(
            f"the process that imports the engine was not ready in {_PATIENCE_S:.0f} s, not "
            "counting what it waited for a processor"
        )
    said = answer.errors.strip()
    if answer.exit_code == ExitCode.USAGE:
        # The sentence already begins with the option.
        raise UsageError(said, also=("--defect",))
    if answer.exit_code != 0:
        raise _unread((said.splitlines() or ["it printed nothing"])[-1])
    # Trusted: our own child process wrote it.
    found: tuple[Defect, ...] = pickle.loads(answer.output)  # noqa: S301
    return found


def _unread(why: str) -> WorkerFailedError:
    return WorkerFailedError(f"the catalog of defects cannot be read: {why}.")
