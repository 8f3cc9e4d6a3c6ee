"""The last samples of a run in Prometheus' text format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

from hybridbench.metrics import Kind, MetricSpec, spec_of
from hybridbench.records.manifest import Manifest

_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_]+")


def render_prometheus(manifest: Manifest, samples: Mapping[str, float], t_s: float) -> str:
    """Every metric of ``samples``, ``t_s`` seconds into the run; families by the label ``name``."""
    about = {
        "run_id": manifest.run_id,
        "model": manifest.model.name,
        "profile": manifest.profile.name,
    }
    lines = [
        "# HELP hybridbench_run What is being run.",
        "# TYPE hybridbench_run gauge",
        f"hybridbench_run{{{_labels(about)}}} 1",
        "# HELP hybridbench_run_seconds Time of the last sample since the start of the run.",
        "# TYPE hybridbench_run_seconds gauge",
        f"hybridbench_run_seconds {t_s:.3f}",
    ]
    families: dict[str, tuple[MetricSpec, list[tuple[str, float]]]] = {}
    for name, value in sorted(samples.items()):
        spec = spec_of(name)
        if spec is not None and math.isfinite(value):
            families.setdefault(spec.name, (spec, []))[1].append((name, value))
    for spec, members in families.values():
        lines += _family(spec, members)
    return "\n".join(lines) + "\n"


def _family(spec: MetricSpec, members: list[tuple[str, float]]) -> Iterator[str]:
    head, star, tail = spec.name.partition("*")
    kind = "counter" if spec.kind is Kind.COUNTER else "gauge"
    parts = [part for part in (_plain(head), _plain(tail)) if part]
    name = "_".join(["hybridbench", *parts]) + ("_total" if kind == "counter" else "")
    yield f"# HELP {name} {spec.meaning} ({spec.unit.value})"
    yield f"# TYPE {name} {kind}"
    for metric, value in members:
        member = metric[len(head) : len(metric) - len(tail)]
        labels = f"{{{_labels({'name': member})}}}" if star else ""
        yield f"{name}{labels} {value:.17g}"


def _plain(part: str) -> str:
    return _NOT_IN_A_NAME.sub("_", part).strip("_")


def _labels(values: Mapping[str, str]) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return ",".join(f'{key}="{escaped(value)}"' for key, value in values.items())
