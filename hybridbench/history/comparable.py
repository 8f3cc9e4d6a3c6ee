"""Which runs may be compared with each other: the part that both comparisons over time share.

A series (``series``) asks when a quantity changed: it needs several runs on either side, takes one
number of each and learns from them how far healthy runs lie apart.  A nightly run
(``nightly/baseline``) asks what is new since one green run.  Two runs say nothing of the spread
between runs, so that it compares findings by signature, rates by the interval that each run has
of its own, and throughput with a ratio that the plan chooses.
"""

from __future__ import annotations

from typing import Final

from hybridbench.analysis.comparison.mismatches import comparable_facts, machine_class
from hybridbench.records.manifest import Manifest

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
