"""``compare`` for third-party servers: soak each alone, under the same requests."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hybridbench.cli.compare_options import (
    CompareOptions,
    comparison_terms,
    of_alternating_workers,
)
from hybridbench.cli.observed import Course, ProbeOptions, TargetOptions
from hybridbench.cli.options import parse_seconds
from hybridbench.cli.run_options import SHORTEST_S, SoakUi, StopMode
from hybridbench.cli.soak_server import Requests, of_prepared, server_plan
from hybridbench.cli.user_settings import typed_command
from hybridbench.foundation.errors import ErrorCode, ExitCode, UsageError
from hybridbench.foundation.foreign import SEED_MAX
from hybridbench.foundation.units import format_duration

if TYPE_CHECKING:
    from hybridbench.compare.stored import StoredPlan
    from hybridbench.runs.watch import WatchPlan


def compared_servers(
    versions: Sequence[str], options: CompareOptions, runs: Mapping[str, Path] | None = None
) -> tuple[Path, ExitCode | None]:
    """Soak the servers among ``versions`` and compare all; return the same as ``compared``.

    They share ``--max-time``, which excludes their start-up time.  Those with a run in ``runs``,
    from an earlier comparison with the same options, are not soaked again.

    Raises:
        UsageError, ConfigError: an option or a version is invalid.
        WorkerFailedError: a server cannot be started.
        RunDirectoryError: the store cannot be written, or a stored run cannot be read.
    """
    from hybridbench.compare.stored import compare_stored

    outcome = compare_stored(_plan_of(versions, options, runs or {}))
    return outcome.directory, outcome.exit_hint


def settings_of_servers(versions: Sequence[str], options: CompareOptions) -> str:
    """The digest of a comparison's settings, independent of the releases of the servers.

    Raises:
        UsageError, ConfigError: an option or a version is invalid.
    """
    settings = _plan_of(versions, options, {}).settings
    assert settings is not None  # as no version is a stored run
    return settings


def _plan_of(
    versions: Sequence[str], options: CompareOptions, runs: Mapping[str, Path]
) -> StoredPlan:
    from hybridbench.compare.plan import digest_of
    from hybridbench.compare.sides import server_sides
    from hybridbench.compare.stored import StoredPlan

    _refuse_of_workers(options)
    terms, max_time_s = comparison_terms(options), parse_seconds("--max-time", options.max_time)
    sides = server_sides(versions)
    count = sum(side.kind == "server" for side in sides)
    each_s = max_time_s / count
    if each_s < SHORTEST_S:
        raise UsageError(
            f"{options.max_time}: too short for {count} servers to be judged; use at least "
            f"{format_duration(count * SHORTEST_S)}.",
            option="--max-time",
        )
    # The seed determines the schedule of requests, which must be the same for all servers.
    seed = secrets.randbelow(SEED_MAX) if options.seed is None else options.seed
    sides = tuple(replace(side, run_dir=runs.get(side.name, side.run_dir)) for side in sides)
    soaks = {
        side.name: _soak_of(side.name, options, seed, each_s)
        for side in sides
        if side.run_dir is None
    }
    traffic = next(iter(soaks.values())).traffic
    assert traffic is not None
    settings = digest_of(
        profile=traffic.profiles[0].resolved(), model=options.model, seed=options.seed,
        terms=asdict(terms), thresholds=options.thresholds, each_s=each_s,
    )  # fmt: skip
    return StoredPlan(
        sides, options.store, terms, frozenset(options.allowed), max_time_s, options.thresholds,
        str(options.ui), typed_command(), soaks,
        settings if count == len(sides) else None,
    )  # fmt: skip


def _soak_of(name: str, options: CompareOptions, seed: int, duration_s: float) -> WatchPlan:
    from hybridbench.compare.plan import of_one_run

    profiles = [] if options.profile is None else [options.profile]
    asked = Requests(
        url="", api=None, stream=None, vocab=None, model=options.model, profiles=profiles,
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
