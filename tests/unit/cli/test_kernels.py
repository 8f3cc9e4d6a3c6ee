"""``hybridbench list kernels``."""

from __future__ import annotations

from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.engine.kernels.dispatch import HOST_OPERATIONS, REFERENCE


def test_each_operation_is_listed_with_what_a_device_runs() -> None:
    result = CliRunner().invoke(app, ["list", "kernels"])

    assert result.exit_code == 0, result.output
    rows = {
        name: implementations
        for name, *implementations in map(str.split, filter(None, result.output.splitlines()))
    }
    assert rows["store_kv"] == ["reference", "triton"]
    assert rows["alloc_decode"] == ["reference", "reference"]
    assert rows.keys() >= {*REFERENCE.implementations(), *HOST_OPERATIONS}
