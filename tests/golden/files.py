"""The golden files: for each kind of finding, the findings that the cases yield.

    python -m tests.golden.files

rewrites them; read the diff before you commit it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hybridbench.analysis.judge import judge
from hybridbench.records.json_value import JsonValue
from hybridbench.records.stored_verdict import verdict_to_json
from tests.golden.cases import CASES

APPROVE: Final = "python -m tests.golden.files"
FOLDER: Final = Path(__file__).parent / "findings"

# For each case, the findings of one kind in the verdict's order.
Found = Mapping[str, list[Mapping[str, JsonValue]]]


def found_by_kind() -> Mapping[str, Found]:
    """Judge every case; return the findings as stored in verdict.json."""
    kinds: dict[str, dict[str, list[Mapping[str, JsonValue]]]] = {}
    for name, make in CASES.items():
        verdict = judge(make())
        stored = json.loads(json.dumps(verdict_to_json(verdict, None)["findings"]))
        for finding, said in zip(verdict.findings, stored, strict=True):
            cases = kinds.setdefault(str(finding.kind), {})
            cases.setdefault(name, []).append({**said, "exact": finding.exact})
    return kinds


def golden() -> Mapping[str, Found]:
    """Return the approved findings."""
    return {
        path.stem.replace("_", " "): json.loads(path.read_text("utf-8"))
        for path in sorted(FOLDER.glob("*.json"))
    }


def approve() -> None:
    """Approve the current findings."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for kind, cases in found_by_kind().items():
        text = json.dumps(cases, indent=1, sort_keys=True, ensure_ascii=False)
        (FOLDER / f"{kind.replace(' ', '_')}.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    approve()
