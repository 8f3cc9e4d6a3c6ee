"""``soak --listen PORT``: the live report of the run, served by a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from hybridbench.errors import UsageError
from hybridbench.safe_output import echo

_HOST = "127.0.0.1"
_BACKLOG = 16


class Listener:
    """A port that is taken before the run starts, and the server on it while the run goes on.

    Args:
        port: on the loopback interface; 0 for any that is free.

    Raises:
        UsageError: the port cannot be had.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((_HOST, port))
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._socket.close()
            raise UsageError(
                f"--listen {port}: {_HOST} refuses it ({error.strerror}); choose another port, or "
                "0 for any that is free."
            ) from error
        except OverflowError as error:
            self._socket.close()
            raise UsageError(f"--listen {port}: ports end at 65535.") from error

    @property
    def address(self) -> str:
        return f"http://{_HOST}:{self._socket.getsockname()[1]}/"

    def start(self, run_dir: Path) -> None:
        """Serve the run in ``run_dir``, and tell the address on standard error."""
        from hybridbench.targets.own_process import own_command

        number = self._socket.fileno()
        serve = [sys.executable, "-m", "hybridbench.report.serve", str(run_dir.resolve())]
        settings = {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        try:
            # A session of its own: a Ctrl-C is for the soak.
            self._process = subprocess.Popen(
                own_command([*serve, str(number)], settings),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(number,),
                start_new_session=True,
            )
        except OSError as error:
            echo(f"hybridbench: no live report: {error.strerror}", err=True)
            return
        echo(f"live report: {self.address} (and {self.address}metrics)", err=True)

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
