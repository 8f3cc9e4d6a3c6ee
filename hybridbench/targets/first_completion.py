"""A server of others, started once to see whether it answers a completion, and ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hybridbench.errors import ErrorCode, WorkerFailedError
from hybridbench.targets.own_process import await_end
from hybridbench.targets.readiness import NotReadyError, OtherServerError, completion

_ASK_EVERY_S: Final = 0.5
_END_WITHIN_S: Final = 30.0
_KILL_WITHIN_S: Final = 10.0
_POLL_S: Final = 0.02
_SHOWN_LINES: Final = 5


def try_server(
    command: Sequence[str], environment: Mapping[str, str], log: Path, patience_s: float
) -> float:
    """Start ``command`` with ``--port`` of a free port, have one completion, and end it.

    Returns:
        Seconds from its start to the answer.

    Raises:
        WorkerFailedError: it ended, or gave no answer within ``patience_s``; with its last lines.
    """
    port, begun_s = _free_port(), time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            env=dict(environment),
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while not _completes(f"http://127.0.0.1:{port}"):
                took_s = time.monotonic() - begun_s
                if process.poll() is not None:
                    raise _failure(command, f"ended with exit code {process.returncode}", log)
                if took_s > patience_s:
                    raise _failure(command, f"answered nothing in {took_s:.0f}s", log)
                time.sleep(_ASK_EVERY_S)
            return time.monotonic() - begun_s
        finally:
            _end(process)


def _completes(url: str) -> bool:
    try:
        completion(url)
    except (NotReadyError, OtherServerError):
        return False
    return True


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM first; then whatever is left of its group is killed, also after an orderly end."""
    if process.poll() is None:
        process.terminate()
        await_end(process, _END_WITHIN_S, 2 * _END_WITHIN_S)
    until_s = time.monotonic() + _KILL_WITHIN_S
    while time.monotonic() < until_s:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.poll()
        time.sleep(_POLL_S)


def _failure(command: Sequence[str], what: str, log: Path) -> WorkerFailedError:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = " | ".join(line.strip() for line in lines[-_SHOWN_LINES:] if line.strip())
    return WorkerFailedError(
        f"{command[0]} {what} and served no completion; its last lines, of {log}: {last}",
        code=ErrorCode.WORKER_NOT_STARTED,
    )
