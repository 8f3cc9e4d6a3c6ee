"""The site of docs/: every link leads to a file, and the generated reference names everything."""

from __future__ import annotations

import importlib.util
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from hybridbench.analysis.findings.kinds import finding_kinds
from hybridbench.defects.catalog import CONTROLS, DEFECTS, PLANTED
from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.metrics import METRICS
from hybridbench.workload.coverage import COVERAGE_COUNTERS
from hybridbench.workload.profile import profile_json_schema

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
assert SPEC is not None
assert SPEC.loader is not None
SITE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SITE)
REFERENCE: dict[str, str] = SITE.reference_pages()

PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "profiles").glob("*.md"),
    *(ROOT / "benchmarks").glob("*.md"),
    *(ROOT / "hybridbench").rglob("*.md"),
]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
KINDS = tuple(finding_kinds().values())


def pages_of(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    assert isinstance(parts, Iterable)
    return [page for part in parts for page in pages_of(part)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_to_a_file(path: Path) -> None:
    links = LINK.findall(path.read_text(encoding="utf-8"))

    missing = [
        link for link in links if "://" not in link and not (path.parent / link).resolve().exists()
    ]

    assert missing == []


def test_the_navigation_has_every_page_once() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    generated = {posixpath.join("reference", f"{name}.md") for name in REFERENCE}

    named = pages_of(config["nav"])

    assert sorted(named) == sorted(written | generated | set(SITE.OUTSIDE))


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("metrics", [*(metric.name for metric in METRICS), *COVERAGE_COUNTERS]),
        ("findings", list(finding_kinds())),
        ("exit-codes", [code.name for code in ExitCode]),
        ("defects", [defect.slug for defect in (*DEFECTS, *CONTROLS, *PLANTED)]),
        ("commands", ["## hybridbench soak", "## hybridbench nightly merge", "--threshold"]),
        ("profile-keys", ["`pools.mamba_slots`", "`aborts.queued`"]),
        ("schemas", ["## verdict.schema.json", "## manifest.schema.json"]),
    ],
)  # fmt: skip
def test_a_generated_page_names_everything(page: str, names: list[str]) -> None:
    assert [name for name in names if name not in REFERENCE[page]] == []


def test_every_exit_code_has_a_meaning() -> None:
    assert set(SITE.EXITS) == set(ExitCode)


def undescribed(schema: dict[str, object]) -> list[str]:
    """Return the profile keys without a description; a group's key may use the group's own."""
    groups = schema["$defs"]
    assert isinstance(groups, dict)
    return [
        f"{name}.{key}"
        for name, group in {"profile": schema, **groups}.items()
        for key, value in group["properties"].items()
        if not (value.get("description") or groups[value["$ref"].rsplit("/")[-1]]["description"])
    ]


def test_every_profile_key_metric_and_finding_has_a_plain_description() -> None:
    meanings = [metric.meaning for metric in METRICS] + [kind.meaning for kind in KINDS]

    assert undescribed(profile_json_schema()) == []
    assert [meaning for meaning in meanings if len(meaning.split()) < 3] == []
    assert all(kind.meaning.endswith(".") for kind in KINDS)
    assert len(set(meanings)) == len(meanings)
