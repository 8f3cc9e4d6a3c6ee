"""Every Triton kernel compiles for a GPU, on a machine that has none."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields

import pytest

from benchmarks.kernel_compilation import compilation_lines, compiled_kernel, life_size_calls
from hybridbench.engine.kernels.dispatch import Kernels
from hybridbench.foundation.errors import UsageError

PTXAS = """\
ptxas info    : Compiling entry function '_multiply' for 'sm_90a'
ptxas info    : Function properties for _multiply
    48 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 48 bytes cumulative stack size
"""
WITHOUT_SPILLS = {
    *("experts_sorted", "extend_attention", "decode_attention"),
    *("mamba2_chunk_scan", "chunk_gated_delta_rule"),
}


def test_each_operation_has_a_life_size_call() -> None:
    operations = {operation for operation, _, _ in life_size_calls()}

    assert operations == {field.name for field in fields(Kernels)}


def test_registers_and_spills_are_read_from_the_assembler() -> None:
    kernel = compiled_kernel("_multiply", 4, 0, PTXAS)

    assert (kernel.registers, kernel.spilled_bytes) == (168, 84)


def test_what_cannot_be_compiled_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--compile-for: 'sm_33' is neither sm_80 nor sm_90"):
        next(compilation_lines("sm_33"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UsageError, match="unset TRITON_INTERPRET"):
        next(compilation_lines("sm_90"))


def run_compiled(*arguments: str) -> str:
    """Run a module in a new process; kernels in this one are built for the interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu_that_is_not_there() -> None:
    run_compiled("tests.unit.engine.kernels.compile_for_a_gpu")


@pytest.mark.slow
def test_tiles_of_life_size_models_fit_into_registers() -> None:
    lines = run_compiled("benchmarks", "kernels", "--compile-for", "sm_90").splitlines()

    rows = [line.split() for line in lines[1:]]
    assert {row[0] for row in rows} >= WITHOUT_SPILLS
    assert [row for row in rows if row[0] in WITHOUT_SPILLS and row[-1] != "0"] == []
