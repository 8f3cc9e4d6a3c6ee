"""Options shared by several commands: their choices, and the parsing of their values."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from hybridbench.cli.completion import complete_model, complete_profile
from hybridbench.cli.environment import of_the_user
from hybridbench.foundation.errors import ErrorCode, UsageError, full_stop
from hybridbench.foundation.foreign import SEED_MAX
from hybridbench.foundation.thresholds import Stat, parse_thresholds
from hybridbench.foundation.units import parse_duration_s

if TYPE_CHECKING:
    from hybridbench.workload.profile import Profile


class Panel(StrEnum):
    """Titles of the option groups in `--help`."""

    TARGET = "Target"
    WORKLOAD = "Workload"
    ENGINE = "Engine process"
    PROBES = "Probes and verdict"
    ROUNDS = "Rounds"
    PLAN = "Plan"
    ROWS = "Rows"
    COLUMNS = "Columns"
    RUNS = "Runs"
    RULES = "What is kept"
    VERDICT = "Verdict"
    OUTPUT = "Output"

    def option(self, *names: str, **settings: Any) -> Any:
        """Declare an option of this group; the arguments are those of ``typer.Option``."""
        return typer.Option(*names, rich_help_panel=self, **settings)


class GcMode(StrEnum):
    """Garbage collector of a worker."""

    DEFAULT = "default"
    FREEZE_AFTER_WARMUP = "freeze-after-warmup"


class CompareUi(StrEnum):
    """Progress display of a comparison."""

    AUTO = "auto"
    PLAIN = "plain"
    NONE = "none"


class ReportFormat(StrEnum):
    """The keys of report/formats.py, kept here so that `--help` need not import the renderers.

    csv holds the samples of one run instead of a report.
    """

    CONSOLE = "console"
    MARKDOWN = "markdown"
    HTML = "html"
    JSON = "json"
    JUNIT = "junit"
    GITHUB_SUMMARY = "github-summary"
    GITHUB_ANNOTATIONS = "github-annotations"
    BENCHMARK_JSON = "benchmark-json"
    CSV = "csv"


FORMAT_NAMES: Final = ", ".join(ReportFormat)

Format = Annotated[
    ReportFormat,
    Panel.OUTPUT.option(
        "--format", metavar="FORMAT", help=f"Format of the report: {FORMAT_NAMES}."
    ),
]
Output = Annotated[
    list[str] | None,
    Panel.OUTPUT.option(
        metavar="FORMAT=FILE",
        help="Also write the report to a file, in a format of --format (repeatable): "
        "json=report.json.  A symbolic link is followed.",
    ),
]

Quiet = Annotated[
    bool,
    Panel.OUTPUT.option(
        "--quiet",
        "-q",
        help="Print no progress and, instead of the console report, one line with the verdict.",
    ),
]

Verbose = Annotated[
    bool,
    Panel.OUTPUT.option(
        "--verbose",
        "-v",
        help="Add to the console report all findings and evidence, every counter, and how the run "
        "was made.",
    ),
]


Model = Annotated[
    str | None,
    Panel.WORKLOAD.option(
        metavar="NAME|DIR",
        autocompletion=complete_model,
        help="A preset or the directory of a Hugging Face checkpoint.  On a CPU, qwen3-next, "
        "qwen3.5, nemotron-h, falcon-h1 and gpt-oss are their tiny presets.  Default: the "
        "profile's (qwen3-next).",
    ),
]

_PROFILE_HELP = (
    "A shipped profile or a YAML file; see `hybridbench profiles`.  Default: chat-churn, or the "
    "one that triggers the first defect."
)

ProfileName = Annotated[
    str | None,
    Panel.WORKLOAD.option(metavar="NAME|FILE", autocompletion=complete_profile, help=_PROFILE_HELP),
]

Profiles = Annotated[
    list[str] | None,
    Panel.WORKLOAD.option(
        "--profile",
        metavar="NAME|FILE",
        autocompletion=complete_profile,
        help=f"{_PROFILE_HELP}  For a server, repeatable: each idle point begins the next profile.",
    ),
]

Set = Annotated[
    list[str] | None,
    Panel.WORKLOAD.option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a profile key (repeatable): pools.mamba_slots=64; `profiles schema` lists "
        "all.",
    ),
]

Gc = Annotated[
    GcMode | None,
    Panel.ENGINE.option(help="Garbage collector mode of the worker.  Default: the profile's."),
]

Ballast = Annotated[
    int | None,
    Panel.ENGINE.option(
        metavar="N",
        min=0,
        help="Long-lived Python objects to allocate in the worker, so that the collector behaves "
        "as in a real server.  Default: the profile's (1000000).",
        show_default=False,
    ),
]

OnlyModel = Annotated[
    str | None,
    Panel.RUNS.option(
        metavar="NAME", autocompletion=complete_model, help="Only runs of this model."
    ),
]

OnlyProfile = Annotated[
    str | None,
    Panel.RUNS.option(
        metavar="NAME", autocompletion=complete_profile, help="Only runs under this profile."
    ),
]

Seed = Annotated[
    int | None,
    Panel.WORKLOAD.option(
        metavar="N",
        min=0,
        max=SEED_MAX,
        help="Seed for weights and traffic.  Default: the profile's.",
    ),
]

Store = Annotated[Path, Panel.OUTPUT.option(metavar="DIR", help="Directory for results.")]

MarkdownFile = Annotated[
    Path | None, Panel.OUTPUT.option(metavar="FILE", help="Also write the table to this file.")
]


class Detail(Enum):
    """How much of a report is printed on the console."""

    BRIEF = "brief"  # one line: the verdict and its headline
    USUAL = "usual"
    FULL = "full"


def parse_overrides(pairs: Sequence[str], gc: str | None, ballast: int | None) -> dict[str, str]:
    """Overrides from --set, --gc and --ballast, by profile key.

    Raises:
        UsageError: a --set is not KEY=VALUE, or two set one key to different values.
    """
    overrides: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(
                f"{pair}: write KEY=VALUE, for example pools.mamba_slots=64.", option="--set"
            )
        if overrides.setdefault(key, value) != value:
            raise UsageError(
                f"{key} is given as {overrides[key]} and as {value}; keep one of them.",
                code=ErrorCode.OPTION_CONFLICT,
                option="--set",
            )
    if gc is not None:
        overrides["gc.mode"] = gc
    if ballast is not None:
        overrides["ballast.objects"] = str(ballast)
    return overrides


FOLDER_OF_TARGETS: Final = (
    "Folder of the prepared targets.  [default: hybridbench/targets in the user's data directory]"
)

Targets = Annotated[
    Path | None, Panel.TARGET.option(metavar="DIR", help=FOLDER_OF_TARGETS, show_default=False)
]


def targets_root(directory: Path | None) -> Path:
    """The folder of prepared targets that ``--targets`` names, or the user's own.

    Raises:
        UsageError: ``directory`` is a file.
    """
    if directory is not None:
        if directory.exists() and not directory.is_dir():
            raise UsageError(f"{directory} is not a directory.", option="--targets")
        return directory.absolute()
    data = of_the_user().get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "hybridbench" / "targets"


def chosen_model(given: str | None, profile: Profile, source: str) -> str:
    """``--model``, else the model of ``profile``; refuse one that no worker would find.

    Args:
        given: the option.
        profile: the profile, with its overrides.
        source: the profile's name or file.

    Raises:
        UsageError: the model is neither a preset nor a directory.
    """
    from hybridbench.workload.catalog import model_fault

    model = profile.model if given is None else given
    fault = model_fault(model)
    if fault is not None:
        place, option = (f"profile {source}: model", "") if given is None else ("", "--model")
        raise UsageError(full_stop(f"{place}: {fault}"), code=ErrorCode.UNKNOWN_NAME, option=option)
    return model


def parse_seconds(option: str, text: str) -> float:
    """Parse a duration into seconds.

    Raises:
        UsageError: ``text`` is not a duration; names ``option``.
    """
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise UsageError(f": {error}.", option=option) from error


def given_thresholds(texts: Sequence[str], *, of_comparison: bool = False) -> tuple[str, ...]:
    """Thresholds from the command line in their stored form, without duplicates.

    Args:
        of_comparison: whether there are two versions, so that ratios are allowed.

    Raises:
        UsageError: a threshold is malformed, names an unknown metric, or lacks its unit.
    """
    try:
        parsed = parse_thresholds(texts)
    except ValueError as error:
        raise UsageError(full_stop(str(error)), option="--threshold") from error
    for threshold in parsed:
        if threshold.stat is Stat.RATIO and not of_comparison:
            raise UsageError(
                f"'{threshold.text}': a ratio compares two versions; give it to "
                "hybridbench compare.",
                option="--threshold",
            )
    return tuple(threshold.text for threshold in parsed)
