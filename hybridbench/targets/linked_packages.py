"""Packages that another prepared target has: hard links in place of a second copy of torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from hybridbench.records.prepared import Package


def site_packages(environment: Path) -> Path:
    """The folder of installed packages of a virtual environment."""
    (site,) = (environment / "lib").glob("python*/site-packages")
    return site


def link_packages(packages: Sequence[Package], giver: Path, taker: Path) -> list[Package]:
    """Link those of ``packages`` that are whole in the environment ``giver`` into ``taker``.

    Whoever replaces a file writes a new one (pip and Python do), so neither environment changes the
    other.  Both have the same version of Python.

    Returns:
        What is installed in ``taker`` now; where the file system takes no link, nothing.
    """
    wanted = {canonicalize_name(one.name): one for one in packages}
    linked = []
    for found in distributions(path=[str(site_packages(giver))]):
        one = wanted.get(canonicalize_name(found.name))
        if one is not None and found.version == one.version:
            try:
                _link(found, giver, taker)
            except OSError:
                # Another file system, or a file is gone: pip installs it.
                continue
            linked.append(one)
    return linked


def _link(found: Distribution, giver: Path, taker: Path) -> None:
    files = found.files
    if files is None:
        raise FileNotFoundError
    for file in files:
        source = Path(os.path.normpath(str(found.locate_file(file))))
        target = taker / source.relative_to(giver) if source.is_relative_to(giver) else None
        if target is None:
            raise FileNotFoundError
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        if source.parent == giver / "bin":
            _copy_script(source, target, giver, taker)
        else:
            os.link(source, target)


def _copy_script(source: Path, target: Path, giver: Path, taker: Path) -> None:
    """A script names the interpreter of its environment; a program among them is copied as is."""
    content = source.read_bytes()
    if content.startswith(b"#!"):
        for one in (giver, giver.resolve()):
            content = content.replace(os.fsencode(one) + b"/", os.fsencode(taker) + b"/")
    target.write_bytes(content)
    shutil.copymode(source, target)
