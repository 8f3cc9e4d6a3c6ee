"""A background process ends when its parent is killed, if it was started with that option."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.scenarios.test_soak_run import is_alive, wait_until

CHILD = """\
import os, pathlib, signal
pathlib.Path({path!r}).write_text(str(os.getpid()))
signal.pause()
"""
PARENT = """\
import signal, sys
from hybridbench.targets.background_process import BackgroundProcess
BackgroundProcess([sys.executable, "-c", {child!r}], ends_with_parent=True)
signal.pause()
"""


def test_one_that_ends_with_its_parent_is_no_orphan(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    child = CHILD.format(path=str(path))
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(child=child)])
    wait_until(lambda: path.exists() and path.read_text() != "")
    pid = int(path.read_text())
    assert is_alive(pid)

    parent.kill()
    parent.wait()

    wait_until(lambda: not is_alive(pid))
