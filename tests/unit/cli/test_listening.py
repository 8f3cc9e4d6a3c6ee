"""``soak --listen``: the port is taken before the run begins, or the run does not begin."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hybridbench.cli.listening import Listener
from hybridbench.foundation.errors import ErrorCode, UsageError
from tests.unit.cli.conftest import CommandLine
from tests.unit.cli.test_cli import one_sentence


def test_a_port_in_use_is_one_sentence_and_no_run_is_made(
    hybridbench: CommandLine, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        result = hybridbench("soak", "--listen", port, "--store", str(tmp_path / "store"))

    assert "choose another port, or 0" in one_sentence(result)
    assert not (tmp_path / "store").exists()


def test_a_number_that_is_no_port_is_told() -> None:
    with pytest.raises(UsageError) as refused:
        Listener(70_000)

    assert refused.value.code is ErrorCode.BAD_VALUE


def test_port_zero_is_any_free_one_and_is_told() -> None:
    with Listener(0) as listener:
        port = int(listener.address.removeprefix("http://127.0.0.1:").rstrip("/"))

        assert port > 0
