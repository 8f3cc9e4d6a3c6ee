"""Use a prepared release without its server: our worker drives its classes in its environment."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import hybridbench
from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.targets.bundled import WorkerProgram
from hybridbench.targets.engines.catalog import ENGINES, named_engine
from hybridbench.targets.engines.engine import Engine, Layout
from hybridbench.targets.prepared import ready_target

DRIVEN: Mapping[str, Engine] = {name: one for name, one in ENGINES.items() if one.releases}


def driven_release(text: str) -> tuple[Engine, str]:
    """Return the engine and release that ``text`` names, such as ``sglang-cache==0.5.23``.

    Raises:
        UsageError: the classes of that engine, or of that release, cannot be driven.
    """
    engine, release = named_engine(text, DRIVEN)
    if release not in engine.releases:
        raise UsageError(
            f"{engine.name} drives the classes of {', '.join(engine.releases)}; {release} is not "
            "among them.",
            code=ErrorCode.UNKNOWN_NAME,
        )
    return engine, release


def driven_program(text: str, root: Path) -> WorkerProgram:
    """Return how to start a worker of the release that ``text`` names, prepared under ``root``.

    Raises:
        UsageError: it cannot be driven, or is not prepared.
    """
    engine, release = driven_release(text)
    folder, ready = ready_target(engine.name, release, root)
    layout = Layout(folder)
    return WorkerProgram(
        python=str(layout.python),
        search_path=str(_path_to_this_package(layout.home)),
        released=engine.name,
        settings=tuple(sorted(engine.settings.items())),
        prepared=ready,
    )


def _path_to_this_package(home: Path) -> Path:
    """Create a folder with a link to this package alone.

    The site-packages that it is installed in may have other versions of the release's dependencies.
    Each installation has its own link, because workers of several may import from theirs at once.
    """
    package = Path(hybridbench.__file__).resolve().parent
    folder = home / "import" / hashlib.sha256(os.fsencode(package)).hexdigest()[:12]
    link = folder / package.name
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(package)
    return folder
