"""One soak of the recall measurement, in a separate process.

``python -m hybridbench.selftest.mutant_soak DEFECT SECONDS STORE PROFILE [KEY=VALUE ...]``; the
process that started it reads the run directory during the soak, and ends it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hybridbench.records.manifest import Options
from hybridbench.runs.plan import SoakPlan
from hybridbench.runs.soak import run_soak
from hybridbench.workload.catalog import load_profile

# Creating a million objects at boot would take as long as the soak.
_BALLAST: Final = "20000"
# Lost requests would keep the engine busy for longer than the traffic itself.
_DRAIN_S: Final = 15.0
_OPTIONS: Final = Options(watchdog_s=15.0, diagnose="never", answers_s=10.0)


def main(arguments: Sequence[str]) -> int:
    """Run the soak described by the arguments."""
    defect, seconds, store, name, *settings = arguments
    overrides = dict(setting.split("=", 1) for setting in settings)
    profile = load_profile(name).with_overrides({"ballast.objects": _BALLAST, **overrides})
    plan = SoakPlan(
        profile=profile,
        model=profile.model,
        store=Path(store),
        duration_s=float(seconds),
        seed=profile.seed,
        defects=(defect,),
        profile_source=name,
        ui="none",
        options=_OPTIONS,
        drain_limit_s=_DRAIN_S,
    )
    run_soak(plan)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
