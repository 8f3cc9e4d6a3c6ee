"""/metrics follows the exposition format and the naming rules of Prometheus."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hybridbench.foundation.metrics import METRICS, Kind, Unit, spec_of
from hybridbench.records.manifest import manifest_from_json
from hybridbench.report.prometheus import family_of, render_prometheus
from tests.unit.report.synthetic import manifest

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
SAMPLED = (Kind.LEVEL, Kind.COUNTER, Kind.WINDOW)
RESERVED = ("_total", "_count", "_sum", "_bucket", "_created", "_info")


@dataclass
class Parsed:
    kind: str = ""
    help: str = ""
    values: dict[frozenset[tuple[str, str]], float] = field(default_factory=dict)


def parsed(text: str) -> dict[str, Parsed]:
    """Return the families of ``text``: HELP, TYPE, then the samples of one name, each once."""
    assert text.endswith("\n")
    families: dict[str, Parsed] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, meaning = line.split(" ", 3)
            assert re.fullmatch(NAME, name)
            assert name not in families
            families[name] = Parsed(help=meaning)
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == name
            assert not families[name].kind
            assert not families[name].values
            families[name].kind = line.split(" ")[3]
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample is not None, line
            assert sample.group(1) == name
            labels = frozenset(
                (key, re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), value))
                for key, value in re.findall(LABEL, sample.group(2) or "")
            )
            assert labels not in families[name].values
            families[name].values[labels] = float(sample.groups()[-1])
    assert all(family.kind in ("gauge", "counter") for family in families.values())
    assert all(family.help and family.values for family in families.values())
    return families


def of(samples: dict[str, float]) -> dict[str, Parsed]:
    return parsed(render_prometheus(manifest_from_json(manifest()), samples, 12.5))


def labelled(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def test_every_declared_metric_follows_the_conventions() -> None:
    samples = {
        spec.name.replace("*", "x"): float(i)
        for i, spec in enumerate(METRICS)
        if spec.kind in SAMPLED
    }
    assert all(spec_of(name) is not None for name in samples)

    families = of(samples)

    assert len(families) == len(samples) + 2
    for name, family in families.items():
        assert name.startswith("hybridbench_")
        assert not re.search(r"_(ms|s|kib|mib)(_|$)", name), name
        if family.kind == "counter":
            assert name.endswith("_total")
        else:
            assert not name.removesuffix("_run_info").endswith(RESERVED), name


def test_base_units_end_a_name_and_scale_its_value() -> None:
    families = of({"ttft_ms_p50": 250.0, "worker_cpu_s": 3.0, "rss_bytes": 2e9})

    assert families["hybridbench_ttft_p50_seconds"].values == {labelled(): 0.25}
    assert families["hybridbench_worker_cpu_seconds_total"].values == {labelled(): 3.0}
    assert families["hybridbench_rss_bytes"].values == {labelled(): 2e9}


def test_what_the_stars_of_a_family_stand_for_are_labels() -> None:
    families = of({"pool.kv.total": 8.0, "pool.mamba.total": 4.0, "lost_taken.kv.retracts": 2.0})

    assert families["hybridbench_pool_total_slots"].values == {
        labelled(pool="kv"): 8.0,
        labelled(pool="mamba"): 4.0,
    }
    assert families["hybridbench_lost_taken_slots_total"].values == {
        labelled(pool="kv", event="retracts"): 2.0
    }


def test_any_text_survives_in_a_label() -> None:
    about = manifest()
    odd = 'a "quoted" \\ path\nof two lines'
    about["run_id"] = odd

    text = render_prometheus(
        manifest_from_json(about), {"container.a.b.len": 1.0, "rss_bytes": float("nan")}, 0.0
    )

    (labels,) = parsed(text)["hybridbench_run_info"].values
    assert dict(labels)["run_id"] == odd
    assert parsed(text)["hybridbench_container_len"].values == {labelled(container="a.b"): 1.0}
    assert "hybridbench_rss_bytes" not in parsed(text)


def test_names_stay_apart() -> None:
    names = [family_of(spec).name for spec in METRICS]

    assert len(set(names)) == len(names)
    assert {spec.unit for spec in METRICS} == set(Unit)
