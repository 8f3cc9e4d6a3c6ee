"""Soaks of the bundled engine on a CUDA device, for behaviour that needs a device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine.kernels.agreement import device_of

PLANTED = Path(__file__).parent / "planted"

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]


def soak(store: Path, *arguments: str) -> dict[str, Any]:
    """Return verdict.json of a short soak with life-size states."""
    device_of("cuda")
    command = [sys.executable, "-m", "hybridbench", "soak", "--device", "cuda", "--ui", "none"]
    model = ["--model", "qwen3-next-1b", "--dtype", "bfloat16", "--duration", "2m", "--extend", "0"]
    subprocess.run(
        [*command, *model, "--store", str(store), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    (run_dir,) = store.iterdir()
    verdict: dict[str, Any] = json.loads((run_dir / "verdict.json").read_text(encoding="utf-8"))
    return verdict


def growth(verdict: dict[str, Any], metric: str) -> dict[str, float]:
    """Return the hourly rate of ``metric`` and its interval."""
    (result,) = [one for one in verdict["metrics"] if one["metric"] == metric]
    rate: dict[str, float] = result["rate_per_hour"]
    return rate


def test_tensors_kept_on_the_device_are_found_and_healthy_traffic_keeps_none(
    tmp_path: Path,
) -> None:
    healthy = soak(tmp_path / "healthy")
    assert healthy["verdict"] == "CLEAN"
    for kind in ("device", "pinned"):
        metric = f"{kind}_allocated_bytes"
        leaking = soak(tmp_path / kind, "--defect", str(PLANTED / f"{kind}_leak.py"))

        assert growth(healthy, metric)["upper"] < 2**20 < 2**30 < growth(leaking, metric)["lower"]


def test_a_reference_cycle_is_found_by_forked_heap_scans(tmp_path: Path) -> None:
    verdict = soak(tmp_path / "store", "--defect", "lru-reference-cycle")

    assert verdict["verdict"] == "LEAK"
    subjects = {f["subject"]: f["driver"] for f in verdict["findings"] if f["verdict"] == "LEAK"}
    assert subjects["TreeNode"] == "nodes_evicted"
