"""What a historic defect is: where it comes from, what shows it, and which methods it replaces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from types import CodeType, FunctionType
from typing import Final, TypeAlias

from hybridbench.defects.truth import Truth

# What a defect of memory alone counts: bytes that stay, and the time in which they came to stay.
# ``per`` of its signature is the latter, and its rate is compared for each hour.
BYTES_KEPT: Final = "bytes_kept"
MILLISECONDS: Final = "milliseconds"

# Replacements have the signature of the method they stand in for, which only that method knows.
Replacement: TypeAlias = Callable[..., object] | property


@dataclass(frozen=True)
class Patch:
    """One method or property of one class, and what stands in its place while the defect is on.

    ``fingerprint`` is that of the healthy method (see :func:`fingerprint_of`): when the method is
    changed, the defect's test fails until somebody has looked whether it still is the same defect.
    """

    holder: type
    method: str
    replacement: Replacement
    fingerprint: str


class FoundBy(StrEnum):
    """The command that must find it."""

    SOAK = "soak"
    COMPARE = "compare"  # no level of it is wrong by itself: only beside a healthy engine it shows


class Role(StrEnum):
    """Whether what is put in must be found, or must not."""

    DEFECT = "defect"
    CONTROL = "control"  # looks like a leak and is none
    PLANTED = "planted"  # a cost of known size; only `compare` can see it


@dataclass(frozen=True)
class Signature:
    """What a correct detector must report, stated before anything is run.

    ``event`` and ``rate`` are for people; the other fields are what ``selftest`` compares.

    Args:
        verdicts: the verdicts that are right; the first is the one expected.
        kinds: kinds of findings, one of which must name ``subject``; empty for a control.
        subject: what the finding must name: a word of its subject.
        event: what drives it, in words.
        rate: how much for each event, in words.
        drivers: counters, one of which the finding must name; empty if none can be told.
        harm: name of the truth's count of what was done; empty for a control.
        per: name of the truth's count that ``harm`` is divided by to give the rate for each event;
            with ``MILLISECONDS`` that for each hour.
        counted: name of the number in the finding's data that must be ``harm``: in all, or for each
            of ``per`` where no driver is asked for.
        says: words of the finding, where it counts nothing: how a crash ended the worker.
        scale: one of ``harm`` in the unit of the finding.
        at_most: the report can only see part of it: it may say less than the truth, never more.
        alone: nothing but this finding may say that anything leaks.
        duration_s: how long a run must be for the finding, its driver and its rate.
        quick_s: how long the quick self-test runs it; more where half a minute has too few events,
            0 where it is left out: it needs minutes, or the quick self-test would need more than
            half an hour.
        found_by: what a soak cannot find is found by a comparison with the engine without it; its
            verdict is that of the comparison, and its kinds are words of compared metrics.
    """

    verdicts: tuple[str, ...]
    kinds: tuple[str, ...]
    subject: str
    event: str
    rate: str
    drivers: tuple[str, ...] = ()
    harm: str = ""
    per: str = ""
    counted: str = ""
    says: str = ""
    scale: float = 1.0
    at_most: bool = False
    alone: bool = False
    duration_s: float = 45.0
    quick_s: float = 30.0
    found_by: FoundBy = FoundBy.SOAK


@dataclass(frozen=True)
class Defect:
    """A historic bug with its provenance and everything needed to put it back; or a control.

    Args:
        slug: its name on the command line.
        source: where it was reported: "sglang#25770".
        symptom: how it shows, in one sentence.
        profile: a shipped profile that reaches the path.
        part_of: slug of the defect that does the same in more places: that one, and not this one,
            is tried in every setting of collector and heap.
        signature: what must be reported.
        patches: the methods replaced; a control may need none.
        harmed: who was hurt by it and how much, as reported.
        cure: how it was cured.
        versions: releases that had it, (first, last) of each branch; empty if not known.
        overrides: keys of the profile to set for it, as ``--set`` takes them.
        model: a preset, where the profile's own will not do.
        truth: what its replacements count.
        corrupts: whether generated tokens may change.
        rates: rates an hour that the self-test tries; the last is what the slug alone means.
        at_rate: the same defect at another rate, in bytes an hour; None where it has no rate.
        healthy_twin: slug of the control that does the same work and gives all of it back.
        quick: whether the quick self-test has it although minutes are needed to find it.
    """

    slug: str
    source: str
    symptom: str
    profile: str
    signature: Signature
    patches: tuple[Patch, ...]
    harmed: str = ""
    cure: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    overrides: tuple[tuple[str, str], ...] = ()
    part_of: str = ""
    model: str = ""
    truth: Truth = field(default_factory=Truth)
    corrupts: bool = False
    rates: tuple[str, ...] = ()
    at_rate: Callable[[float], Defect] | None = None
    healthy_twin: str = ""
    quick: bool = False
    role: Role = Role.DEFECT


def function_of(method: Replacement) -> FunctionType:
    """The function that runs when ``method`` is called, or read if it is a property."""
    function = method.fget if isinstance(method, property) else method
    assert isinstance(function, FunctionType), f"{method} has no code of its own"
    return function


def fingerprint_of(method: Replacement) -> str:
    """Twelve hex digits that change when the body of ``method`` does.

    Names, constants and byte code count; line numbers, comments, docstring and file do not.  Byte
    code differs between Python versions, so fingerprints are compared only on the pinned one.
    """
    function = function_of(method)
    digest = hashlib.sha256()
    _feed(digest.update, function.__code__, function.__doc__)
    return digest.hexdigest()[:12]


def _feed(update: Callable[[bytes], None], code: CodeType, doc: str | None) -> None:
    update(code.co_code)
    update(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _feed(update, constant, None)
        elif doc is None or constant != doc:
            update(repr(constant).encode())
