"""Resolve versions named on the command line into engines that a worker can run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hybridbench.compare.interpreters import find_interpreter
from hybridbench.compare.worktree import Revision, find_revision, worktree
from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.records.comparison import ComparedVersion, Origin
from hybridbench.rundir.layout import MANIFEST
from hybridbench.runs.defect_catalog import AS_OF, described_defects
from hybridbench.targets.bundled import WorkerProgram
from hybridbench.targets.driven import DRIVEN, driven_program
from hybridbench.targets.engines.catalog import SERVERS, is_server_name

TREE: Final = "."
_GIT, _PYTHON, _DEFECT = "git:", "python:", "defect:"
_ALLOWED = (
    f"write . for the working tree, {_GIT}REF, {_PYTHON}PATH, {_DEFECT}SLUG, {_DEFECT}FILE.py, "
    f"{AS_OF}PROJECT-VERSION, {', '.join(f'{name}==RELEASE' for name in DRIVEN)}, a prepared "
    f"server ({', '.join(f'{name}==RELEASE' for name in SERVERS)}), or a run directory"
)


@dataclass(frozen=True)
class Side:
    """One version, ready to be started or, if it is a stored run, read.

    Args:
        name: as the user gave it.
        kind: "tree", "git", "python", "defect", "target", "server" or "run".
        defects: slugs and files of defects to inject.
        releases: releases of other engines that the defects were taken from.
        program: the engine to run, and its interpreter.
        origin: the engine's origin, recorded in the side's manifest.
        run_dir: a stored run.
    """

    name: str
    kind: str
    defects: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    program: WorkerProgram = field(default_factory=WorkerProgram)
    origin: Origin = field(default_factory=Origin)
    run_dir: Path | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether its engine may be of another release than this process."""
        return self.kind in {"git", "python"}

    def compared(self, run: str, engine_hash: str, lost: str | None = None) -> ComparedVersion:
        """Return the entry in comparison.json; ``run`` is the run directory relative to it."""
        return ComparedVersion(
            self.name, self.kind, run, engine_hash or None, lost, unknown=self.origin.stored()
        )


@contextmanager
def resolved_sides(names: Sequence[str], targets: Path = Path()) -> Iterator[tuple[Side, ...]]:
    """Resolve ``names`` to versions; worktrees made for them are removed after the block.

    ``targets`` is the folder of prepared targets.

    Raises:
        UsageError: a name is unknown; raised before anything is made.
        ConfigError: a defect's file defines no defect, or an interpreter cannot run an engine.
    """
    found = [_found(name, targets) for name in names]
    with ExitStack() as made:
        yield tuple(
            one if isinstance(one, Side) else _checked_out(name, one, made)
            for name, one in zip(names, found, strict=True)
        )


def is_stored(name: str) -> bool:
    """Whether ``name`` is a run directory; cheap, and does not check its contents."""
    return name != TREE and not _prefixed(name) and (Path(name) / MANIFEST).is_file()


def server_sides(names: Sequence[str]) -> tuple[Side, ...]:
    """Resolve ``names`` to prepared servers and stored runs.

    Raises:
        UsageError: a name is neither.
    """
    sides = []
    for name in names:
        if is_server_name(name):
            sides.append(Side(name, "server"))
        elif is_stored(name):
            sides.append(Side(name, "run", run_dir=Path(name)))
        else:
            server = next(filter(is_server_name, names))
            raise UsageError(
                f"{name}: {server} is a server, which is compared with other servers and with "
                "runs of them.",
                code=ErrorCode.MISMATCH,
            )
    return tuple(sides)


def defect_words(names: Sequence[str]) -> list[str]:
    """Return the defects among the versions ``names``, as values of ``--defect``."""
    return [
        name.removeprefix(_DEFECT)
        for name in names
        if name.startswith(_DEFECT) or name.startswith(AS_OF)
    ]


def _prefixed(name: str) -> bool:
    return name.startswith((_GIT, _PYTHON, _DEFECT, AS_OF))


def _found(name: str, targets: Path) -> Side | Revision:
    """Return the version ``name``, or a revision that still has to be checked out."""
    if name == TREE:
        return Side(name, "tree")
    if name.startswith(_GIT):
        return find_revision(name.removeprefix(_GIT))
    if name.startswith(_PYTHON):
        found = find_interpreter(name.removeprefix(_PYTHON))
        origin = Origin(interpreter=found.version, engine_from=found.engine_from)
        return Side(name, "python", program=found.program, origin=origin)
    if name.startswith((_DEFECT, AS_OF)):
        return _with_defects(name)
    if is_stored(name):
        return Side(name, "run", run_dir=Path(name))
    if name.partition("==")[0] in DRIVEN:
        return Side(name, "target", program=driven_program(name, targets))
    raise UsageError(f"{name}: {_what_it_is(name)}; {_ALLOWED}.", code=ErrorCode.UNKNOWN_NAME)


def _checked_out(name: str, revision: Revision, made: ExitStack) -> Side:
    tree = made.enter_context(worktree(revision))
    origin = Origin(commit=revision.commit, subject=revision.subject, tree=revision.tree)
    program = WorkerProgram(search_path=str(tree), module=revision.worker_module)
    return Side(name, "git", program=program, origin=origin)


def _what_it_is(name: str) -> str:
    if Path(name).is_dir():
        return f"a directory without {MANIFEST}, so not a run"
    if Path(name).exists():
        return "a file, not a version"
    return "no version of that name"


def _with_defects(name: str) -> Side:
    word = name.removeprefix(_DEFECT)
    defects = described_defects(word)
    if word.endswith(".py"):
        return Side(name, "defect", defects=(word,))
    slugs = tuple(defect.slug for defect in defects)
    releases = (word.removeprefix(AS_OF),) if word.startswith(AS_OF) else ()
    return Side(name, "defect", defects=slugs, releases=releases)
