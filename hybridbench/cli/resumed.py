"""``soak --resume RUN_DIR``: check the options given with it, and continue the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hybridbench.cli.options import parse_seconds
from hybridbench.cli.user_settings import typed_command
from hybridbench.foundation.errors import ExitCode, UsageError
from hybridbench.foundation.units import format_duration

if TYPE_CHECKING:
    from hybridbench.records.manifest import Manifest

# Options for the display and the run's end may change on --resume; the others must stay the same.
_FREE = frozenset(
    {
        "resume",
        "ui",
        "stop",
        "diagnose",
        "on_leak",
        "format_",
        "output",
        "listen",
        "quiet",
        "verbose",
    }
)
_STORED: Mapping[str, Callable[[Manifest], object]] = {
    "model": lambda run: run.model.name,
    "profile": lambda run: [run.profile.source or ""],
    "duration": lambda run: run.planned_duration_s,
    "defect": lambda run: run.defects,
    "seed": lambda run: run.seed,
    "device": lambda run: run.model.device,
    "dtype": lambda run: run.model.dtype,
    "malloc": lambda run: run.malloc.get("mode"),
    "watchdog": lambda run: run.options.watchdog_s,
    "memray": lambda run: run.options.memray_s,
    "extend": lambda run: run.options.extend_s,
    "answers": lambda run: run.options.answers_s,
}
_DURATIONS = frozenset({"duration", "watchdog", "memray", "extend", "answers"})


def resume(
    run_dir: Path, given: Mapping[str, object], hold_s: float
) -> tuple[Path, ExitCode | None]:
    """Continue the run in ``run_dir``.

    Args:
        run_dir: an interrupted run.
        given: the options on the command line, by parameter name.
        hold_s: how long to keep a leaking worker alive, if that option is in ``given``.

    Returns:
        The run directory, and the exit code if the run was interrupted.

    Raises:
        UsageError: an option contradicts the plan of the run.
        RunDirectoryError: there is nothing to resume.
    """
    from hybridbench.rundir.manifest import read_manifest
    from hybridbench.runs.resume import Resumption, resume_soak

    check_agrees(read_manifest(run_dir), given)
    options: dict[str, str | float] = {
        name: str(given[name]) for name in ("stop", "diagnose") if name in given
    }
    if "on_leak" in given:
        options["hold_s"] = hold_s
    outcome = resume_soak(
        Resumption(
            run_dir,
            ui=str(given.get("ui", "auto")),
            options=options,
            defects=_texts(given.get("defect")),
            command=typed_command(),
        )
    )
    return outcome.run_dir, outcome.exit_hint


def check_agrees(manifest: Manifest, given: Mapping[str, object]) -> None:
    """Refuse options that contradict the first part of the run.

    Raises:
        UsageError: names the first option that differs from the manifest.
    """
    for name, value in given.items():
        if name in _FREE:
            continue
        option = "--" + name.rstrip("_").replace("_", "-")
        recorded = _STORED.get(name)
        if recorded is None:
            raise UsageError(
                "cannot be combined with --resume: the manifest decides how the run "
                "continues; leave it out.",
                option=option,
                also=("--resume",),
            )
        stored = recorded(manifest)
        if not _same(name, value, stored):
            raise UsageError(
                f"{_text(value)}: cannot be changed on --resume (this run: "
                f"{_stored_text(name, stored)}); leave the option out, or start a new run.",
                option=option,
                also=("--resume",),
            )


def _same(name: str, value: object, stored: object) -> bool:
    if name in _DURATIONS:
        return parse_seconds(f"--{name}", str(value)) == stored
    if name == "defect":
        # Files are compared by content in defect_files; the slugs may be left out.
        given, recorded = (_slugs(names) for names in (value, stored))
        return given == recorded or (not given and bool(_texts(value)))
    return value == stored


def _slugs(names: object) -> list[str]:
    return sorted(name for name in _texts(names) if not name.endswith(".py"))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


def _stored_text(name: str, stored: object) -> str:
    if name in _DURATIONS and isinstance(stored, float):
        return format_duration(stored)
    return _text(stored)


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "none"
    return "none" if value is None else str(value)
