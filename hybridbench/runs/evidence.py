"""The evidence so far, on demand: written by a process of its own, so that no sample comes late."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hybridbench.targets.own_process import own_command

_PATIENCE_S = 30.0


class EvidenceWriter:
    """Starts ``hybridbench report RUN --so-far``, one at a time; owns that process."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """Begin; False while the last one is at work, or when no process can be started."""
        if self._process is not None and self._process.poll() is None:
            return False
        try:
            # A session of its own: a Ctrl-C is for the soak.
            self._process = subprocess.Popen(
                _command(self._run_dir),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Wait for what is under way; nothing stays behind."""
        if self._process is None:
            return
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _command(run_dir: Path) -> list[str]:
    report = [sys.executable, "-m", "hybridbench", "report", str(run_dir.resolve()), "--so-far"]
    return own_command(["nice", *report])
