"""Mutants of the engine: each removes one statement of one method, and is injected like a defect.

A statement is a candidate if it frees, clears, copies, relinks or counts.  Its slug is derived
from the file, the method and the statement's own text, so that changes elsewhere do not affect it.
"""

from __future__ import annotations
import __future__

import ast
import functools
import hashlib
import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import hybridbench
from hybridbench.defects.defect import Defect, Patch, Signature, fingerprint_of
from hybridbench.defects.truth import Truth
from hybridbench.foundation.errors import UsageError

PREFIX: Final = "mutant-"
REACHED: Final = "mutant-reached"
"""Not a mutant: its truth counts how often each candidate is executed."""
COUNTER: Final = "count_execution_of_mutant"
"""The function that a counted method calls; no name in the engine may shadow it."""

# A path, so that listing mutants does not import the modules that they change.
_ENGINE: Final = Path(hybridbench.__file__).parent / "engine"
# The first word of a call's name shows its purpose.
_VERBS: Final = {
    "frees": (
        "close dec discard dismantle drain drop end evict forget free give leave let release "
        "pop remove return settle transfer unlock"
    ),
    "clears": "clear reset",
    "copies": "backup copy load move restore save store write",
    "relinks": "add append attach extend extendleft insert map put redistribute split",
    "counts": "book count",
}
_KIND_OF: Final = {verb: kind for kind, verbs in _VERBS.items() for verb in verbs.split()}
KINDS: Final = tuple(_VERBS)
# Under other decorators `vars` holds no function that could be replaced.
_DECORATORS: Final = {"property", "contextmanager", "override"}


@dataclass(frozen=True)
class Candidate:
    """A statement that can be removed.

    Args:
        file: relative to ``engine/``.
        holder: qualified name of the class.
        text: the statement, as written by ``ast.unparse``.
        occurrence: its number among identical statements of the method, from 1.
        kind: one of ``KINDS``.
        place: the index of its node in ``ast.walk`` of the method.
    """

    file: str
    holder: str
    method: str
    text: str
    occurrence: int
    kind: str
    place: int

    @property
    def name(self) -> str:
        """The readable name, from which the slug is computed."""
        said = f"{self.file}:{self.holder}.{self.method}: {self.text}"
        return said if self.occurrence == 1 else f"{said} (no. {self.occurrence})"

    @property
    def slug(self) -> str:
        return PREFIX + hashlib.sha256(self.name.encode()).hexdigest()[:8]

    @property
    def half(self) -> str:
        """Half A or B of the mutants, determined by the slug."""
        return "AB"[int(self.slug[-1], 16) % 2]


@functools.cache
def candidates() -> tuple[Candidate, ...]:
    """Every candidate of the engine's class methods, outside models and constructors."""
    return tuple(
        candidate
        for path in sorted(_ENGINE.rglob("*.py"))
        if "models" not in path.relative_to(_ENGINE).parts
        for candidate in candidates_in(
            path.relative_to(_ENGINE).as_posix(), path.read_text(encoding="utf-8")
        )
    )


def candidates_in(file: str, source: str) -> Iterator[Candidate]:
    """The candidates in one file, in the order of its methods."""
    for holder, method in _methods(ast.parse(source)):
        seen: Counter[str] = Counter()
        for place, statement in enumerate(ast.walk(method)):
            kind = _kind(statement)
            if kind:
                # Which quotes `ast.unparse` writes depends on the Python version.
                text = ast.unparse(statement).replace('"', "'")
                seen[text] += 1
                yield Candidate(file, holder, method.name, text, seen[text], kind, place)


def changed_module(source: str, chosen: Iterable[Candidate], *, counted: bool) -> str:
    """Return ``source`` without the statements ``chosen``, or with a ``COUNTER`` call for each."""
    tree = ast.parse(source)
    by_method: dict[tuple[str, str], dict[int, str]] = {}
    for one in chosen:
        by_method.setdefault((one.holder, one.method), {})[one.place] = one.slug
    for holder, method in _methods(tree):
        slugs = by_method.get((holder, method.name))
        if slugs is not None:
            _Change(method, slugs, counted).visit(method)
    return ast.unparse(ast.fix_missing_locations(tree))


