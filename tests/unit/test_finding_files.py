"""Counting the files that each kind of finding touches, on a package of five files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.finding_files import declared_kinds, files_of_kinds, keyed_reads, lines, modules

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
    "analysis/reading.py": """
def number(data, key): return data[key]
def text(data, key): return data[key]
def _items(data, key): return data[key]
""",
    "analysis/crash.py": '''
"""A crash."""
from hybridbench.analysis.reading import text
class Crashed(Basis):
    kind = "crash"
def number(value): return value
SAID = text(finding.data, "reason"), number(3)
''',
    "sentences/growth.py": """
from hybridbench.analysis import reading
from hybridbench.analysis.reading import number as value, text
class Growth(Basis):
    kind = "growth"
SAID = value(finding.data, "rate"), reading.number(data, "share"), data.get("since")
STORED = finding.data["metric"], other["metric"], manifest.get("x")
data["metric"] = 3
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


def test_reads_are_calls_of_the_readers_and_items_of_data(package: Path) -> None:
    found = [(read.file, read.how) for read in keyed_reads(modules(package))]

    assert found == [
        ("analysis/crash.py", "text(...)"),
        ("sentences/growth.py", "number(...)"),
        ("sentences/growth.py", "number(...)"),
        ("sentences/growth.py", "data.get(...)"),
        ("sentences/growth.py", "data[...]"),
    ]


def test_the_report_begins_with_the_counts(package: Path) -> None:
    report = list(lines(modules(package)))

    assert report[0] == "files per kind of finding: mean 1.7, median 2, most 2 (3 kinds)"
    assert "   2  crash: analysis/crash.py, report/other.py" in report
    assert "reads by a string: 5" in report
