"""A prepared third-party server as a soak target: how to start it, and its context length."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hybridbench.foundation.errors import ErrorCode, UsageError, full_stop, nearest
from hybridbench.targets.engines.catalog import named_engine
from hybridbench.targets.engines.engine import Engine, Layout
from hybridbench.targets.prepared import ready_target

# Servers derive further ports from theirs (SGLang adds 10000), and the system lends those from
# 32768 on to outgoing connections.
_PORTS: Final = range(20_000, 32_768)


@dataclass(frozen=True)
class PreparedServer:
    """A server that ``target prepare`` has installed.

    Attributes:
        command: its start script, without a port.
        context_len: most tokens in one request, answer included.
    """

    command: tuple[str, ...]
    context_len: int


def prepared_server(text: str, model: str | None, root: Path) -> PreparedServer:
    """Return the server that ``text`` names, such as ``vllm==0.32.0``, with one checkpoint.

    Args:
        model: family of the checkpoint; None for the first.
        root: folder of the targets.

    Raises:
        UsageError: there is no such engine or checkpoint, or it is not prepared.
    """
    engine, release = named_engine(text)
    script = _script(engine, model)
    folder, ready = ready_target(engine.name, release, root)
    if script not in ready.servers:
        raise UsageError(
            f"{model}: {ready.name} served no completion with this checkpoint when it was "
            f"prepared; {folder / f'{script}.log'} says why.",
            code=ErrorCode.UNKNOWN_NAME,
            option="--model",
        )
    return PreparedServer((str(Layout(folder).servers / script),), engine.context_len)


def free_port() -> int:
    """Return a local port on which nothing listens now.

    Raises:
        OSError: none is free.
    """
    for port in (*random.SystemRandom().sample(_PORTS, 20), 0):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            chosen: int = listener.getsockname()[1]
            return chosen
    raise OSError("no local port is free")


def _script(engine: Engine, model: str | None) -> str:
    models: Sequence[str] = list(engine.models)
    if model is None:
        return engine.models[models[0]]
    if model not in engine.models:
        hint = nearest(model, models, f"there is {', '.join(models)}")
        raise UsageError(
            full_stop(f"{model}: {engine.name} has no such checkpoint; {hint}"),
            code=ErrorCode.UNKNOWN_NAME,
            option="--model",
        )
    return engine.models[model]
