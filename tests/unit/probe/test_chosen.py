"""Which Python processes get a probe."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.probe.hybridbench_probe import chosen

COMMAND = ["/usr/bin/python3.11", "-m", "shop.worker", "--queue", "17"]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (r"worker --queue \d+$", True),
        (r"^/usr/bin/.*shop\.(api|worker)", True),
        ("shop", True),
        ("shop.api\nshop.worker", True),
        (r"worker --queue \d$", False),
        ("shop*worker", False),
    ],
)
def test_patterns_are_regular_expressions_of_the_command_line(
    pattern: str, wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "command_of", lambda pid: COMMAND)

    assert chosen.is_wanted(str(tmp_path), pattern) is wanted
