"""Which runs may be compared with each other, and when a rate of one is above that of another.

Both comparisons rest on this: a series of runs (``series``), and a nightly run with the last green
one, which no series can stand in for after a single night.
"""

from __future__ import annotations

from typing import Final

from hybridbench.analysis.comparison.mismatches import comparable_facts, machine_class
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import Rate

# What an upgrade of the environment changes is shown beside the version and splits no series.
_OF_VERSION: Final = frozenset({"interpreter", "torch", "numpy", "libc"})


def series_facts(manifest: Manifest) -> dict[str, str]:
    """What all runs of one series share, by key, in words."""
    facts = comparable_facts(manifest)
    return {key: value for key, value in facts.items() if key not in _OF_VERSION}


def environment(manifest: Manifest) -> str:
    """Interpreter and libraries: a change that comes with a new one says so."""
    facts = comparable_facts(manifest)
    return ", ".join(f"{key} {facts[key]}" for key in sorted(_OF_VERSION) if key in facts)


def machine(manifest: Manifest) -> str:
    """The class of the machine of a run, its interpreter and device; equal for one class only."""
    version = ".".join((manifest.interpreter.version or "?").split(".")[:2])
    device = manifest.model.device.partition(":")[0]
    facts = machine_class(manifest).items()
    parts = [f"{key.removeprefix('machine.')} {value}" for key, value in facts]
    return ", ".join([*parts, f"Python {version}", f"on {device}"])


def grew(rate: Rate, before: Rate) -> bool:
    """Whether the interval of ``rate`` lies wholly above that of ``before``."""
    return rate.lower > before.upper
