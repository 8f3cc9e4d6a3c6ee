"""Start a third-party server once to check that it answers a completion, then end it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hybridbench.foundation.errors import WorkerFailedError
from hybridbench.targets.command import LaunchedCommand
from hybridbench.targets.prepared_server import free_port
from hybridbench.targets.readiness import NotReadyError, OtherServerError, completion
from hybridbench.targets.stderr_file import FILE_BYTES_MAX, StderrFile

_ASK_EVERY_S: Final = 0.5
_END_WITHIN_S: Final = 30.0
_SHOWN_LINES: Final = 5
# The last line of a traceback, also with a logger's prefix that ends in a bracket.
_EXCEPTION: Final = re.compile(r"(?:^|[\])] )((?:\w+\.)*[A-Z]\w*(?:Error|Exception): .+)$")


def try_server(
    command: Sequence[str], environment: Mapping[str, str], log: Path, patience_s: float
) -> float:
    """Start ``command`` with a free port as ``--port``, request one completion, and end it.

    Returns:
        Seconds from its start to the answer.

    Raises:
        ConfigError: it cannot be started.
        WorkerFailedError: it ended, or gave no answer within ``patience_s``; shows its errors, or
            its last lines.
    """
    port, begun_s = free_port(), time.monotonic()
    log.unlink(missing_ok=True)
    server = LaunchedCommand([*command, "--port", str(port)], environment, log, folder=log.parent)
    try:
        while not _completes(f"http://127.0.0.1:{port}"):
            took_s = time.monotonic() - begun_s
            ended = server.exit_status()
            if ended is not None:
                raise _failure(command, f"ended with {ended.text}", log)
            if took_s > patience_s:
                raise _failure(command, f"did not become ready within {took_s:.0f}s", log)
            time.sleep(_ASK_EVERY_S)
        return time.monotonic() - begun_s
    finally:
        server.stop(_END_WITHIN_S)


def _completes(url: str) -> bool:
    try:
        completion(url)
    except (NotReadyError, OtherServerError):
        return False
    return True


def _failure(command: Sequence[str], what: str, log: Path) -> WorkerFailedError:
    return WorkerFailedError(
        f"{command[0]} {what} and served no completion; {_reason(log)}",
    )


def _reason(log: Path) -> str:
    """Return the first and the last exception in ``log``, or its last lines if it has none.

    The last exception alone is not enough: it is often about the shutdown itself.
    """
    lines = [line.strip() for line in StderrFile(log).tail(FILE_BYTES_MAX, FILE_BYTES_MAX)]
    raised = [found[1] for found in map(_EXCEPTION.search, lines) if found]
    if raised:
        return f"errors in {log}: {' | '.join(dict.fromkeys((raised[0], raised[-1])))}"
    last = [line for line in lines[-_SHOWN_LINES:] if line]
    return f"last lines of {log}: {' | '.join(last)}"
