"""Finding codes: the enumeration has all that the analysis yields, and no kind is spelt as text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridbench
from hybridbench.analysis.findings.kinds import finding_kinds
from hybridbench.engine.scheduler.audit import ViolationKind
from hybridbench.foundation.errors import ErrorCode, HybridbenchError, RunDirectoryError, UsageError

ANALYSIS = Path(hybridbench.__file__).parent / "analysis"


def literal_kinds(path: Path) -> Iterator[str]:
    """Yield the finding kinds that are spelt as string literals."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id != "Finding":
            continue
        kinds = [word.value for word in node.keywords if word.arg == "kind"] or node.args[:1]
        for kind in kinds:
            if isinstance(kind, ast.Constant):
                yield f"{path.name}: {kind.value!r}"


def test_the_analysis_names_findings_by_their_codes() -> None:
    assert [kind for path in ANALYSIS.rglob("*.py") for kind in literal_kinds(path)] == []


def test_every_law_of_the_engine_is_a_kind_of_its_own() -> None:
    for law in ViolationKind:
        assert f"engine-{law.value.replace('_', '-')}" in finding_kinds()


@pytest.mark.parametrize("code", [*finding_kinds(), *ErrorCode])
def test_a_code_is_plain_words_with_hyphens(code: str) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", code)


def test_an_error_has_the_code_of_its_class_unless_it_is_given_one() -> None:
    assert UsageError("no").code is ErrorCode.USAGE
    assert RunDirectoryError("torn", code=ErrorCode.DAMAGED).code is ErrorCode.DAMAGED
    assert all(isinstance(one.default_code, ErrorCode) for one in HybridbenchError.__subclasses__())
