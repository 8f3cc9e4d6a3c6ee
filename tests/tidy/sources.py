"""The files of the project, each read, and parsed if a check needs it, once for all checks."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[2]
PACKAGE = sorted((ROOT / "hybridbench").rglob("*.py"))
SOURCES = PACKAGE + sorted((ROOT / "benchmarks").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A module's text, its syntax tree, and the nodes of the tree."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        # A tree is no garbage; collections while its nodes are made take twice the parser's time.
        gc.disable()
        try:
            return ast.parse(self.text)
        finally:
            gc.enable()

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    def functions(self) -> Iterator[Function]:
        return (node for node in self.nodes if isinstance(node, Function))

    def calls(self) -> Iterator[tuple[int, str, ast.Call]]:
        """Yield line, called name and call; the name of ``torch.cat(...)`` is ``cat``."""
        for node in self.nodes:
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Name):
                    yield node.lineno, node.func.id, node
                elif isinstance(node.func, ast.Attribute):
                    yield node.lineno, node.func.attr, node


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def source(path: Path) -> Source:
    return Source(relative(path), path.read_text(encoding="utf-8"))
