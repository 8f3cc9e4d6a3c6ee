"""The golden files: for each kind of finding, what the cases yield of it.

    python -m tests.golden.files

writes them anew; read the difference before you commit it.
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

# By case, the findings of one kind in the order of the verdict.
Found = Mapping[str, list[Mapping[str, JsonValue]]]


def found_by_kind() -> Mapping[str, Found]:
    """What judging every case yields, as it is stored in verdict.json."""
    kinds: dict[str, dict[str, list[Mapping[str, JsonValue]]]] = {}
    for name, make in CASES.items():
        verdict = judge(make())
        stored = json.loads(json.dumps(verdict_to_json(verdict, None)["findings"]))
        for finding, said in zip(verdict.findings, stored, strict=True):
            cases = kinds.setdefault(str(finding.kind), {})
            cases.setdefault(name, []).append({**said, "exact": finding.exact})
    return kinds


def golden() -> Mapping[str, Found]:
    """What was approved."""
    return {
        path.stem.replace("_", " "): json.loads(path.read_text("utf-8"))
        for path in sorted(FOLDER.glob("*.json"))
    }


def approve() -> None:
    """Take what is found now for right."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for kind, cases in found_by_kind().items():
        text = json.dumps(cases, indent=1, sort_keys=True, ensure_ascii=False)
        (FOLDER / f"{kind.replace(' ', '_')}.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    approve()
