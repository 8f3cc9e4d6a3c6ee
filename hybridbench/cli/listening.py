"""``soak --listen PORT``: serve the live report of a run from a separate process."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hybridbench.foundation.errors import UsageError
from hybridbench.foundation.safe_output import echo

if TYPE_CHECKING:
    from hybridbench.targets.background_process import BackgroundProcess

_HOST = "127.0.0.1"
_BACKLOG = 16


class Listener:
    """A port bound before the run starts, and the server on it during the run.

    Args:
        port: on the loopback interface; 0 for any free port.

    Raises:
        UsageError: the port cannot be bound.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._process: BackgroundProcess | None = None
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((_HOST, port))
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._socket.close()
            raise UsageError(
                f"{port}: {_HOST} refuses it ({error.strerror}); choose another port, or "
                "0 for any that is free.",
                option="--listen",
            ) from error
        except OverflowError as error:
            self._socket.close()
            raise UsageError(f"{port}: the port must be 0 to 65535.", option="--listen") from error

    @property
    def address(self) -> str:
        return f"http://{_HOST}:{self._socket.getsockname()[1]}/"

    def start(self, run_dir: Path) -> None:
        """Serve the run in ``run_dir``, and print the address to standard error."""
        from hybridbench.targets.background_process import ONE_THREAD, BackgroundProcess

        number = self._socket.fileno()
        serve = [sys.executable, "-m", "hybridbench.report.live_server", str(run_dir.resolve())]
        try:
            self._process = BackgroundProcess(
                [*serve, str(number)], settings=ONE_THREAD, pass_fds=(number,)
            )
        except OSError as error:
            echo(f"hybridbench: no live report: {error.strerror}", err=True)
            return
        echo(f"live report: {self.address} (and {self.address}metrics)", err=True)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        if self._process is not None:
            self._process.close()
