"""A server is tested with one completion, and none of its processes remains."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hybridbench.foundation.errors import WorkerFailedError
from hybridbench.targets.first_completion import try_server
from tests.unit.targets.tiny_index import SERVER

# A child that ignores SIGTERM, as workers of servers may.
WITH_CHILD = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
signal.signal(signal.SIGTERM, signal.SIG_DFL)
open("child.pid", "w").write(str(child.pid))
sys.modules["tensors"] = sys
"""
# How vLLM ends: the cause, its consequence, and many lines about the exit of the process.
RAISED = """
print("WARNING errors like `OSError: [Errno 24] Too many open files` are possible")
print("(Worker pid=7) ERROR [executor.py:1018] RuntimeError: initial_state dtype mismatch")
print("(APIServer pid=5) ERROR [async_llm.py:724] vllm.v1.EngineDeadError: see above")
for number in range(20):
    print("nanobind: leaked 64 types!")
"""
SILENT = "import signal\nprint('loading weights', flush=True)\nsignal.pause()\n"


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_server_that_answers_is_ended_with_its_children(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(WITH_CHILD + SERVER)
    (tmp_path / "model").write_text("weights")
    command = [sys.executable, "server.py", "--model", "model"]

    took_s = try_server(command, os.environ, tmp_path / "log", patience_s=60.0)

    assert 0 < took_s < 60
    assert not is_alive(int((tmp_path / "child.pid").read_text()))


@pytest.mark.parametrize(
    ("code", "patience_s", "words"),
    [
        (
            "import sys; sys.exit('no such kernel')",
            60.0,
            r"ended with exit code 1 .*no such kernel",
        ),
        (
            RAISED,
            60.0,
            r"errors in .*log: RuntimeError: initial_state dtype mismatch \| "
            r"vllm\.v1\.EngineDeadError: see above$",
        ),
        (SILENT, 2.0, r"did not become ready within \d+s .*loading weights"),
    ],
)
def test_a_server_that_does_not_is_named_with_its_errors_or_its_last_lines(
    tmp_path: Path, code: str, patience_s: float, words: str
) -> None:
    command = [sys.executable, "-c", code]

    with pytest.raises(WorkerFailedError, match=words):
        try_server(command, os.environ, tmp_path / "log", patience_s)
