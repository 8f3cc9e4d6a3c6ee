"""What a historic defect is: where it comes from, what shows it, and which methods it replaces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TypeAlias

# Replacements have the signature of the method they stand in for, which only that method knows.
Replacement: TypeAlias = Callable[..., object]


@dataclass(frozen=True)
class Patch:
    """One method of one class and what stands in its place while the defect is on.

    ``fingerprint`` is that of the healthy method (see :func:`fingerprint_of`): when the method is
    changed, the defect's test fails until somebody has looked whether it still is the same defect.
    """

    holder: type
    method: str
    replacement: Replacement
    fingerprint: str


@dataclass(frozen=True)
class Signature:
    """What a correct detector must report: the subject, the event that drives it, the rate."""

    subject: str
    event: str
    rate: str
    expected_verdict: str


@dataclass(frozen=True)
class Defect:
    """A historic bug with its provenance and everything needed to put it back."""

    slug: str
    source: str  # "sglang#25770"
    symptom: str
    profile: str  # a shipped profile that reaches the path
    signature: Signature
    patches: tuple[Patch, ...]


def fingerprint_of(method: Callable[..., object]) -> str:
    """Twelve hex digits that change when the body of ``method`` does.

    Names, constants and byte code count; line numbers, comments, docstring and file do not.  Byte
    code differs between Python versions, so fingerprints are compared only on the pinned one.
    """
    assert isinstance(method, FunctionType), f"{method} has no code of its own"
    digest = hashlib.sha256()
    _feed(digest.update, method.__code__, method.__doc__)
    return digest.hexdigest()[:12]


def _feed(update: Callable[[bytes], None], code: CodeType, doc: str | None) -> None:
    update(code.co_code)
    update(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _feed(update, constant, None)
        elif doc is None or constant != doc:
            update(repr(constant).encode())
