"""junit.xml: CI services can read it, and it is valid whatever a worker has logged."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

from hybridbench.report.build import build_document
from hybridbench.report.document import Document, Gate, GateState
from hybridbench.report.junit import render_junit
from tests.unit.report import synthetic


def document() -> Document:
    record = synthetic.record_of(300.0)
    return build_document(record, synthetic.leak_verdict(record))


def test_every_gate_is_one_case_and_the_counts_agree() -> None:
    made = document()

    root = ET.fromstring(render_junit(made))

    cases = root.findall(".//testcase")
    assert len(cases) == len(made.gates) == int(root.attrib["tests"])
    assert len(root.findall(".//failure")) == int(root.attrib["failures"]) > 0
    names = {(case.attrib["classname"], case.attrib["name"]) for case in cases}
    assert len(names) == len(cases)
    prefix = "hybridbench.qwen3-next.tiny.chat-churn.lru-reference-cycle"
    assert all(name.startswith(f"{prefix}.") for name, _ in names)
    # All attributes that Jenkins' junit-10.xsd allows for the root.
    assert set(root.attrib) <= {"name", "time", "tests", "failures", "errors"}
    for suite in root.findall("testsuite"):
        assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))


def test_a_failure_has_the_slope_in_its_message_and_the_evidence_in_its_body() -> None:
    root = ET.fromstring(render_junit(document()))

    case = root.find(".//testcase[@name='instances-wait-for-collector']/failure")
    assert case is not None
    assert "+0.930 nodes per evicted node (95% interval" in case.attrib["message"]
    assert "strays rise with nodes_evicted" in (case.text or "")


def test_skipped_and_error_have_their_own_elements() -> None:
    gates = (
        Gate("open", "a", GateState.SKIPPED, "too short"),
        Gate("dead", "b", GateState.ERROR, "killed"),
        Gate("fine", "a", GateState.PASSED, "bounded"),
    )

    root = ET.fromstring(render_junit(replace(document(), gates=gates)))

    skipped = root.find(".//testcase[@name='open']/skipped")
    error = root.find(".//testcase[@name='dead']/error")
    assert skipped is not None
    assert skipped.attrib["message"] == "too short"
    assert error is not None
    assert [s.attrib["name"].rsplit(".")[-1] for s in root.findall("testsuite")] == ["a", "b"]


def test_any_bytes_of_a_log_make_valid_xml() -> None:
    hostile = "\x00\x1b[31m ]]> <a & 'b' \"c\" \ud800 \uffff \x7f 🜁\r\n"
    gate = Gate(hostile, "g", GateState.FAILED, hostile, detail=hostile * 10_000)

    text = render_junit(replace(document(), gates=(gate,), subtitle=hostile))

    root = ET.fromstring(text.encode("utf-8"))
    failure = root.find(".//failure")
    assert failure is not None
    assert "🜁" in failure.attrib["message"]
    assert "]]> <a & 'b'" in failure.attrib["message"]
    assert len(text) < 200_000
