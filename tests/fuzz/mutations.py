"""Seeded damage to any file: its bytes, lines and values, and the kind of file at its path."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

_EVIL = "@@evil@@"
# Texts of JSON values; the last line is not valid JSON.
VALUES: tuple[str, ...] = (
    "null", "true", '""', '"x"', "-1", "0", "1e308", "-1e308", "1e-320", "1.5", "7",
    "10" * 15, "9" * 5000, str(2**63), str(-(2**63) - 1), str(2**64), "1e30", "[]", "{}",
    "[" * 150 + "]" * 150, '{"a":' * 150 + "1" + "}" * 150, "[" * 5000 + "]" * 5000,
    '"\\u001b[31mred\\n::error file=x::owned"', '"../../../x"', '"\\ud800"', '"\\u0000"',
    f'"{"a" * 200_000}"', f"[{','.join(['1'] * 10_000)}]", '"2026-01-01"', '"1e308"', '"NaN"',
    "NaN", "Infinity", "-Infinity",
)  # fmt: skip
_TEXTS: tuple[bytes, ...] = (
    b"\x00", b"\xff\xfe", b"\x1b[2J\x1b]0;owned\x07", b"\n::error::owned\n", b"\r", b"\xe2\x80\xa8",
    b"9" * 5000, b"[" * 5000, b'"', b"{", b"}", b",", b"-", b"1e999", b"nan", b"a" * 200_000,
    b"!!bool abc", b"&a [*a, *a]", b"!!int 0x", b"\t", b"|", b"? ", b"99999:00:00", b"%",
    b"1" * 4400 + b":00:00", b"a" * 3_000_000,
)  # fmt: skip
_YAML_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)
_SPARSE_BYTES = 2**40


def mutate(path: Path, rng: Random) -> str:
    """Damage the file at ``path``; return how."""
    weights = [(_of_bytes, 4), (_of_lines, 2), (_of_values, 10), (_of_file, 1), (_packed, 1)]
    how: Callable[[Path, Random], str] = rng.choices(
        [entry for entry, _ in weights], [weight for _, weight in weights]
    )[0]
    return f"{path.name}: {how(path, rng)}"


def _of_bytes(path: Path, rng: Random) -> str:
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data) + 1)
    kind = rng.choice(("truncate", "flip", "cut", "repeat", "insert", "empty"))
    if kind == "truncate":
        del data[at:]
    elif kind == "flip":
        for _ in range(rng.randint(1, 20)):
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at : at + rng.randint(1, 200)]
    elif kind == "repeat":
        data[at:at] = data[at : at + rng.randint(1, 2000)] * rng.randint(1, 5)
    elif kind == "insert":
        data[at:at] = rng.choice(_TEXTS)
    else:
        data.clear()
    path.write_bytes(data)
    return f"{kind} at {at}"


def _of_lines(path: Path, rng: Random) -> str:
    lines = path.read_bytes().split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.choice(("double", "swap", "drop", "text", "bomb"))
    if kind == "double":
        lines[at:at] = [lines[other]] * rng.randint(1, 50)
    elif kind == "swap":
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == "drop":
        del lines[at : at + rng.randint(1, 20)]
    elif kind == "text":
        lines[at] = rng.choice(_TEXTS)
    else:
        lines += _YAML_BOMB.encode().split(b"\n")
    path.write_bytes(b"\n".join(lines))
    return f"{kind} line {at}"


def _of_values(path: Path, rng: Random) -> str:
    """Replace a value in a JSON document, in one of its lines, or in a table's cell."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        return _of_bytes(path, rng)
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    for whole, piece in ((True, text), (False, lines[at])):
        try:
            document = json.loads(piece)
        except (ValueError, RecursionError):
            continue
        changed, said = _with_evil(document, rng)
        if whole:
            path.write_text(changed, "utf-8")
            return said
        lines[at] = changed
        path.write_text("\n".join(lines), "utf-8")
        return f"line {at}: {said}"
    mark = next((mark for mark in (",", ": ", " ", "\t") if mark in lines[at]), ",")
    cells = lines[at].split(mark)
    value = rng.choice(VALUES).strip('"') if mark != ": " else rng.choice(VALUES)
    cells[rng.randrange(len(cells))] = value
    lines[at] = mark.join(cells)
    path.write_text("\n".join(lines), "utf-8")
    return f"line {at}: a cell is {value[:40]}"


def _with_evil(document: object, rng: Random) -> tuple[str, str]:
    """Return ``document`` as JSON with a value replaced, removed, renamed or duplicated."""
    holders: list[tuple[dict[str, object] | list[object], str | int]] = []
    level = [document]
    while level:
        here = level.pop()
        if isinstance(here, dict):
            holders += [(here, key) for key in here]
            level += here.values()
        elif isinstance(here, list):
            holders += [(here, index) for index in range(len(here))]
            level += here
    if not holders:
        return rng.choice(VALUES), "the whole of it"
    holder, key = rng.choice(holders)
    kind = rng.choice(("value", "value", "value", "value", "drop", "rename"))
    value = rng.choice(VALUES)
    if isinstance(holder, dict) and kind != "value":
        gone = holder.pop(str(key))
        if kind == "rename":
            holder[json.loads('"\\u001b[1m\\n::warning::x"')] = gone
        return json.dumps(document), f"{kind} {key}"
    holder[key] = _EVIL  # type: ignore[index]
    text = json.dumps(document).replace(f'"{_EVIL}"', value)
    return text, f"{key} is {value[:40]}"


def _of_file(path: Path, rng: Random) -> str:
    kind = rng.choice(("gone", "directory", "fifo", "dangling", "loop", "sparse", "twin"))
    if kind == "sparse":
        os.truncate(path, _SPARSE_BYTES)
        return kind
    if kind == "twin":
        others = [p for p in path.parent.iterdir() if p.is_file() and p != path]
        if others:
            shutil.copyfile(rng.choice(others), path)
        return kind
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(path.name)
    return kind


def _packed(path: Path, rng: Random) -> str:
    data = path.read_bytes()
    kind = rng.choice(("whole", "damaged", "cut", "bomb"))
    if kind == "bomb":
        data = bytes(20_000_000)
    packed = bytearray(gzip.compress(data, mtime=0))
    if kind == "damaged":
        for _ in range(3):
            packed[rng.randrange(2, len(packed))] ^= 0xFF
    elif kind == "cut":
        del packed[rng.randrange(2, len(packed)) :]
    path.write_bytes(packed)
    return f"gzip, {kind}"
