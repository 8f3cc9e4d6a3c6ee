"""``hybridbench serve``: the bundled engine behind an OpenAI-compatible HTTP interface."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hybridbench.cli.chosen_defects import chosen_defects
from hybridbench.cli.completion import complete_defect
from hybridbench.cli.options import (
    Ballast,
    Gc,
    Model,
    Panel,
    ProfileName,
    Seed,
    Set,
    chosen_model,
    parse_overrides,
)
from hybridbench.foundation.errors import UsageError
from hybridbench.foundation.safe_output import echo

if TYPE_CHECKING:
    from hybridbench.records.messages import Ready

EXIT_CODES: Final = (
    "Exit codes: 0 ended by Ctrl-C or SIGTERM, 14 the engine's process died or hung, 2 usage, "
    "1 a bug in hybridbench."
)


def serve(
    model: Model = None,
    profile: ProfileName = None,
    defect: Annotated[
        list[str] | None,
        Panel.ENGINE.option(
            autocompletion=complete_defect,
            metavar="SLUG",
            help="A historic defect to inject (repeatable), as of `soak`.",
        ),
    ] = None,
    seed: Seed = None,
    gc: Gc = None,
    ballast: Ballast = None,
    set_: Set = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on.  Other machines can use the server unless it is a loopback "
            "address; there is no authentication.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(metavar="PORT", min=0, max=65535, help="Port; 0 is any that is free."),
    ] = 8000,
) -> None:
    """Serve the bundled engine over HTTP, for load tools and for `watch`.

    Example: hybridbench serve --model qwen3-next --port 8000

    It answers /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics.  Pools and
    settings of the engine are those of the profile; its traffic is not used.
    """
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise UsageError(
                f"serve needs {name}, which is not installed here; "
                "pip install 'hybridbench[serve]' first."
            )
    defects = chosen_defects(defect or [])
    source, chosen = defects.profile_with(parse_overrides(set_ or [], gc, ballast), profile)
    from hybridbench.records.manifest import Options
    from hybridbench.runs.plan import SoakPlan
    from hybridbench.serve.run import ServePlan, listen
    from hybridbench.serve.run import serve as serve_plan
    from hybridbench.targets.bundled import WorkerProgram
    from hybridbench.targets.own_process import import_path

    # Pass on to the worker what a watcher added, such as its probe.
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    engine = SoakPlan(
        profile=chosen.for_replay(),
        model=chosen_model(model, chosen, source),
        store=Path(),
        duration_s=chosen.duration_s,
        seed=chosen.seed if seed is None else seed,
        defects=defects.names,
        program=WorkerProgram(
            search_path=os.pathsep.join([*filter(os.path.isabs, inherited), import_path()])
        ),
        options=Options(answers_s=0.0),
    )
    try:
        listening = listen(host, port)
    except OSError as error:
        raise UsageError(
            f"{host} and --port {port}: {error.strerror}; choose others, or port 0 for any that "
            "is free.",
            option="--host",
            also=("--port",),
        ) from error
    plan = ServePlan(engine, listening, host)

    def on_ready(ready: Ready) -> None:
        echo(f"hybridbench: serving {ready.model} on {plan.address}", err=True)

    serve_plan(plan, on_ready)
