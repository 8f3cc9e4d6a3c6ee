"""Select the defects of another engine's release: ``--defect defects-as-of:sglang-0.5.10``.

The bundled engine then runs with the catalog's defects of that release; it is not that release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from packaging.version import InvalidVersion, Version

from hybridbench.defects.catalog import DEFECTS, find_defect
from hybridbench.defects.defect import Defect
from hybridbench.foundation.errors import UsageError

PREFIX: Final = "defects-as-of:"


def expand(names: Sequence[str]) -> tuple[Defect, ...]:
    """Return the defects of ``names`` (slugs, files, ``defects-as-of:PROJECT-VERSION``), each once.

    Raises:
        UsageError: no such defect or release, or two defects replace the same method.
        ConfigError: a file defines no defect.
    """
    found: dict[str, Defect] = {}
    for name in names:
        release = name.removeprefix(PREFIX)
        for defect in defects_of(release) if release != name else (find_defect(name),):
            found.setdefault(defect.slug, defect)
    _refuse_overlaps(tuple(found.values()))
    return tuple(found.values())


def defects_of(release: str) -> tuple[Defect, ...]:
    """The catalog's defects that ``release`` ("sglang-0.5.10") had.

    Raises:
        UsageError: not a release, or one that had none of the catalog's defects.
    """
    project, _, number = release.rpartition("-")
    try:
        version = Version(number)
    except InvalidVersion as error:
        raise UsageError(
            f"{PREFIX}{release}: write PROJECT-VERSION, for example sglang-0.5.10.",
            option="--defect",
        ) from error
    had = tuple(d for d in DEFECTS if d.source.startswith(f"{project}#") and _had(d, version))
    if not had:
        raise UsageError(
            f"{PREFIX}{release}: no defect of the catalog is known to have been in it; {_known()}",
            option="--defect",
        )
    return had


def _had(defect: Defect, version: Version) -> bool:
    return any(Version(first) <= version <= Version(last) for first, last in defect.versions)


def _known() -> str:
    parts = []
    for project in sorted({d.source.partition("#")[0] for d in DEFECTS if d.versions}):
        spans = [span for d in DEFECTS if d.source.startswith(f"{project}#") for span in d.versions]
        first, last = min(Version(a) for a, _ in spans), max(Version(b) for _, b in spans)
        parts.append(f"{project}-{first} to {project}-{last}")
    return f"choose one of {', '.join(parts)}."


def _refuse_overlaps(defects: Sequence[Defect]) -> None:
    taken: dict[tuple[type, str], str] = {}
    for defect in defects:
        for patch in defect.patches:
            target = (patch.holder, patch.method)
            other = taken.setdefault(target, defect.slug)
            if other != defect.slug:
                raise UsageError(
                    f"{defect.slug}: it replaces {patch.holder.__name__}.{patch.method}, "
                    f"and so does {other}; choose one of the two.",
                    option="--defect",
                )
