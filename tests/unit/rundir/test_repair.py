"""The end of a file whose writer was killed."""

from __future__ import annotations

import json
from pathlib import Path

from hybridbench.rundir.lines import repair_tail

LINES = [
    {"t": 1.0, "wall": 1.7e9, "phase": "steady", "m": {"rss_bytes": 123456, "open_fds": 12.5}},
    {"t": 2.0, "kind": "note", "data": {"text": 'a "quoted" } line \\ with ünïcode'}},
]
TEXT = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in LINES)


def test_whatever_byte_the_writer_was_killed_at_whole_lines_stay_and_the_rest_goes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "samples.jsonl"
    for cut in range(len(TEXT) + 1):
        path.write_bytes(TEXT[:cut])
        removed = repair_tail(path)

        left = path.read_bytes()
        # A cut just before the newline tears no line.
        whole = [line for line in LINES if _ends_by(line, cut)]
        assert [json.loads(line) for line in left.splitlines()] == whole
        assert left == b"" or left.endswith(b"\n")
        assert removed == max(0, cut - len(left))
        assert repair_tail(path) == 0
        assert path.read_bytes() == left


def test_a_long_torn_line_is_cut_where_it_began(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(TEXT + b'{"t":3,"data":"' + b"x" * 300_000)

    assert repair_tail(path) == 300_015
    assert path.read_bytes() == TEXT


def test_a_number_that_may_have_been_longer_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(TEXT + b"12")

    assert repair_tail(path) == 2


def test_a_missing_file_stays_missing(tmp_path: Path) -> None:
    assert repair_tail(tmp_path / "events.jsonl") == 0
    assert list(tmp_path.iterdir()) == []


def _ends_by(line: object, cut: int) -> bool:
    text = json.dumps(line, ensure_ascii=False).encode()
    return TEXT.index(text) + len(text) <= cut
