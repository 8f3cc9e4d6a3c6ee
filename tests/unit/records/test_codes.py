"""Codes of findings: all that the analysis can yield are in the enumeration, and named as codes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridbench
from hybridbench.engine.scheduler.audit import ViolationKind
from hybridbench.errors import ErrorCode, HybridbenchError, RunDirectoryError, UsageError
from hybridbench.records.codes import FindingCode, finding_code

ANALYSIS = Path(hybridbench.__file__).parent / "analysis"
# Codes of INVALID runs are the first of three in a tuple of reasons.
REASON = re.compile(
    r'(?:yield|append\(|_invalid\(\[)\s*\(?\s*\(?\s*"([a-z]+(?:-[a-z]+)+|gaps|coverage|swapping|starved)"'
)


def constants(tree: ast.Module) -> dict[str, str]:
    """Module constants that are texts, by name."""
    found: dict[str, str] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            found[target.id] = str(value.value)
    return found


def kinds_of(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    known = constants(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id != "Finding":
            continue
        given = [word.value for word in node.keywords if word.arg == "kind"] or node.args[:1]
        for kind in ast.walk(given[0]):
            if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
                yield kind.value
            elif isinstance(kind, ast.Name) and kind.id in known:
                yield known[kind.id]
            elif isinstance(kind, ast.Attribute) and kind.attr in FindingCode.__members__:
                yield FindingCode[kind.attr]
    yield from REASON.findall(text)


def test_every_kind_of_finding_that_the_analysis_names_is_a_code() -> None:
    named = {kind for path in ANALYSIS.rglob("*.py") for kind in kinds_of(path)}

    # The prefix of what the engine's own checks report.
    assert {kind for kind in named if finding_code(kind) is None} <= {"engine-"}
    assert {"residual", "growth", "decay", "crash", "gaps", "worker-silent", "coverage"} <= named


def test_every_law_of_the_engine_has_a_code() -> None:
    for law in ViolationKind:
        code = finding_code(f"engine-{law.value.replace('_', '-')}")
        assert code not in {None, FindingCode.ENGINE_UNKNOWN}


def test_a_check_of_another_engine_and_a_finding_of_a_later_version_are_no_error() -> None:
    assert finding_code("engine-never-heard-of") is FindingCode.ENGINE_UNKNOWN
    assert finding_code("never-heard-of") is None


@pytest.mark.parametrize("code", [*FindingCode, *ErrorCode])
def test_a_code_is_plain_words_with_hyphens(code: str) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", code)


def test_an_error_has_the_code_of_its_class_unless_it_is_given_one() -> None:
    assert UsageError("no").code is ErrorCode.USAGE
    assert RunDirectoryError("torn", code=ErrorCode.DAMAGED).code is ErrorCode.DAMAGED
    assert all(isinstance(one.default_code, ErrorCode) for one in HybridbenchError.__subclasses__())