def find_mutant(slug: str) -> Defect:
    """The mutant with this slug, or for ``REACHED`` the counter of executions.

    Raises:
        UsageError: there is no such mutant.
    """
    chosen = [c for c in candidates() if slug in {c.slug, REACHED}]
    if not chosen:
        raise UsageError(
            f"{slug}: no such mutant of this engine; `hybridbench selftest --mutants --dry-run` "
            "lists them.",
            option="--defect",
        )
    truth = Truth()
    return Defect(
        slug=slug,
        source="mutation",
        symptom=chosen[0].name if slug != REACHED else "none: executions are counted",
        profile="chat-churn",
        signature=Signature((), (), "", "", ""),
        patches=tuple(_patches(chosen, None if slug != REACHED else truth)),
        truth=truth,
    )


def _methods(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for holder in tree.body:
        if isinstance(holder, ast.ClassDef):
            for method in holder.body:
                if isinstance(method, ast.FunctionDef) and _can_be_replaced(method):
                    yield holder.name, method


def _can_be_replaced(method: ast.FunctionDef) -> bool:
    names = {d.id if isinstance(d, ast.Name) else "" for d in method.decorator_list}
    return method.name != "__init__" and names <= _DECORATORS


def _kind(node: ast.AST) -> str:
    """The purpose of a statement; empty if it is not a candidate."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name))):
            return _KIND_OF.get(name.lstrip("_").partition("_")[0], "")
        case ast.Delete(targets=targets):
            # `del name` only marks a parameter as unused.
            return "" if all(isinstance(t, ast.Name) for t in targets) else "clears"
        case ast.AugAssign(op=ast.Sub()):
            return "counts"
        case ast.Assign(targets=targets, value=value):
            # Without a plain assignment, the next read of its name would fail at once.
            if all(isinstance(t, ast.Subscript) for t in targets):
                return "relinks"
            is_none = isinstance(value, ast.Constant) and value.value is None
            return "clears" if is_none and isinstance(targets[0], ast.Attribute) else ""
    return ""


def _patches(chosen: Sequence[Candidate], counted: Truth | None) -> Iterator[Patch]:
    """A patch for each method of ``chosen``, with the statements removed or counted."""
    by_method: dict[tuple[str, str, str], list[Candidate]] = {}
    for candidate in chosen:
        key = (candidate.file, candidate.holder, candidate.method)
        by_method.setdefault(key, []).append(candidate)
    trees: dict[str, ast.Module] = {}
    for (file, holder_name, method), those in by_method.items():
        if file not in trees:
            trees[file] = ast.parse((_ENGINE / file).read_text(encoding="utf-8"))
        name = ".".join(["hybridbench.engine", *Path(file).with_suffix("").parts])
        module = importlib.import_module(name)
        holder: type = vars(module)[holder_name]
        healthy = vars(holder)[method]
        node = next(m for h, m in _methods(trees[file]) if (h, m.name) == (holder_name, method))
        changed = _compiled(file, node, those, counted is not None)
        names: dict[str, object] = {}
        exec(changed, vars(module), names)  # noqa: S102 - the engine's own source
        make = names["make"]
        assert isinstance(make, FunctionType)
        replacement = make(holder, None if counted is None else counted.add)
        yield Patch(holder, method, replacement, fingerprint_of(healthy))


def _compiled(
    file: str, method: ast.FunctionDef, chosen: Iterable[Candidate], is_counted: bool
) -> CodeType:
    """Compile ``make(__class__, count)``, which returns the changed method with its decorators.

    ``method`` itself is changed.
    """
    _Change(method, {c.place: c.slug for c in chosen}, is_counted).visit(method)
    make = ast.parse(f"def make(__class__, {COUNTER}):\n    return {method.name}").body[0]
    assert isinstance(make, ast.FunctionDef)
    make.body.insert(0, method)
    module = ast.fix_missing_locations(ast.Module([make], []))
    flags = __future__.annotations.compiler_flag
    code: CodeType = compile(module, str(_ENGINE / file), "exec", flags, dont_inherit=True)
    return code


class _Change(ast.NodeTransformer):
    """Removes statements, or inserts a count of their executions before them."""

    def __init__(self, method: ast.FunctionDef, slugs: dict[int, str], is_counted: bool) -> None:
        self._slugs = {id(node): slugs.get(place) for place, node in enumerate(ast.walk(method))}
        self._is_counted = is_counted

    def generic_visit(self, node: ast.AST) -> Any:
        super().generic_visit(node)
        slug = self._slugs.get(id(node))
        if slug is None:
            return node
        if not self._is_counted:
            return ast.Pass()
        return [ast.parse(f"{COUNTER}({slug!r})").body[0], node]
