"""Every kind of finding is declared where ``tools.finding_files`` looks, and used somewhere."""

from __future__ import annotations

from hybridbench.analysis.findings.kinds import finding_kinds
from tests.tidy.sources import PACKAGE, source
from tools.finding_files import Module, declared_kinds, files_of_kinds


def test_every_kind_is_declared_and_counted() -> None:
    files = [
        Module(found.name.removeprefix("hybridbench/"), found.tree)
        for found in map(source, PACKAGE)
    ]

    assert set(declared_kinds(files).values()) == set(finding_kinds())
    assert all(names for names in files_of_kinds(files).values())
