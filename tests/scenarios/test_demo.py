"""`hybridbench demo` on an 80 by 24 terminal, run to its end and interrupted."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PATIENCE_S = 120.0


class OnTerminal:
    """A process on its own terminal; ``text`` is its output so far."""

    def __init__(self, cwd: Path) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hybridbench", "demo"],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._ours = ours
        self._read: list[bytes] = []
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        return b"".join(self._read).decode("utf-8", "replace")

    def end(self) -> int:
        try:
            code = self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
        self._reader.join(PATIENCE_S)
        os.close(self._ours)
        return code

    def _follow(self) -> None:
        # Reading from a terminal whose other side is closed raises an error.
        try:
            while data := os.read(self._ours, 1 << 16):
                self._read.append(data)
        except OSError:
            return


def test_a_demo_takes_a_quarter_of_a_minute_on_a_small_terminal(tmp_path: Path) -> None:
    began_s = time.monotonic()

    terminal = OnTerminal(tmp_path)
    code = terminal.end()

    plain = ESCAPE.sub("", terminal.text)
    assert code == 0, plain[-2000:]
    assert time.monotonic() - began_s > 15.0
    for shown in ("pool mamba", "possible leak", "growth"):
        assert shown in plain
    assert all(len(line) <= 80 for line in re.split(r"[\r\n]+", plain))
    # The live table is redrawn in place, so it never fills the screen.
    assert max(map(int, re.findall(r"\x1b\[(\d+)A", terminal.text)), default=1) < 24
    assert (tmp_path / "results" / "demo" / "report.html").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    terminal = OnTerminal(tmp_path)
    limit_s = time.monotonic() + PATIENCE_S
    while "memory" not in terminal.text:
        assert time.monotonic() < limit_s
        time.sleep(0.05)

    terminal.process.send_signal(number)
    code = terminal.end()

    assert code == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert "Traceback" not in terminal.text
    # The cursor that the live view hides is shown again.
    assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("\x1b[?25l")
    assert list(tmp_path.iterdir()) == []
