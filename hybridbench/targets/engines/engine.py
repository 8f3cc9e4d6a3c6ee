"""What is particular to one engine that others wrote: where it comes from, how it is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """The folder of one prepared release."""

    home: Path

    @property
    def environment(self) -> Path:
        return self.home / "env"

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def checkpoints(self) -> Path:
        return self.home / "checkpoints"

    @property
    def scripts(self) -> Path:
        """Copies of those in ``inside/``: the environment has no hybridbench."""
        return self.home / "scripts"

    @property
    def servers(self) -> Path:
        return self.home / "bin"


@dataclass(frozen=True)
class Engine:
    """One engine; the releases of it are installed by pip, by the name of ``package``.

    Attributes:
        name: as ``hybridbench target prepare`` takes it.
        package: name on the index.
        example: a release that is known to run on a CPU.
        note: for reports, about ``package``; "" where the project itself built it.
        servers: start script by name, ``serve`` first; each is a shell script whose fields
            ``{python}``, ``{commands}`` (the environment's ``bin``), ``{checkpoints}`` and
            ``{scripts}`` are filled in.
        models: start script by family of the checkpoint that it serves; the first is the default.
        context_len: tokens that one request may have, answer included, as its scripts set it.
        make_checkpoints: arguments of the interpreter that write tiny random checkpoints, with the
            same fields.
        scripts: files of ``inside/`` that these need.
        left_out: requirements that are never installed, by canonical name.
        instead: by canonical name, requirements in place of those of the METADATA.
        also: requirements that the METADATA lacks.
        requirements: these are installed and none of the METADATA's; None installs those.
        complete: what else its site-packages need, given that folder and the release.
        releases: those whose classes a worker can drive, in their order; empty for a server.
        settings: environment of such a worker.
        imports: modules that its interpreter must be able to import; for one without a server,
            whose classes are driven by a worker.
    """

    name: str
    package: str
    example: str
    note: str
    servers: Mapping[str, str]
    make_checkpoints: tuple[str, ...]
    scripts: tuple[str, ...]
    left_out: frozenset[str] = frozenset()
    instead: Mapping[str, str] | None = None
    also: tuple[str, ...] = ()
    requirements: tuple[str, ...] | None = None
    complete: Callable[[Path, str], None] | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    context_len: int = 0
    releases: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
