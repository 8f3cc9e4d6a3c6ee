"""Fakes of the programs that scheduler scripts call: they record their arguments and do nothing."""

from __future__ import annotations

import os
from pathlib import Path


def fake_tools(folder: Path, *, plan: str = "") -> dict[str, str]:
    """Return an environment in which sbatch and hybridbench record their arguments.

    Each call is a line of ``$CALLS``, its words separated by ``|``.  `hybridbench nightly plan`
    prints ``plan``.
    """
    tools = folder / "bin"
    tools.mkdir()
    (folder / "plan.json").write_text(plan, encoding="utf-8")
    shown = f'[ "$2" != plan ] || cat "{folder}/plan.json"'
    for name, says in (("sbatch", "echo 77"), ("hybridbench", shown)):
        script = tools / name
        script.write_text(
            f'#!/bin/sh\nprintf "%s|" {name} "$@" >> "$CALLS"\necho >> "$CALLS"\n{says}\n',
            encoding="utf-8",
        )
        script.chmod(0o755)
    return {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(folder / "calls")}
