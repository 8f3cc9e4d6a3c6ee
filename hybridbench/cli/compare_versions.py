"""Carry out ``compare`` for the kind of its versions: servers, stored runs or live engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hybridbench.cli.compare_options import (
    CompareOptions,
    changed,
    comparison_terms,
    of_alternating_workers,
)
from hybridbench.cli.compare_servers import compared_servers
from hybridbench.cli.options import CompareUi, chosen_model, parse_overrides, parse_seconds
from hybridbench.cli.user_settings import typed_command
from hybridbench.foundation.errors import ErrorCode, ExitCode, UsageError
from hybridbench.foundation.safe_output import echo
from hybridbench.foundation.units import format_duration

if TYPE_CHECKING:
    from hybridbench.analysis.comparison.records import ComparisonTerms
    from hybridbench.compare.plan import ComparePlan
    from hybridbench.compare.sides import Side

_VERSIONS_MAX = 8


def compared(versions: Sequence[str], options: CompareOptions) -> tuple[Path, ExitCode | None]:
    """Compare ``versions``; return the result's directory, and the exit code if interrupted.

    Raises:
        UsageError, ConfigError: an option or a version is invalid.
        WorkerFailedError: a worker cannot be started.
        RunDirectoryError: the store cannot be written, or a stored run cannot be read.
    """
    if not 2 <= len(versions) <= _VERSIONS_MAX:
        raise UsageError(
            f"compare takes 2 to {_VERSIONS_MAX} versions, got {len(versions)}; the first is the "
            "baseline.",
            code=ErrorCode.BAD_VALUE,
        )
    terms = comparison_terms(options)
    max_time_s = parse_seconds("--max-time", options.max_time)
    from hybridbench.compare.sides import is_stored, resolved_sides
    from hybridbench.targets.engines.catalog import is_server_name

    if any(is_server_name(name) for name in versions):
        return compared_servers(versions, options)
    if any(is_stored(name) for name in versions):
        from hybridbench.compare.stored import StoredPlan, compare_stored

        _tell_unused(options)
        with resolved_sides(versions, options.targets) as sides:
            stored = StoredPlan(
                sides, options.store, terms, frozenset(options.allowed), max_time_s,
                options.thresholds, str(options.ui), typed_command(),
            )  # fmt: skip
            outcome = compare_stored(stored)
        return outcome.directory, outcome.exit_hint
    # Refuse an invalid profile before making a worktree.
    make_plan = _live_plan(versions, options, terms, max_time_s)
    from hybridbench.compare.run import run_comparison

    with resolved_sides(versions, options.targets) as sides:
        outcome = run_comparison(make_plan(sides))
    return outcome.directory, outcome.exit_hint


def settings_of(versions: Sequence[str], options: CompareOptions) -> str:
    """The digest of a comparison's settings, independent of its versions.

    Raises:
        UsageError, ConfigError: an option is invalid.
    """
    max_time_s = parse_seconds("--max-time", options.max_time)
    plan = _live_plan(versions, options, comparison_terms(options), max_time_s)(())
    return plan.settings_digest()


def _tell_unused(options: CompareOptions) -> None:
    """Warn about options without effect on stored runs; a file or a plan may set them for all."""
    usual = CompareOptions()
    of_traffic = changed(
        ("--model", options.model, usual.model),
        ("--profile", options.profile, usual.profile),
        ("--seed", options.seed, usual.seed),
        ("--set", options.set_, usual.set_),
    )
    given = [*of_traffic, *of_alternating_workers(options)]
    if given:
        echo(
            f"hybridbench: without effect: {', '.join(given)}; stored runs are compared as they "
            "are, and a live version is soaked like the first of them.",
            err=True,
        )


def _live_plan(
    versions: Sequence[str], options: CompareOptions, terms: ComparisonTerms, max_time_s: float
) -> Callable[[tuple[Side, ...]], ComparePlan]:
    from hybridbench.cli.chosen_defects import chosen_defects
    from hybridbench.compare.plan import SHORTEST_BLOCK_S, ComparePlan
    from hybridbench.compare.sides import defect_words

    block_s = parse_seconds("--block", options.block)
    if block_s < SHORTEST_BLOCK_S:
        raise UsageError(
            f"{options.block}: a block below {format_duration(SHORTEST_BLOCK_S)} has too "
            "few requests to compare; use a longer one.",
            option="--block",
        )
    if max_time_s < block_s * len(versions):
        raise UsageError(
            f"{options.max_time}: too short for one block of each version; use at least "
            f"{format_duration(block_s * len(versions))}, or a shorter --block.",
            option="--max-time",
        )
    slice_s = parse_seconds("--slice", options.slice_)
    overrides = parse_overrides(options.set_, options.gc, options.ballast)
    defects = chosen_defects(defect_words(versions))
    source, profile = defects.profile_with(overrides, options.profile)
    model = chosen_model(options.model, profile, source)

    def make(sides: tuple[Side, ...]) -> ComparePlan:
        return ComparePlan(
            sides=sides,
            profile=profile,
            model=model,
            store=options.store,
            seed=profile.seed if options.seed is None else options.seed,
            terms=terms,
            block_s=block_s,
            slice_s=slice_s,
            max_time_s=max_time_s,
            renew_every=options.renew_every,
            thresholds=options.thresholds,
            allowed=frozenset(options.allowed),
            same_engine=options.same_engine,
            profile_source=source,
            ui=str(CompareUi.PLAIN if options.ui is CompareUi.AUTO else options.ui),
            command=typed_command(),
        )

    return make
