"""Every Triton kernel compiles for a GPU, on a machine that has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    # Not in this process, whose kernels are for the interpreter.
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.engine.kernels.compile_for_a_gpu"],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
    )

    assert done.returncode == 0, done.stderr
