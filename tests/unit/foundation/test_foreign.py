"""Reading foreign files within limits: sizes, kinds, depth, digits, gzip."""

from __future__ import annotations

import gzip
import io
import os
import threading
from pathlib import Path

import pytest

from hybridbench.foundation.foreign import (
    INT_MAX,
    MIB,
    ForeignDataError,
    check_plain,
    json_value,
    longest_line,
    read_bytes,
    read_piped,
    read_stream,
    read_text,
    unpacked,
)


def test_a_file_at_the_limit_is_read_and_one_above_it_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 10)

    assert read_bytes(path, 10) == b"x" * 10
    with pytest.raises(ForeignDataError, match="is larger than 9 bytes"):
        read_bytes(path, 9)


def test_a_sparse_terabyte_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    os.truncate(path, 2**40)

    with pytest.raises(ForeignDataError, match="is larger than 1 MiB"):
        read_bytes(path, MIB)


def test_a_pipe_is_no_regular_file_and_nobody_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    os.mkfifo(path)

    with pytest.raises(ForeignDataError, match="is a named pipe, not a regular file"):
        read_bytes(path, MIB)


def test_what_comes_through_a_pipe_is_read_where_a_pipe_may_be(tmp_path: Path) -> None:
    path = tmp_path / "a"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"x" * 200_000,))
    writer.start()

    assert read_piped(path, MIB) == b"x" * 200_000
    writer.join()


def test_a_pipe_that_nobody_writes_to_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    os.mkfifo(path)
    monkeypatch.setattr("hybridbench.foundation.foreign._PATIENCE_S", 0.05)

    with pytest.raises(ForeignDataError, match=r"nothing came for 0\.05 s"):
        read_piped(path, MIB)


def test_an_endless_stream_is_cut_off() -> None:
    with pytest.raises(ForeignDataError, match="is larger than 1 MiB"):
        read_stream(io.BytesIO(bytes(2 * MIB)), MIB)


def test_bytes_that_are_no_text_are_told_by_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"ab\xff")

    with pytest.raises(ForeignDataError, match=r"is not text in UTF-8 \(byte 2\)"):
        read_text(path, MIB)


@pytest.mark.parametrize("members", [1, 3])
def test_gzip_of_several_members_is_unpacked(members: int) -> None:
    assert unpacked(gzip.compress(b"abc") * members + b"\0\0", MIB) == b"abc" * members


def test_a_bomb_is_refused_without_being_unpacked() -> None:
    with pytest.raises(ForeignDataError, match="unpacks to more than 1 MiB"):
        unpacked(gzip.compress(bytes(50 * MIB)), MIB)


def test_a_cut_or_damaged_gzip_stream_is_told() -> None:
    packed = gzip.compress(os.urandom(1000))

    with pytest.raises(EOFError):
        unpacked(packed[:500], MIB)
    with pytest.raises(ForeignDataError, match="is a damaged gzip file"):
        unpacked(packed[:20] + b"\xff" * 200 + packed[220:], MIB)


def test_whole_numbers_beyond_64_bits_come_as_floats() -> None:
    assert json_value(f"[{INT_MAX}, {INT_MAX + 1}, {'9' * 5000}]") == [
        INT_MAX,
        float(2**63),
        float("inf"),
    ]
    assert type(json_value(str(INT_MAX))) is int


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_is_kept() -> None:
    text = r'["\ud83d\ude00", "a\uD800", "\\ud800", "\udc00\ud83d", "\ud83d\ud83d\ude00"]'

    assert json_value(text) == [
        "\N{GRINNING FACE}",
        "a\ufffd",
        r"\ud800",
        "\ufffd\ufffd",
        "\ufffd\N{GRINNING FACE}",
    ]


@pytest.mark.parametrize("depth", [101, 150, 900, 5000, 200_000])
@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}")])
def test_deep_documents_are_refused(depth: int, left: str, right: str) -> None:
    with pytest.raises(ForeignDataError, match="is nested more than 100 levels deep"):
        json_value(left * depth + "1" + right * depth)


def test_a_document_of_a_hundred_levels_is_taken() -> None:
    assert json_value("[" * 100 + "]" * 100) is not None


def test_what_msgspec_decoded_is_checked_for_its_numbers_too() -> None:
    check_plain({"a": [1, INT_MAX, 1.5, None, "x"]})
    with pytest.raises(ForeignDataError, match="a whole number beyond 64 bits"):
        check_plain({"a": [{"b": 2**70}]})


def test_the_longest_line_is_found() -> None:
    assert longest_line(b"a\nbcd\n\nx") == (2, 3)
