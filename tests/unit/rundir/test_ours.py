"""A directory is recognised as ours by its content, whatever was done to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridbench.foundation.foreign import DOCUMENT_BYTES_MAX
from hybridbench.rundir.ours import is_ours


@pytest.mark.parametrize("name", ["manifest.json", "comparison.json", "night.json"])
@pytest.mark.parametrize("size", [DOCUMENT_BYTES_MAX + 1, 2**40])
def test_a_sparse_file_of_any_size_says_nothing_and_is_not_read(
    tmp_path: Path, name: str, size: int
) -> None:
    (tmp_path / name).write_text('{"schema": "hybridbench.run/1"}', encoding="utf-8")
    os.truncate(tmp_path / name, size)

    assert not is_ours(tmp_path)


def test_a_run_with_a_damaged_manifest_is_known_by_its_samples(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"")
    os.truncate(tmp_path / "manifest.json", 2**40)
    (tmp_path / "samples.jsonl").write_text(
        '{"t": 1.0, "phase": "steady", "m": {"rss_bytes": 1.0}}\n', encoding="utf-8"
    )

    assert is_ours(tmp_path)
