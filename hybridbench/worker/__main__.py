"""The engine's process: builds what the parent requests, then serves until it is shut down.

Started as ``python -m hybridbench.worker`` by ``targets/bundled.py``, never by hand.  Besides the
command line this is the only file that reads the environment, to record the allocator's settings.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

from hybridbench.foundation.errors import ConfigError, ExitCode, HybridbenchError, UsageError
from hybridbench.records.messages import Fatal, Scalar, Start
from hybridbench.targets.wire import WireClosedError, WorkerWire

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the parent named on the command line; return the exit code of the process."""
    started_s = time.monotonic()
    parser = argparse.ArgumentParser(prog="hybridbench.worker")
    parser.add_argument("--fd", type=int, required=True, help="the socket to the parent")
    parser.add_argument("--parent", type=int, required=True, help="process id of the parent")
    options = parser.parse_args(arguments)
    _die_with(options.parent)
    # The parent handles Ctrl-C, which may reach every process on the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    # The parent sends this when the loop hangs, to see the stacks.
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    # Python 3.12 warns about forks in threaded processes; the heap scan's child takes no locks.
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    try:
        return _serve(WorkerWire(socket.socket(fileno=options.fd)), started_s)
    except WireClosedError:
        return int(ExitCode.CRASHED)


def _serve(wire: WorkerWire, started_s: float) -> int:
    try:
        start = _start_message(wire)
        # Imported late, to refuse a parent of another version before loading torch.
        from hybridbench.worker.setup import build_loop, run_reference

        if start.is_reference:
            run_reference(start, wire)
            return 0
        loop = build_loop(start, wire, _allocator_settings(), started_s)
    except HybridbenchError as error:
        usage = isinstance(error, ConfigError | UsageError)
        wire.send(Fatal(message=str(error), trace="", usage=usage))
        return int(error.exit_code)
    except Exception as error:
        return _fatal(wire, f"the engine failed before any traffic: {_error_and_place(error)}")
    try:
        loop.run()
    except WireClosedError:
        raise
    except Exception as error:
        return _fatal(wire, f"the engine loop failed: {_error_and_place(error)}")
    return 0


def _start_message(wire: WorkerWire) -> Start:
    start, *rest = wire.receive()
    if not isinstance(start, Start) or rest:
        raise UsageError("the first message must be Start, alone")
    return start


def _error_and_place(error: Exception) -> str:
    """Return ``error`` and where it was raised; a failed assert often has no text of its own."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error!r} in {at.name} ({Path(at.filename).name}:{at.lineno})"


def _fatal(wire: WorkerWire, message: str) -> int:
    trace = traceback.format_exc()
    sys.stderr.write(trace)
    wire.send(Fatal(message=message, trace=trace))
    return int(ExitCode.INTERNAL)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` dies, for whatever reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died before prctl.
        sys.exit(int(ExitCode.CRASHED))


def _allocator_settings() -> dict[str, Scalar]:
    names = sorted(
        name for name in os.environ if name.startswith("MALLOC_") or name == "PYTHONMALLOC"
    )
    settings: dict[str, Scalar] = {name: os.environ[name] for name in names}
    settings["LD_PRELOAD"] = os.environ.get("LD_PRELOAD", "")
    settings["libc"] = os.confstr("CS_GNU_LIBC_VERSION")
    return settings


if __name__ == "__main__":
    sys.exit(main())
