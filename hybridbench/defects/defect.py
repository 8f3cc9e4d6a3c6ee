"""The definition of a historic defect: its origin, its symptoms, and the methods it replaces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from types import CodeType, FunctionType
from typing import Final, TypeAlias

from hybridbench.defects.truth import Truth

# Truth counts of a defect that leaks only memory: the bytes kept, and the time over which they
# accumulated.  With ``per=MILLISECONDS`` in the signature, the rate is compared per hour.
BYTES_KEPT: Final = "bytes_kept"
MILLISECONDS: Final = "milliseconds"

# A replacement has the signature of the method it replaces, which a static type cannot express.
Replacement: TypeAlias = Callable[..., object] | property


@dataclass(frozen=True)
class Patch:
    """One method or property of one class, and its replacement while the defect is on.

    ``fingerprint`` is that of the healthy method (see :func:`fingerprint_of`): when the method
    changes, the defect's test fails until someone has checked that it is still the same defect.
    """

    holder: type
    method: str
    replacement: Replacement
    fingerprint: str


class FoundBy(StrEnum):
    """The command that must find the defect."""

    SOAK = "soak"
    COMPARE = "compare"  # shows only in comparison with a healthy engine


class Role(StrEnum):
    """Whether a detector must report the defect or must stay silent."""

    DEFECT = "defect"
    CONTROL = "control"  # healthy, but looks like a leak
    PLANTED = "planted"  # a cost of known size; only `compare` can see it


@dataclass(frozen=True)
class Signature:
    """What a correct detector must report, stated before anything is run.

    ``event`` and ``rate`` are for people; the other fields are what ``selftest`` compares.

    Args:
        verdicts: the correct verdicts; the first is the expected one.
        kinds: kinds of findings, one of which must name ``subject``; empty for a control.
        subject: a word that the subject of the finding must contain.
        event: what drives it, in words.
        rate: how much per event, in words.
        drivers: counters, one of which the finding must name; empty if none can be identified.
        harm: name of the truth count that measures the damage; empty for a control.
        per: name of the truth count that divides ``harm`` to give the rate per event;
            ``MILLISECONDS`` gives the rate per hour.
        counted: name of the number in the finding's data that must equal ``harm``: in total, or
            per unit of ``per`` if no driver is expected.
        says: text that a finding without a count must contain: the error that ended the worker.
        scale: the value of one unit of ``harm`` in the unit of the finding.
        at_most: the detector sees only part of the damage; it may report less than the truth, but
            never more.
        alone: no other finding may report a leak.
        duration_s: how long a run must be for the finding, its driver and its rate.
        quick_s: run length in the quick self-test: more than half a minute if that has too few
            events, 0 to leave the defect out because it needs minutes or would make the quick
            self-test longer than half an hour.
        found_by: the command that finds it.  With ``COMPARE`` the engine is compared with one
            without the defect: the verdict is the comparison's, and ``kinds`` are outcomes of
            compared metrics.
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
    """A historic bug with its provenance and everything needed to restore it; or a control.

    Args:
        slug: its name on the command line.
        source: where it was reported: "sglang#25770".
        symptom: its visible effect, in one sentence.
        profile: a shipped profile that reaches the path.
        part_of: slug of the defect that does the same in more places; only that one is tested with
            every collector and heap setting.
        signature: what must be reported.
        patches: the methods replaced; a control may need none.
        harmed: who was affected and how much, as reported.
        cure: how it was fixed.
        versions: affected releases, (first, last) of each branch; empty if not known.
        overrides: keys of the profile to set for it, as for ``--set``.
        model: a preset, if the profile's own is unsuitable.
        truth: the counts of its replacements.
        corrupts: whether generated tokens may change.
        rates: rates per hour that the self-test tries; the last is the slug's default.
        at_rate: builds the same defect at another rate, in bytes per hour; None without a rate.
        healthy_twin: slug of the control that does the same work and frees all memory.
        quick: whether the quick self-test includes it although finding it takes minutes.
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
    """Twelve hex digits that change with the body of ``method``.

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
