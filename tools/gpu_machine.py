"""Describe the machine for ``make gpu``: its GPU, versions, and missing packages."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.gpu_steps import ROOT

FACTS = """
import json, platform, torch
facts = {"python": platform.python_version(), "torch": torch.__version__}
try:
    import triton
    facts["triton"] = triton.__version__
except ImportError:
    facts["triton"] = "none"
if torch.cuda.is_available():
    card = torch.cuda.get_device_properties(0)
    facts |= {"card": card.name, "memory": f"{card.total_memory / 2**30:.0f} GiB"}
    facts["CUDA"] = torch.version.cuda
print(json.dumps(facts))
"""


def machine_facts() -> dict[str, str]:
    """Return versions, and the GPU if there is one; empty without PyTorch.

    Runs in a separate process, so that nothing stays on the device.
    """
    found = subprocess.run(
        [sys.executable, "-c", FACTS], capture_output=True, text=True, check=False
    )
    facts: dict[str, str] = json.loads(found.stdout) if found.returncode == 0 else {}
    return facts


def driver() -> str:
    """Version of the GPU's driver."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return _said(query).partition("\n")[0] or "unknown"


def commit() -> str:
    """The commit that is checked out."""
    changed = "" if not _said(["git", "status", "--porcelain"]) else ", with changes"
    return (_said(["git", "rev-parse", "HEAD"]) or "unknown") + changed


def _said(command: Sequence[str]) -> str:
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""


def missing_wheels(folder: Path) -> list[Path]:
    """Wheels in ``folder`` that this interpreter lacks or has in an older version."""
    missing = []
    for wheel in sorted(folder.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        try:
            here = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            here = "0"
        if _numbers(here) < _numbers(version):
            missing.append(wheel)
    return missing


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def install(wheels: Path, target: Path) -> str:
    """Install missing packages into ``target``; return the result as a phrase."""
    missing = missing_wheels(wheels)
    if missing:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
        ended = subprocess.run(
            [*pip, "--no-compile", "--target", str(target), *map(str, missing)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if ended.returncode:
            return f"FAILED: {ended.stderr.strip()[-300:]}"
    return f"{len(missing)} installed"


def environment_of(scratch: Path, site: Path) -> dict[str, str]:
    """The environment of all commands, in which they write only bytecode outside ``scratch``."""
    theirs = {
        k: v for k, v in os.environ.items() if k not in {"TRITON_INTERPRET", "PYTEST_ADDOPTS"}
    }
    # Keep bytecode: without it, every process would compile all of its imports.
    theirs.pop("PYTHONDONTWRITEBYTECODE", None)
    path = os.pathsep.join(filter(None, (str(ROOT), str(site), os.environ.get("PYTHONPATH"))))
    return theirs | {
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
    }
