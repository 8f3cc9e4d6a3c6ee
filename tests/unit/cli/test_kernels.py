"""``hybridbench list kernels`` and ``bench kernels``."""

from __future__ import annotations

from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.errors import ConfigError
from hybridbench.kernels.dispatch import HOST_OPERATIONS, REFERENCE


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


def test_each_operation_is_timed_beside_what_the_device_can_do() -> None:
    result = CliRunner().invoke(
        app, ["bench", "kernels", "--model", "qwen3-next-nano", "--rounds", "1"]
    )

    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("qwen3-next-nano, float32, one thread of ")
    assert lines[1].startswith("fastest copy ")
    phases = [line.split(" step of ")[0] for line in lines if " step of " in line]
    assert phases == ["prefill", "decode"]
    rows = {line.split()[0]: line.split() for line in lines if line}
    # Calls, microseconds, share of the step; bytes and FLOPs per second with theirs.
    assert sum(word.endswith("%") for word in rows["decode_attention"]) == 3
    assert rows["store_kv"][-2:] == ["-", "-"]
    assert rows["projections"][-4:-2] == ["-", "-"]
    assert rows.keys() >= {"everything", "all", "copy_states"}
    assert sum("calls into PyTorch" in line for line in lines) == len(phases)


def test_a_device_that_the_engine_does_not_support_is_refused_in_a_sentence() -> None:
    result = CliRunner().invoke(app, ["bench", "kernels", "--device", "mps"])

    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == "engine: device is 'mps'; write cpu or cuda."
