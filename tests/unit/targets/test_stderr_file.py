from __future__ import annotations

from pathlib import Path

from hybridbench.targets.stderr_file import FILE_BYTES_MAX, StderrFile


def test_the_tail_is_the_last_lines(tmp_path: Path) -> None:
    stderr = StderrFile(tmp_path / "log")
    with stderr.open_for_worker() as file:
        file.write("".join(f"line {number}\n" for number in range(100)).encode())

    assert stderr.tail(lines=2) == ["line 98", "line 99"]


def test_a_worker_that_said_nothing_has_no_tail(tmp_path: Path) -> None:
    assert StderrFile(tmp_path / "log").tail() == []
    assert not StderrFile(tmp_path / "log").trim()


def test_a_file_that_grew_too_long_keeps_its_end_and_the_worker_goes_on_writing(
    tmp_path: Path,
) -> None:
    stderr = StderrFile(tmp_path / "log")
    with stderr.open_for_worker() as file:
        file.write(b"x" * FILE_BYTES_MAX + b"\nlast words\n")
        assert stderr.trim()
        file.write(b"and more\n")

    assert stderr.path.stat().st_size < FILE_BYTES_MAX / 8
    assert stderr.tail(lines=2) == ["last words", "and more"]
    assert not stderr.trim()
