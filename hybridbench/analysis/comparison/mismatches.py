"""Manifest keys in which two runs differ, which decide whether they can be compared at all.

Two versions of an engine are compared under the same load, on the same kind of machine, in the same
kind of process; any other difference would be mistaken for one of the engine.  A difference that
the user asked for (another interpreter with its libraries, a defect, a revision) is not a mismatch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass

from hybridbench.analysis.reading import text
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import Machine, Manifest

ABSENT = "absent"

# Names, thresholds and durations, which do not change the load on the engine at any moment.
_PROFILE_IGNORED = frozenset(
    {
        "name",
        "description",
        "model",
        "seed",
        "duration",
        "promise",
        "assert_coverage",
        "thresholds",
        "pools",
        "gc",
    }
)
_THRESHOLDS = ("threshold_0", "threshold_1", "threshold_2")
# Keys that a version of kind "python" is expected to change.
_OF_ENVIRONMENT = frozenset(
    {"interpreter", "torch", "numpy", "libc", *(f"gc.{name}" for name in _THRESHOLDS)}
)
_OFF = frozenset({ABSENT, "false", "0", "0s", "0B", "none"})
_SETTINGS = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "LD_PRELOAD",
)


@dataclass(frozen=True)
class Mismatch:
    """A key whose values differ, with both values as text."""

    key: str
    base: str
    other: str


def mismatches(
    base: Manifest,
    other: Manifest,
    kinds: Collection[str] = (),
    allowed: Set[str] = frozenset(),
) -> list[Mismatch]:
    """Return the differences that prevent comparing ``other`` with ``base``.

    ``kinds`` are the versions' kinds.  A key in ``allowed`` covers itself and everything below it:
    ``profile`` covers ``profile.arrival.rate``.
    """
    excused = _OF_ENVIRONMENT if "python" in kinds else frozenset()
    before, after = comparable_facts(base), comparable_facts(other)
    keys = dict.fromkeys([*before, *after])
    found = [
        Mismatch(key, before.get(key, ABSENT), after.get(key, ABSENT))
        for key in keys
        if before.get(key) != after.get(key)
    ]
    return [
        m
        for m in found
        if m.key not in excused and not _is_allowed(m.key, allowed) and not _is_new_key(m)
    ]


def uncovered(allowed: Set[str], known: Collection[str]) -> list[str]:
    """Return the keys in ``allowed`` that cover none of the ``known`` keys: they are misspelt."""
    return sorted(one for one in allowed if not any(_is_allowed(key, {one}) for key in known))


def refusal(found: Iterable[Mismatch]) -> str:
    """Format the differing keys and values for one sentence: ``gc.mode (on and off), ...``."""
    return ", ".join(f"{m.key} ({m.base} and {m.other})" for m in found)


def comparable_facts(manifest: Manifest) -> dict[str, str]:
    """Return every fact that must agree between compared runs, by key, as text."""
    facts = dict(_process(manifest))
    facts.update(machine_class(manifest))
    model = manifest.model
    facts["model"] = model.preset or ABSENT
    facts["dtype"] = model.dtype
    facts["device"] = model.device
    facts.update(("pools." + name, v) for name, v in _leaves(manifest.pools))
    wanted = {k: v for k, v in manifest.profile.resolved.items() if k not in _PROFILE_IGNORED}
    facts.update(("profile." + name, v) for name, v in _leaves(wanted))
    trace = "none" if manifest.trace is None else manifest.trace.path
    facts["trace"] = trace.rpartition("/")[2]
    facts["target"] = manifest.target.kind
    return facts


def machine_class(manifest: Manifest) -> dict[str, str]:
    """Return the machine's class; two machines of one class may be compared.

    Memory is rounded to steps of half a power of two, so that firmware reservations do not matter.
    """
    machine = manifest.machine
    facts = {
        "machine.architecture": machine.architecture or ABSENT,
        "machine.cpu": machine.cpu or ABSENT,
    }
    usable = machine.cpus if machine.cpus_usable is None else machine.cpus_usable
    facts["machine.cpus"] = str(usable or 0)
    facts["machine.memory"] = _memory_class(machine)
    facts["machine.kernel"] = ".".join((machine.kernel or ABSENT).split(".")[:2])
    return facts


def _process(manifest: Manifest) -> Iterable[tuple[str, str]]:
    """Yield interpreter, libraries, allocator and collector."""
    interpreter = manifest.interpreter
    names = [interpreter.implementation, interpreter.version]
    yield "interpreter", " ".join(n for n in names if n) or ABSENT
    for name in ("torch", "numpy"):
        yield name, text(manifest.versions, name, ABSENT)
    malloc = manifest.malloc
    yield "libc", text(malloc, "libc", ABSENT)
    yield "malloc", text(malloc, "mode", ABSENT)
    for name in _SETTINGS:
        yield f"malloc.{name}", text(malloc, name, ABSENT) or ABSENT
    gc = manifest.gc
    yield "gc", text(gc, "mode", ABSENT)
    for name in _THRESHOLDS:
        yield f"gc.{name}", _word(gc.get(name))


def _memory_class(machine: Machine) -> str:
    try:
        gib = float(machine.memory_total_kib or 0.0) / 2**20
    except ValueError:
        return ABSENT
    if gib <= 0:
        return ABSENT
    return f"about {2.0 ** (round(2.0 * math.log2(gib)) / 2.0):.3g} GiB"


def _leaves(data: Mapping[str, JsonValue], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in sorted(data.items()):
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _word(value)


def _word(value: JsonValue) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, list | tuple):
        return " ".join(_word(item) for item in value) or ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_allowed(key: str, allowed: Set[str]) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in allowed)


def _is_new_key(found: Mismatch) -> bool:
    """Whether one run lacks a setting that is off in the other.

    The version that wrote that run did not have the setting yet.
    """
    values = {found.base, found.other}
    return found.key.startswith("profile.") and ABSENT in values and values <= _OFF
