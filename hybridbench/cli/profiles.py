"""``hybridbench profiles``: list, show and validate the values of ``soak --profile``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from hybridbench.cli.command_group import Command, CommandGroup
from hybridbench.cli.completion import complete_profile
from hybridbench.foundation.errors import ConfigError, ErrorCode, HybridbenchError, full_stop
from hybridbench.foundation.safe_output import echo, emit, output_after_verdict, print_error

app = typer.Typer(
    cls=CommandGroup,
    help="List, show and validate workload profiles.",
    no_args_is_help=True,
)


@app.command("list", cls=Command)
def list_all() -> None:
    """List the shipped profiles.

    Example: hybridbench profiles list
    """
    from hybridbench.workload.catalog import DEFAULT_PROFILE, list_profiles, load_profile

    for name in list_profiles():
        mark = "*" if name == DEFAULT_PROFILE else " "
        echo(f"{mark} {name:20} {load_profile(name).description}")
    echo("\n* is the default of `hybridbench soak`")


@app.command("show", cls=Command)
def show(
    profile: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE", autocompletion=complete_profile, help="A profile, or its file."
        ),
    ],
) -> None:
    """Print the YAML file of a profile, with its comments.

    Example: hybridbench profiles show chat-churn > mine.yaml
    """
    from pathlib import Path

    from hybridbench.workload.catalog import list_profiles, load_profile

    load_profile(profile)
    path = list_profiles().get(profile, Path(profile))
    echo(path.read_text(encoding="utf-8"), nl=False)


@app.command("validate", cls=Command)
def validate(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", autocompletion=complete_profile, help="YAML files of profiles."
        ),
    ],
) -> None:
    """Validate profile files; prints every error and exits with code 2 if there is one.

    `soak --dry-run` also checks that the model can run the profile.

    Example: hybridbench profiles validate mine.yaml
    """
    from hybridbench.workload.catalog import load_profile, model_fault

    errors: list[HybridbenchError] = []
    for name in files:
        try:
            fault = model_fault(load_profile(name).model)
            if fault is not None:
                raise ConfigError(full_stop(f"{name}: model: {fault}"), code=ErrorCode.UNKNOWN_NAME)
        except HybridbenchError as error:
            errors.append(error)
        else:
            with output_after_verdict():
                echo(f"{name}: valid")
    for earlier in errors[:-1]:
        print_error(earlier)
    if errors:
        raise errors[-1]


@app.command("schema", cls=Command)
def schema() -> None:
    """Print the JSON Schema of a profile, for editors.

    Example: hybridbench profiles schema > profile.schema.json
    """
    from hybridbench.workload.profile import profile_json_schema

    emit(json.dumps(profile_json_schema(), indent=2) + "\n")
