"""Memory of files in a target's /dev/shm."""

from __future__ import annotations

from pathlib import Path

from hybridbench.foundation.metrics import declared
from hybridbench.sampling.shm_files import ShmFilesSource


def test_new_files_count_from_the_first_one_on_until_they_are_unlinked(tmp_path: Path) -> None:
    folder = tmp_path / "7" / "root" / "dev" / "shm"
    folder.mkdir(parents=True)
    (folder / "old").write_bytes(b"x" * 9000)
    source = ShmFilesSource(7, tmp_path)

    before = source.read()
    (folder / "psm_1").write_bytes(b"x" * 8192)
    (made,) = source.read().items()
    (folder / "psm_1").unlink()
    (unlinked,) = source.read().items()

    assert before == {}
    assert made == ("shm_files_bytes", 8192.0)
    assert unlinked == ("shm_files_bytes", 0.0)
    assert declared("shm_files_bytes").foreign


def test_a_process_that_is_gone_has_no_files(tmp_path: Path) -> None:
    assert ShmFilesSource(7, tmp_path).read() == {}
