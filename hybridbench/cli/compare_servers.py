"""``compare`` for third-party servers: soak each alone, under the same requests."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hybridbench.cli.compare_options import CompareOptions, of_alternating_workers
from hybridbench.cli.observed import Course, ProbeOptions, TargetOptions
from hybridbench.cli.run_options import SHORTEST_S, SoakUi, StopMode
from hybridbench.cli.soak_server import Requests, of_prepared, server_plan
from hybridbench.cli.user_settings import typed_command
from hybridbench.foundation.errors import ErrorCode, ExitCode, UsageError
from hybridbench.foundation.foreign import SEED_MAX
from hybridbench.foundation.units import format_duration

if TYPE_CHECKING:
    from hybridbench.analysis.comparison.records import ComparisonTerms
    from hybridbench.runs.watch import WatchPlan


def compared_servers(
    versions: Sequence[str], options: CompareOptions, terms: ComparisonTerms, max_time_s: float
) -> tuple[Path, ExitCode | None]:
    """Soak the servers among ``versions`` and compare all; return the same as ``compared``.

    They share ``max_time_s``, which excludes their start-up time.

    Raises:
        UsageError, ConfigError: an option or a version is invalid.
        WorkerFailedError: a server cannot be started.
        RunDirectoryError: the store cannot be written, or a stored run cannot be read.
    """
    from hybridbench.compare.sides import server_sides
    from hybridbench.compare.stored import StoredPlan, compare_stored

    _refuse_of_workers(options)
    sides = server_sides(versions)
    names = dict.fromkeys(side.name for side in sides if side.run_dir is None)
    count = sum(side.run_dir is None for side in sides)
    each_s = max_time_s / count
    if each_s < SHORTEST_S:
        raise UsageError(
            f"{options.max_time}: too short for {count} servers to be judged; use at least "
            f"{format_duration(count * SHORTEST_S)}.",
            option="--max-time",
        )
    # The seed determines the schedule of requests, which must be the same for all servers.
    seed = secrets.randbelow(SEED_MAX) if options.seed is None else options.seed
    outcome = compare_stored(
        StoredPlan(
            sides, options.store, terms, frozenset(options.allowed), max_time_s,
            options.thresholds, str(options.ui), typed_command(),
            {name: _soak_of(name, options, seed, each_s) for name in names},
        )
    )  # fmt: skip
    return outcome.directory, outcome.exit_hint


def _soak_of(name: str, options: CompareOptions, seed: int, duration_s: float) -> WatchPlan:
    from hybridbench.compare.plan import of_one_run

    asked = Requests(
        url="", api=None, stream=None, vocab=None, model=options.model, profile=options.profile,
        seed=seed, set_=options.set_, trace=None, answers=None,
    )  # fmt: skip
    target = TargetOptions(None, None, None, None, None)
    asked, target = of_prepared(name, options.targets, asked, target)
    course = Course(
        options.store, f"{duration_s:.0f}s", SoakUi(str(options.ui)), StopMode.NEVER, "0",
        of_one_run(options.thresholds),
    )  # fmt: skip
    return server_plan(asked, target, ProbeOptions(None, None, None, True, None), course)


def _refuse_of_workers(options: CompareOptions) -> None:
    """
    Raises:
        UsageError: an option applies only to engines in our worker, or to alternating blocks.
    """
    for option in of_alternating_workers(options)[:1]:
        raise UsageError(
            "applies only to engines that run in workers and alternate; servers are soaked one "
            "after the other, within --max-time in total.",
            code=ErrorCode.OPTION_CONFLICT,
            option=option,
        )
