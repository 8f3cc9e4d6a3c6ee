"""The details of one third-party engine: where it comes from, how it is started."""

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
        """Copies of the scripts in ``inside/``: the environment lacks hybridbench."""
        return self.home / "scripts"

    @property
    def servers(self) -> Path:
        return self.home / "bin"


@dataclass(frozen=True)
class Engine:
    """One engine; pip installs its releases under the name ``package``.

    Attributes:
        name: as ``hybridbench target prepare`` takes it.
        package: name on the index.
        example: a release that is known to run on a CPU.
        note: for reports, about ``package``; "" if the project itself built it.
        servers: start script by name, ``serve`` first.  Each is a shell script with the fields
            ``{python}``, ``{commands}`` (the environment's ``bin``), ``{checkpoints}`` and
            ``{scripts}`` to fill in.
        models: start script by the model family of the checkpoint served; the first is the default.
        context_len: most tokens per request, answer included, as the scripts set it.
        make_checkpoints: interpreter arguments that write tiny random checkpoints, with the same
            fields.
        scripts: files in ``inside/`` that the servers and ``make_checkpoints`` need.
        left_out: requirements that are never installed, by canonical name.
        instead: replacements for requirements of the METADATA, by canonical name.
        also: requirements that the METADATA lacks.
        requirements: installed instead of the METADATA's; None installs the METADATA's.
        complete: called with site-packages and the release, to add what pip does not install.
        releases: those whose classes a worker can drive, in order; empty for a server.
        settings: environment of such a worker.
        imports: modules that its interpreter must be able to import; for an engine without a
            server, whose classes a worker drives.
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
