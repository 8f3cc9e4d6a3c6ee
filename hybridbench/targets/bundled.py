"""The bundled engine, in a worker process with its own session."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hybridbench.foundation.errors import WorkerFailedError
from hybridbench.records.messages import FromWorker, ToWorker
from hybridbench.records.prepared import PreparedTarget
from hybridbench.records.processes import ProcessSample
from hybridbench.sampling.malloc import PINNED_ENVIRONMENT
from hybridbench.sampling.process import require_proc
from hybridbench.sampling.runnable_time import RunnableTime
from hybridbench.targets.own_process import (
    SAFE_PATH,
    await_end,
    await_killed,
    import_path,
    require_engine_packages,
    with_environment,
)
from hybridbench.targets.stderr_file import StderrFile
from hybridbench.targets.target import ExitStatus
from hybridbench.targets.wire import ParentWire

# One arithmetic thread: more would add arenas, stacks and noise to the memory that is measured.
# A fixed hash seed makes dict layouts, and so sizes, the same in every run.
_ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
}

WORKER_MODULE: Final = "hybridbench.worker"
# Older engines, from before the worker had its own package, use the same wire.
FORMER_WORKER_MODULE: Final = "hybridbench.runs.worker"


@dataclass(frozen=True)
class WorkerProgram:
    """Which engine runs, in which interpreter.

    ``search_path`` is the worker's PYTHONPATH; None means the same imports as this process.  The
    working directory is never searched: it may hold another engine, or a file named like a module.
    ``released`` names the engine whose classes the worker drives, "" for the bundled one;
    ``settings`` are set in the worker's environment, and ``prepared`` says what was installed.
    """

    python: str = sys.executable
    search_path: str | None = None
    module: str = WORKER_MODULE
    released: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    prepared: PreparedTarget | None = None


@dataclass(frozen=True)
class WorkerLaunch:
    """How the worker process is started.

    ``malloc`` is "pinned" (see ``sampling/malloc.py``), or "system" to keep the settings of the
    caller's environment.
    """

    stderr_path: Path
    malloc: str = "pinned"
    program: WorkerProgram = field(default_factory=WorkerProgram)

    def environment(self) -> dict[str, str]:
        """Return the variables that are added to the caller's environment."""
        pinned = PINNED_ENVIRONMENT if self.malloc == "pinned" else {}
        given = self.program.search_path
        path = import_path() if given is None else given
        own = dict(self.program.settings)
        return {**_ENVIRONMENT, **pinned, **own, **SAFE_PATH, "PYTHONPATH": path}


class BundledTarget:
    """Owns the worker process: its wire, its stderr file and its end.

    The worker leads its own session, so that a Ctrl-C at the terminal reaches only the parent, and
    killing the group reaches everything that the engine started.  It dies with its parent, however
    the parent ends.
    """

    def __init__(self, launch: WorkerLaunch) -> None:
        """Start the process; it waits for ``Start`` on the wire.

        Raises:
            WorkerFailedError: the system cannot start it.
            ConfigError: there is no /proc to read its memory from, or a package that the engine
                needs is not installed.
        """
        require_proc()
        if launch.program.python == sys.executable:
            require_engine_packages()
        self._stderr = StderrFile(launch.stderr_path)
        parent_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with worker_end, self._stderr.open_for_worker() as stderr:
                self._process = subprocess.Popen(
                    _command(launch, worker_end.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    pass_fds=(worker_end.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            parent_end.close()
            raise WorkerFailedError(f"cannot start the engine worker: {error}.") from error
        self._wire = ParentWire(parent_end)
        self._could_run = RunnableTime(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def processes(self) -> Sequence[ProcessSample]:
        return ()

    def counters(self) -> Mapping[str, float]:
        return {}

    def exit_of(self, pid: int) -> ExitStatus | None:
        return self.exit_status() if pid == self.pid else None

    def post(self, message: ToWorker) -> None:
        self._wire.post(message)

    def exchange(self, timeout_s: float) -> list[FromWorker]:
        return self._wire.exchange(timeout_s)

    def fileno(self) -> int:
        """Return the wire's descriptor, for a loop that waits on several at a time."""
        return self._wire.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether some posted messages are not sent yet, because the worker does not read."""
        return self._wire.has_unsent

    def could_run_s(self) -> float:
        return self._could_run.elapsed_s()

    def exit_status(self) -> ExitStatus | None:
        returncode = self._process.poll()
        return None if returncode is None else ExitStatus.from_returncode(returncode)

    def dump_stack(self) -> None:
        # The worker registered faulthandler for this signal: it works even if Python is stuck.
        self._process.send_signal(signal.SIGUSR1)

    def freeze(self) -> None:
        """Stop the process; it neither runs nor accrues runnable time until ``thaw``."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume a frozen process."""
        self._process.send_signal(signal.SIGCONT)

    def stderr_tail(self) -> list[str]:
        return self._stderr.tail()

    def limit_stderr(self) -> None:
        self._stderr.trim()

    def stop(self, patience_s: float) -> ExitStatus | None:
        self._wire.close()
        if await_end(self._process, patience_s) is None:
            self.kill()
        return self.exit_status()

    def kill(self) -> bool:
        self._wire.close()
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return True
        return await_killed(self._process) is not None


def _command(launch: WorkerLaunch, descriptor: int) -> list[str]:
    worker = [launch.program.python, "-m", launch.program.module]
    ends = ["--fd", str(descriptor), "--parent", str(os.getpid())]
    return with_environment(launch.environment(), [*worker, *ends])
