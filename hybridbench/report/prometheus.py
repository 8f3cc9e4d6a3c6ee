"""A run's last samples in Prometheus' text format, following its naming conventions.

Names end with the base unit (seconds, bytes), those of counters with ``_total``, and those of
metrics that only carry labels with ``_info``: https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hybridbench.foundation.labels import escaped, labels_of, unlabelled
from hybridbench.foundation.metrics import Kind, MetricSpec, Unit, spec_of
from hybridbench.records.manifest import Manifest

_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_]+")
# For each unit: the suffix of names here, the suffix in Prometheus, and the conversion factor.
_UNITS: Final[Mapping[Unit, tuple[str, str, float]]] = {
    Unit.BYTES: ("bytes", "bytes", 1.0),
    Unit.SECONDS: ("s", "seconds", 1.0),
    Unit.MILLISECONDS: ("ms", "seconds", 1e-3),
    Unit.PER_SECOND: ("per_s", "per_second", 1.0),
    Unit.SLOTS: ("slots", "slots", 1.0),
    Unit.RATIO: ("ratio", "ratio", 1.0),
    Unit.COUNT: ("", "", 1.0),
}
# Labels for the parts of a name that match the stars in its family's name.
_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "instances": ("class",),
    "pool": ("pool",),
    "container": ("container",),
    "events": ("event",),
    "steps_with": ("event",),
    "waiting_taken": ("pool", "event"),
    "lost_taken": ("pool", "event"),
    "scraped": ("counter",),
    "gauge": ("gauge",),
    "mappings": ("size",),
}


@dataclass(frozen=True)
class Family:
    """One metric as in Prometheus, with a value for each set of labels."""

    name: str
    kind: str
    meaning: str
    values: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.meaning}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.values:
            pairs = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
            yield f"{self.name}{{{pairs}}} {value:.17g}" if pairs else f"{self.name} {value:.17g}"


def render_prometheus(manifest: Manifest, samples: Mapping[str, float], t_s: float) -> str:
    """Render every metric of ``samples``, taken ``t_s`` seconds into the run."""
    about = {
        "run_id": manifest.run_id,
        "version": str(manifest.versions.get("hybridbench", "")),
        "model": manifest.model.name,
        "profile": manifest.profile.name,
    }
    families = [
        Family("hybridbench_run_info", "gauge", "What is being run.", [(about, 1.0)]),
        Family(
            "hybridbench_run_seconds",
            "gauge",
            "Time of the last sample since the start of the run.",
            [({}, t_s)],
        ),
        *_sampled(samples),
    ]
    return "".join(f"{line}\n" for family in families for line in family.lines())


def family_of(spec: MetricSpec) -> Family:
    """Return the Prometheus form of the metric ``spec``, without values."""
    ours, base, _ = _UNITS[spec.unit]
    words = _NOT_IN_A_NAME.sub("_", spec.name).strip("_")
    if ours:
        # Also in the middle: the unit of ttft_ms_p50 moves to the end of the name.
        words = re.sub(rf"_{ours}(?=_|$)", "", words) + f"_{base}"
    counter = spec.kind is Kind.COUNTER
    return Family(
        f"hybridbench_{words}" + ("_total" if counter else ""),
        "counter" if counter else "gauge",
        spec.meaning,
    )


def base_value(spec: MetricSpec, value: float) -> float:
    """Convert ``value`` of the metric ``spec`` to the unit in ``family_of``'s name."""
    return value * _UNITS[spec.unit][2]


def _sampled(samples: Mapping[str, float]) -> Sequence[Family]:
    families: dict[str, Family] = {}
    for name, value in sorted(samples.items()):
        spec = spec_of(name)
        if spec is not None and math.isfinite(value):
            family = families.setdefault(spec.name, family_of(spec))
            family.values.append((_labels(spec, name), base_value(spec, value)))
    return list(families.values())


def _labels(spec: MetricSpec, name: str) -> Mapping[str, str]:
    """Return labels for the parts of ``name`` that match its family's stars, and its process's."""
    pattern = re.escape(spec.name).replace(r"\*", "(.+)")
    match = re.fullmatch(pattern, unlabelled(name))
    assert match is not None, "a metric has the form of its family"
    keys = _LABELS.get(spec.name.partition(".")[0], ())
    return {**dict(zip(keys, match.groups(), strict=True)), **labels_of(name)}
