"""Counting the files that each kind of finding touches, on a small package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.finding_files import declared_kinds, files_of_kinds, lines, modules

FILES = {
    "records/finding.py": """
class Basis:
    kind: ClassVar[str]
""",
    "analysis/gaps.py": '''
class Gaps(Basis):
    """Samples are missing: "growth"."""

    kind = "gaps"
''',
    "defects/slow.py": """
EXPECTED = ("gaps", "crash")
""",
    "analysis/crash.py": '''
"""A crash."""
class Crashed(Basis):
    kind = "crash"
''',
    "sentences/growth.py": """
class Growth(Basis):
    kind = "growth"
""",
    "report/other.py": '''
"""Which says "crash" and growth in passing."""
QUESTIONS = {"crash": "does it end?"}
FIRST = growth.Growth, isinstance(basis, Growth)
''',
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_kind_is_declared_by_a_class(package: Path) -> None:
    assert declared_kinds(modules(package)) == {
        "Gaps": "gaps",
        "Crashed": "crash",
        "Growth": "growth",
    }


def test_a_kind_is_in_each_file_that_spells_its_class_or_its_value(package: Path) -> None:
    assert files_of_kinds(modules(package)) == {
        "crash": ["analysis/crash.py", "report/other.py"],
        "gaps": ["analysis/gaps.py"],
        "growth": ["report/other.py", "sentences/growth.py"],
    }


def test_the_report_begins_with_the_counts(package: Path) -> None:
    report = list(lines(modules(package)))

    assert report[0] == "files per kind of finding: mean 1.7, median 2, most 2 (3 kinds)"
    assert "   2  crash: analysis/crash.py, report/other.py" in report
