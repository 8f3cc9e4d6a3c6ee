"""Real soaks of minutes with known outcomes; part of the deep set."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PLANTED = Path(__file__).parent / "planted"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]


def soak(store: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and verdict.json of a soak of the default model."""
    command = [sys.executable, "-m", "hybridbench", "soak", "--model", "qwen3-next"]
    result = subprocess.run(
        [*command, "--ui", "none", "--store", str(store), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    (run_dir,) = store.iterdir()
    verdict: dict[str, Any] = json.loads((run_dir / "verdict.json").read_text(encoding="utf-8"))
    assert "Traceback" not in result.stderr, result.stderr
    return result.returncode, verdict


def findings(verdict: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [finding for finding in verdict["findings"] if finding["kind"] == kind]


@pytest.mark.parametrize(
    "setting",
    [[], ["--ballast", "0"], ["--gc", "freeze-after-warmup"]],
    ids=["ballast", "bare", "freeze"],
)
def test_reference_cycles_are_a_leak_of_tree_nodes_per_eviction_and_healthy_is_none(
    tmp_path: Path, setting: list[str]
) -> None:
    code, verdict = soak(
        tmp_path / "leak", "--duration", "5m", "--defect", "lru-reference-cycle", *setting
    )
    healthy_code, _ = soak(tmp_path / "healthy", "--duration", "5m", *setting)

    assert code == 10
    (finding,) = [f for f in verdict["findings"] if f["kind"].startswith("instances-")]
    assert finding["subject"] == "TreeNode"
    assert finding["driver"] == "nodes_evicted"
    assert finding["rates"][0]["value"] > 0.5
    assert healthy_code == 0


def test_refused_requests_that_keep_their_slot_are_an_exact_leak(tmp_path: Path) -> None:
    squeeze = ["--profile", "admission-squeeze", "--duration", "2m"]
    code, verdict = soak(tmp_path / "leak", *squeeze, "--defect", "mamba-adder-reject")
    healthy_code, _ = soak(tmp_path / "healthy", *squeeze)

    assert code == 10
    (finding,) = findings(verdict, "waiting-holds-slots")
    assert finding["subject"].startswith("mamba")
    assert finding["driver"] == "refusals"
    assert healthy_code == 0


def test_a_leak_nobody_named_is_found_by_its_growth(tmp_path: Path) -> None:
    code, verdict = soak(tmp_path, "--duration", "5m", "--defect", str(PLANTED / "foreign_leak.py"))

    assert code == 10
    (finding,) = findings(verdict, "growth")
    # The heap grows by 1 GiB/h; malloc leaves holes between the kept objects, so RSS grows by more.
    rate = finding["rates"][0]
    assert rate["lower"] < 1.4 * 2**30
    assert rate["upper"] > 1.0 * 2**30


def test_the_twin_of_that_leak_is_clean(tmp_path: Path) -> None:
    code, _ = soak(tmp_path, "--duration", "5m", "--defect", str(PLANTED / "foreign_twin.py"))

    assert code == 0


@pytest.mark.parametrize("gb_per_h", ["3.0", "3.35", "3.7"])
def test_native_growth_is_a_leak_within_fifteen_minutes(
    tmp_path: Path, gb_per_h: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_GB_PER_H", gb_per_h)
    planted = PLANTED / "native_growth.py"
    began_s = time.monotonic()
    code, verdict = soak(tmp_path / "leak", "--duration", "5m", "--defect", str(planted))

    assert code == 10
    (finding,) = findings(verdict, "growth")
    assert finding["subject"] == "rss_anon_swap_bytes"
    assert finding["rates"][0]["lower"] > 0.7 * float(gb_per_h) * 1e9
    assert verdict["window_s"][1] < 900.0, time.monotonic() - began_s
