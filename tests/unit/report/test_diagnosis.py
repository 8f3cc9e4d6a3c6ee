"""The diagnosis as a section of every report and as a file for machines."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console

from hybridbench.analysis.record import RunRecord
from hybridbench.records.events import Allocations, Reclaim
from hybridbench.records.finding import VerdictKind
from hybridbench.records.heap import CallSite, Cycle
from hybridbench.records.manifest import manifest_from_json
from hybridbench.records.verdict import Verdict
from hybridbench.report.build import build_document
from hybridbench.report.console import render_console, render_diagnosis
from hybridbench.report.diagnosis import diagnosis_text, stored_evidence
from hybridbench.report.html import render_html
from hybridbench.report.markdown import render_markdown
from hybridbench.report.write import write_so_far
from hybridbench.rundir.layout import published_schema
from tests.unit.analysis.diagnoses import MIB, dragged, ladder_record, survey
from tests.unit.report import synthetic
from tests.unit.report.synthetic import manifest

CYCLE = Cycle(("TreeNode.mamba_next", "TreeNode.parent"), 0.97)
VERDICT = Verdict(VerdictKind.LEAK, "it leaks", (), (), None, "")


def leaking() -> RunRecord:
    now = survey(60 * MIB, 17_270, [CYCLE], [dragged(500, 2 * MIB)])
    record = ladder_record(base=(100, 90, 90, 70), end=(164, 154, 94, 72), now=now)
    return RunRecord(manifest_from_json(manifest()), record.series, record.events)


def plain(page: object) -> str:
    console = Console(width=2000, no_color=True)
    with console.capture() as captured:
        console.print(page)
    return captured.get()


@pytest.mark.parametrize("kind", ["html", "markdown", "console"])
def test_every_report_has_the_paragraph_and_the_split(kind: str) -> None:
    document = build_document(leaking(), VERDICT)
    said = {
        "html": lambda: render_html(document).replace("<wbr>", ""),
        "markdown": lambda: render_markdown(document).replace("\\", ""),
        "console": lambda: plain(render_console(document)),
    }[kind]()

    assert "Diagnosis" in said
    assert "17,270 evicted nodes" in said
    assert "mamba_next" in said
    assert "waiting for the collector" in said
    assert "+60.0 MiB" in said


@pytest.mark.parametrize("kind", ["html", "markdown", "console"])
def test_a_run_without_a_ladder_has_no_such_section(kind: str) -> None:
    record = leaking()
    document = build_document(RunRecord(record.manifest, record.series, ()), VERDICT)
    said = {
        "html": lambda: render_html(document),
        "markdown": lambda: render_markdown(document),
        "console": lambda: plain(render_console(document)),
    }[kind]()

    assert "Diagnosis" not in said


def with_allocations(record: RunRecord) -> RunRecord:
    stack = ("_add_leaf (engine/cache.py:267)", "insert (engine/cache.py:103)")
    recorded = Allocations(
        seconds=120.0,
        requests=392,
        sites=(CallSite(3 * MIB, 1859, stack),),
        t_s=record.events[-1].t_s + 200,
    )
    return RunRecord(record.manifest, record.series, [*record.events, recorded])


@pytest.mark.parametrize("kind", ["html", "markdown"])
def test_who_allocated_what_is_kept_stands_beside_who_holds_it(kind: str) -> None:
    document = build_document(with_allocations(leaking()), VERDICT)
    said = {
        "html": lambda: render_html(document).replace("<wbr>", "").replace("&lt;", "<"),
        "markdown": lambda: render_markdown(document).replace("\\", ""),
    }[kind]()

    assert "Allocated and never freed" in said
    assert "_add_leaf (engine/cache.py:267) < insert (engine/cache.py:103)" in said
    assert "2m more of traffic, 392 requests" in said
    assert document.diagnosis is not None
    assert "3.00 MiB in 1,859 blocks, was allocated in _add_leaf" in document.diagnosis.paragraph


def test_the_file_for_machines_has_the_allocations(tmp_path: Path) -> None:
    synthetic.write_reports(tmp_path, with_allocations(leaking()), VERDICT)

    stored = json.loads((tmp_path / "diagnosis.json").read_text("utf-8"))
    jsonschema.validate(stored, published_schema("diagnosis"))
    assert stored["allocations"]["sites"][0]["count"] == 1859


def test_diagnosis_json_follows_its_schema_and_goes_with_the_report(tmp_path: Path) -> None:
    synthetic.write_reports(tmp_path, leaking(), VERDICT)

    stored = json.loads((tmp_path / "diagnosis.json").read_text("utf-8"))
    jsonschema.validate(stored, published_schema("diagnosis"))
    assert stored["growth_bytes"] == 64 * MIB
    assert sum(part["size_bytes"] for part in stored["parts"]) == stored["growth_bytes"]
    assert stored["garbage"]["cycles"][0]["edges"] == ["TreeNode.mamba_next", "TreeNode.parent"]
    assert "17,270 evicted nodes" in stored["paragraph"]


def test_a_run_without_a_ladder_writes_no_such_file(tmp_path: Path) -> None:
    record = leaking()
    synthetic.write_reports(tmp_path, RunRecord(record.manifest, record.series, ()), VERDICT)

    assert not (tmp_path / "diagnosis.json").exists()


def test_the_command_s_page_has_chains_stages_and_cycles() -> None:
    found = diagnosis_text(leaking())
    assert found is not None

    said = plain(render_diagnosis(found))

    assert "Cache.root -> TreeNode.children -> TreeNode.mamba_next" in said
    assert "gc.collect, malloc_trim" in said
    assert "97% of the sampled cycles: TreeNode.mamba_next -> TreeNode.parent -> TreeNode" in said


def test_of_a_worker_that_was_not_asked_the_samples_are_told_and_how_to_ask_the_next() -> None:
    given = Reclaim(400 * MIB, 390 * MIB, 380 * MIB, 300 * MIB, t_s=9.0)
    said = "\n".join(stored_evidence(RunRecord(manifest_from_json(manifest()), {}, (given,))))

    assert "a full collection 80.0 MiB" in said
    assert said.endswith("--defect lru-reference-cycle --diagnose always")


def test_the_command_that_asks_has_no_second_answer_to_when() -> None:
    command = ("hybridbench", "soak", "--diagnose", "never", "--seed", "3")
    run = RunRecord(manifest_from_json(manifest(command=list(command))), {}, ())

    said = stored_evidence(run)[-1].strip()

    assert said == "hybridbench soak --seed 3 --diagnose always"


def test_the_evidence_so_far_has_names_of_its_own(tmp_path: Path) -> None:
    write_so_far(tmp_path, leaking(), VERDICT)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report-so-far.html",
        "report-so-far.md",
        "verdict-so-far.json",
    ]
