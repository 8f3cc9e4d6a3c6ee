"""Reuse packages of another prepared target: hard links instead of a second copy of torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from hybridbench.records.prepared import Package


def site_packages(environment: Path) -> Path:
    """Return a virtual environment's folder of installed packages."""
    (site,) = (environment / "lib").glob("python*/site-packages")
    return site


def link_packages(packages: Sequence[Package], giver: Path, taker: Path) -> list[Package]:
    """Link those of ``packages`` that are complete in the environment ``giver`` into ``taker``.

    Programs that replace a file write a new one (pip and Python do), so neither environment changes
    the other.  Both must have the same Python version.

    Returns:
        The packages now installed in ``taker``; none if the file system does not support links.
    """
    wanted = {canonicalize_name(one.name): one for one in packages}
    linked = []
    for found in distributions(path=[str(site_packages(giver))]):
        one = wanted.get(canonicalize_name(found.name))
        if one is not None and found.version == one.version:
            try:
                _link(found, giver, taker)
            except OSError:
                # Another file system, or a missing file: pip will install the package.
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
    """Copy a script and change the interpreter path in it; copy a binary program as it is."""
    content = source.read_bytes()
    if content.startswith(b"#!"):
        for one in (giver, giver.resolve()):
            content = content.replace(os.fsencode(one) + b"/", os.fsencode(taker) + b"/")
    target.write_bytes(content)
    shutil.copymode(source, target)
