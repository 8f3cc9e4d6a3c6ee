"""Defects in the user's own files, whose code runs only if the command line names them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from hybridbench.foundation.errors import ConfigError, UsageError


def is_file(defect: str) -> bool:
    """Whether ``defect`` is a file path rather than a slug."""
    return defect.endswith(".py")


def hashes_of(defects: Sequence[str]) -> dict[str, str]:
    """Return a content hash of each file among ``defects``, for the manifest."""
    files = [Path(defect) for defect in defects if is_file(defect)]
    return {str(path): _hash(path) for path in files if path.is_file()}


def defects_to_resume(
    hashes: Mapping[str, str], recorded: Sequence[str], given: Sequence[str]
) -> tuple[str, ...]:
    """Return the defects to resume a run with: its slugs, and the files that ``given`` names again.

    A manifest is data and may come from anywhere, so no file is executed merely because a manifest
    names it.  A moved file is accepted if its content matches ``hashes``, keyed by path.

    Raises:
        UsageError: a file is not named again, or its content differs.
        ConfigError: a named file does not exist.
    """
    files = [Path(name) for name in given if is_file(name)]
    absent = next((path for path in files if not path.is_file()), None)
    if absent is not None:
        raise ConfigError(f"--defect {absent}: no such file.")
    taken = []
    for name in (name for name in recorded if is_file(name)):
        same = [path for path in files if _is_same(path, name, hashes.get(str(Path(name))))]
        if not same:
            if files:
                raise UsageError(
                    f"{files[0]}: this run was made with another file, {name}, and "
                    "--resume changes nothing; give that one, or start a new run.",
                    option="--defect",
                    also=("--resume",),
                )
            raise UsageError(
                f": this run was made with the Python file {name} as a defect, and no code "
                f"is run because a manifest names it; add --defect {name} to run it again.",
                option="--resume",
            )
        taken.append(str(same[0]))
    extra = [str(path) for path in files if str(path) not in taken]
    if extra:
        raise UsageError(
            f"{extra[0]}: this run was made without it, and --resume changes nothing; "
            "leave the option out, or start a new run.",
            option="--defect",
            also=("--resume",),
        )
    return (*(name for name in recorded if not is_file(name)), *taken)


def _is_same(path: Path, recorded: str, digest: str | None) -> bool:
    """Compare by content if the manifest has a hash, by path for older manifests."""
    if digest is not None:
        return _hash(path) == digest
    return path.resolve() == Path(recorded).resolve()


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
