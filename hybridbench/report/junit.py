"""junit.xml: one test case per gate, for CI systems that show and track tests.

The format is Surefire's dialect, which Jenkins, GitLab, GitHub actions and Buildkite all read: a
failure is a leak or a regression, a skipped case is undecided, an error has no answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Final
from xml.etree import ElementTree as ET

from hybridbench.report.document import Document, Gate, GateState

# XML 1.0 cannot represent these, escaped or not, and a log line may contain any of them.
_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENT: Final = {
    GateState.FAILED: "failure",
    GateState.SKIPPED: "skipped",
    GateState.ERROR: "error",
}
_DETAIL_MAX: Final = 50_000


def render_junit(document: Document) -> str:
    """Return the gates of ``document`` as a JUnit report; valid XML whatever the run logged."""
    counts = _counts(document.gates, document.suite)
    # Jenkins' schema (junit-10.xsd) has no such count here, and its xUnit plugin refuses the file.
    del counts["skipped"]
    root = ET.Element("testsuites", counts)
    gates = sorted(document.gates, key=lambda gate: _first_of_group(document.gates, gate.group))
    for group, members in groupby(gates, key=lambda gate: gate.group):
        name = f"{document.suite}.{group}"
        cases = list(members)
        suite = ET.SubElement(root, "testsuite", _counts(cases, name))
        properties = ET.SubElement(suite, "properties")
        for key, value in _properties(document):
            ET.SubElement(properties, "property", {"name": key, "value": _xml(value)})
        for gate in cases:
            _add_case(suite, name, gate)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _add_case(suite: ET.Element, classname: str, gate: Gate) -> None:
    attributes = {
        "classname": _xml(classname),
        "name": _xml(gate.name),
        "time": f"{gate.measured_s or 0.0:.3f}",
    }
    case = ET.SubElement(suite, "testcase", attributes)
    element = _ELEMENT.get(gate.state)
    if element is None:
        ET.SubElement(case, "system-out").text = _xml(str(gate.text))
        return
    outcome = {"message": _xml(str(gate.text))}
    if element != "skipped":
        outcome["type"] = _xml(gate.group)
    # Some readers show only the message, some only the body.
    ET.SubElement(case, element, outcome).text = _xml(f"{gate.text}\n{gate.detail}".strip())


def _counts(gates: Sequence[Gate], name: str) -> dict[str, str]:
    states = [gate.state for gate in gates]
    return {
        "name": _xml(name),
        "tests": str(len(states)),
        "failures": str(states.count(GateState.FAILED)),
        "errors": str(states.count(GateState.ERROR)),
        "skipped": str(states.count(GateState.SKIPPED)),
        "time": f"{max((gate.measured_s or 0.0 for gate in gates), default=0.0):.3f}",
    }


def _properties(document: Document) -> tuple[tuple[str, str], ...]:
    return (
        ("hybridbench.version", document.tool_version),
        ("hybridbench.id", document.run_id),
        ("hybridbench.about", str(document.subtitle)),
        ("hybridbench.answer", document.badge.word),
        ("hybridbench.exit_code", str(document.exit_code)),
    )


def _first_of_group(gates: Sequence[Gate], group: str) -> int:
    return next(index for index, gate in enumerate(gates) if gate.group == group)


def _xml(text: str) -> str:
    cut = text if len(text) <= _DETAIL_MAX else text[: _DETAIL_MAX - 1] + "…"
    return _NOT_XML.sub("\ufffd", cut)
