"""What the count of files per finding sees, on a package of five files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.finding_files import PACKAGE, declared_codes, files_of_codes, keyed_reads, lines, modules

FILES = {
    "records/codes.py": '''
class FindingCode(StrEnum):
    """What is found: "growth"."""

    meaning: str

    GROWTH = "growth", "It grows.", Evidence.STATISTICAL
    CRASH = (
        "crash",
        "It ends.",
    )
    GAPS = "gaps", "Samples are missing."


class NoteCode(StrEnum):
    OVERHEAD = "overhead"
''',
    "analysis/reading.py": """
def number(data, key): return data[key]
def text(data, key): return data[key]
def _items(data, key): return data[key]
""",
    "analysis/crash.py": '''
"""A crash."""
from hybridbench.analysis.reading import text
FOUND = FindingCode.CRASH
OTHER = ReasonCode.GAPS
def number(value): return value
SAID = text(finding.data, "reason"), number(3)
''',
    "sentences/growth.py": """
from hybridbench.analysis import reading
from hybridbench.analysis.reading import number as value, text
from hybridbench.records import codes
GROWS = codes.FindingCode.GROWTH, "growth"
SAID = value(finding.data, "rate"), reading.number(data, "share"), data.get("since")
STORED = finding.data["metric"], other["metric"], manifest.get("x")
data["metric"] = 3
""",
    "report/other.py": '''
"""Which says "crash" and growth in passing."""
QUESTIONS = {"crash": "does it end?"}
''',
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_codes_are_the_members_of_the_one_enumeration(package: Path) -> None:
    assert declared_codes(modules(package)) == {
        "GROWTH": "growth",
        "CRASH": "crash",
        "GAPS": "gaps",
    }


def test_a_code_is_in_each_file_that_spells_its_member_or_its_value(package: Path) -> None:
    assert files_of_codes(modules(package)) == {
        "growth": ["records/codes.py", "sentences/growth.py"],
        "crash": ["analysis/crash.py", "records/codes.py", "report/other.py"],
        "gaps": ["records/codes.py"],
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

    assert report[0] == "files per kind of finding: mean 2.0, median 2, most 3 (3 kinds)"
    assert "   3  crash: analysis/crash.py, records/codes.py, report/other.py" in report
    assert "reads by a string: 5" in report


def test_of_this_package_every_kind_is_declared_and_counted() -> None:
    spread = files_of_codes(modules(PACKAGE))

    assert len(spread) >= 50
    assert all("records/codes.py" in names for names in spread.values())
