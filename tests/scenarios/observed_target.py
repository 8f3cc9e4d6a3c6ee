"""A target with the port *observe* alone: a program of two processes, one of which leaks.

It is what a foreign server looks like from outside: nobody told it of this bench.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from hybridbench.records.processes import ProcessSample
from hybridbench.sampling.process_tree import ProcessTree
from hybridbench.sampling.runnable_time import RunnableTime
from hybridbench.targets.own_process import await_end, await_killed
from hybridbench.targets.stderr_file import StderrFile
from hybridbench.targets.target import ExitStatus

# The front end answers; its core fills a cache and then keeps some bytes of each request.
PROGRAM = textwrap.dedent(
    """
    import os, subprocess, sys, time
    role, counter, per_request = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if role == "front_end":
        core = subprocess.Popen([sys.executable, sys.argv[0], "engine_core", *sys.argv[2:]])
    kept, cache, requests = [], [], 0
    begun = time.monotonic()
    while time.monotonic() - begun < float(sys.argv[4]):
        time.sleep(0.02)
        requests += 1
        if role == "engine_core":
            if requests <= 600:
                cache.append(bytearray(os.urandom(1 << 17)))
            kept.append(bytearray(b"x" * per_request))
            with open(counter + ".new", "w") as file:
                file.write(str(requests))
            os.replace(counter + ".new", counter)
    if role == "front_end":
        core.wait()
    sys.exit(int(sys.argv[5]))
    """
)


class ObservedProgram:
    """Owns the program from its start to its end; knows of it what the kernel shows."""

    def __init__(
        self,
        stderr_path: Path,
        *,
        per_request: int = 50_000,
        seconds: float = 600.0,
        exit_code: int = 0,
    ) -> None:
        folder = stderr_path.parent
        script = folder.with_name(f"{folder.name}-server.py")
        script.write_text(PROGRAM)
        self._counter = folder.with_name(f"{folder.name}-requests")
        self._stderr = StderrFile(stderr_path)
        arguments = ["front_end", str(self._counter), str(per_request), str(seconds)]
        with self._stderr.open_for_worker() as stderr:
            self._process = subprocess.Popen(
                [sys.executable, str(script), *arguments, str(exit_code)],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
            )
        self._tree = ProcessTree(self.pid, lambda process: process.command[2])
        self._could_run = RunnableTime(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def processes(self) -> Sequence[ProcessSample]:
        return self._tree.read()

    def counters(self) -> Mapping[str, float]:
        try:
            return {"scraped.requests_total": float(self._counter.read_text())}
        except FileNotFoundError:
            return {}

    def exit_of(self, pid: int) -> ExitStatus | None:
        return self.exit_status() if pid == self.pid else None

    def exit_status(self) -> ExitStatus | None:
        returncode = self._process.poll()
        return None if returncode is None else ExitStatus.from_returncode(returncode)

    def could_run_s(self) -> float:
        return self._could_run.elapsed_s()

    def stderr_tail(self) -> list[str]:
        return self._stderr.tail()

    def limit_stderr(self) -> None:
        self._stderr.trim()

    def stop(self, patience_s: float) -> ExitStatus | None:
        if self.exit_status() is None:
            os.killpg(self.pid, signal.SIGTERM)
        if await_end(self._process, patience_s) is None:
            self.kill()
        return self.exit_status()

    def kill(self) -> bool:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return True
        return await_killed(self._process) is not None
