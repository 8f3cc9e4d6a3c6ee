"""Every kind of finding is declared where ``tools.finding_files`` looks, and used somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hybridbench.analysis.findings.kinds import finding_kinds
from tests.tidy.sources import PACKAGE, source
from tools.finding_files import Module, declared_kinds, files_of_kinds


def test_every_kind_is_declared_and_counted() -> None:
    declared = declared_kinds(modules_with(["    kind = "]))

    assert set(declared.values()) == set(finding_kinds())
    files = modules_with([*declared, *declared.values()])
    assert all(names for names in files_of_kinds(files).values())


def modules_with(words: Iterable[str]) -> list[Module]:
    """Return the files that contain one of ``words``; walking every syntax tree takes seconds."""
    spelled = re.compile("|".join(map(re.escape, words)))
    return [
        Module(found.name.removeprefix("hybridbench/"), found.tree)
        for found in map(source, PACKAGE)
        if spelled.search(found.text)
    ]
