"""The cells of a night for an engine that fans out: GitHub matrix, Slurm array, Kubernetes Job."""

from __future__ import annotations

import json
import math
import posixpath
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from hybridbench.errors import UsageError
from hybridbench.nightly.budget import OVERHEAD_S
from hybridbench.nightly.cells import Cell, cell_to_json
from hybridbench.nightly.facts import Night
from hybridbench.nightly.merge import counted
from hybridbench.nightly.policy import extension_s
from hybridbench.units import format_duration

# GitHub starts no more jobs from one matrix.
_GITHUB_MAX: Final = 256
# A fresh runner installs torch before it runs anything.
_GITHUB_SETUP_MIN: Final = 15
_CODES_OF_AN_ANSWER: Final = [2, 10, 11, 12, 13, 14, 15, 16]
PARTIAL: Final = (
    "with cells left out the night ends 13 (INCONCLUSIVE) where it would be green, unless "
    "`nightly merge` or `nightly run` has --allow-partial"
)
_SUSPENDED_HINT: Final = (
    "# The merge waits: when the cells are done, start it with\n"
    '#   kubectl patch job {name}-merge --type=strategic -p \'{{"spec":{{"suspend":false}}}}\'\n'
)


@dataclass(frozen=True)
class Wanted:
    """What the templates need beside the plan.

    Args:
        plan: the plan as the command line names it.
        options: the options of ``nightly plan`` that every cell must repeat.
        out: the directory of nights, seen by all machines.
        stamp: when this was asked for; a Kubernetes night is named by it.
        image: that the pods run.
        claim: the volume claim with that directory.
        merge_options: what only ``nightly merge`` is told beside.
    """

    plan: str
    options: Sequence[str]
    out: str
    stamp: str
    image: str
    claim: str
    merge_options: Sequence[str] = ()


def rendered(night: Night, form: str, wanted: Wanted) -> str:
    """The plan in the format called ``form``.

    Raises:
        UsageError: the engine cannot take that many cells.
    """
    return FORMATS[form](night, wanted)


def minutes_of(cell: Cell, night: Night) -> int:
    """When an engine may give a cell up: all runs that the policy allows, extended, half as long
    again.
    """
    policy = night.loaded.plan.policy
    runs = 1 + policy.rerun_statistical_leak + policy.rerun_invalid
    run_s = cell.duration_s + OVERHEAD_S
    extend_s = extension_s(cell, policy)
    if night.budget_s is not None:
        extend_s = min(extend_s, max(night.budget_s - run_s, 0.0))
    return math.ceil(1.5 * (run_s + extend_s) * runs / 60) + 5


def _console(night: Night, wanted: Wanted) -> str:
    del wanted
    width = max(len(cell.id) for cell in night.cells)
    lines = [f"plan {night.record.name} {night.record.hash}: {counted(len(night.cells))}"]
    lines += [_line(index, cell, width) for index, cell in enumerate(night.cells)]
    lines.append(f"one after another: {format_duration(night.budgeted.needed_s)}")
    lines += [night.budgeted.note] if night.budgeted.note else []
    lines += [PARTIAL] if night.record.left_out else []
    lines.append(f"red by chance: {night.false_red.text}")
    lines.append(f"  = {night.false_red.formula}")
    return "\n".join(lines) + "\n"


def _line(index: int, cell: Cell, width: int) -> str:
    versions = " ".join(cell.versions)
    return (
        f"{index:4} {cell.id:{width}}  {cell.kind.value:7} {format_duration(cell.duration_s):>6}  "
        f"{cell.model}  {cell.profile}  seed {cell.seed}  {versions}"
    )


def _json(night: Night, wanted: Wanted) -> str:
    del wanted
    record = night.record
    told = {
        "schema": "hybridbench.nightly-plan/1",
        "name": record.name,
        "hash": record.hash,
        "cells": [cell_to_json(cell) for cell in night.cells],
        "left_out": list(record.left_out),
        "needed_s": night.budgeted.needed_s,
        "false_red": {
            "share": night.false_red.share,
            "text": night.false_red.text,
            "formula": night.false_red.formula,
        },
    }
    return json.dumps(told, indent=2) + "\n"


def _github(night: Night, wanted: Wanted) -> str:
    """One line, for ``echo "matrix=$(...)" >> "$GITHUB_OUTPUT"``."""
    del wanted
    if len(night.cells) > _GITHUB_MAX:
        raise UsageError(
            f"--format github: {len(night.cells)} cells, and one matrix has at most {_GITHUB_MAX}; "
            "split the plan."
        )
    include = [
        {
            "id": cell.id,
            "minutes": minutes_of(cell, night) + _GITHUB_SETUP_MIN,
            "runs_on": list(cell.needs.labels) or _runner(cell),
        }
        for cell in night.cells
    ]
    return json.dumps({"include": include}) + "\n"


def _runner(cell: Cell) -> str | list[str]:
    return ["self-hosted", "gpu"] if cell.needs.gpu else "ubuntu-latest"


def _slurm(night: Night, wanted: Wanted) -> str:
    needs = [cell.needs for cell in night.cells]
    return (
        _environment()
        .get_template("slurm.sh.j2")
        .render(
            name=night.record.name,
            hash=night.record.hash,
            cells=night.cells,
            # An array has one request for all of its tasks.
            minutes=max(minutes_of(cell, night) for cell in night.cells),
            cores=max(need.cores for need in needs),
            memory_mib=max(math.ceil(need.memory_bytes / 2**20) for need in needs),
            gpu=max(need.gpu for need in needs),
            plan=wanted.plan,
            options=_words(wanted.options),
            merge_options=_words(wanted.merge_options),
            out=wanted.out,
            command="hybridbench nightly",
        )
    )


def _words(options: Sequence[str]) -> str:
    return "".join(f" {shlex.quote(word)}" for word in options)


@cache
def _environment() -> Environment:
    environment = Environment(  # noqa: S701  # a shell script, not a page; words are quoted
        loader=PackageLoader("hybridbench.nightly", "templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = shlex.quote
    return environment


def _k8s(night: Night, wanted: Wanted) -> str:
    # Jobs cannot be changed: every night has one of its own.
    name = f"hybridbench-{night.record.name}-{wanted.stamp}".replace("_", "-").replace(".", "-")
    files = _plan_files(night)
    plan = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {file.key: file.text for file in files},
    }
    items = [{"key": file.key, "path": file.path} for file in files]
    volume = {"name": "plan", "configMap": {"name": name, "items": items}}
    comment = f"# The plan {night.record.name} ({night.record.hash}) as a Kubernetes Indexed Job.\n"
    cells, merge = _cells_job(name, night, wanted, volume), _merge_job(name, night, wanted, volume)
    documents = [plan, cells, merge]
    dumped = yaml.dump_all(
        documents, Dumper=_Manifest, sort_keys=False, allow_unicode=True, width=100
    )
    return comment + _SUSPENDED_HINT.format(name=name) + dumped


_Volume = Mapping[str, object]


@dataclass(frozen=True)
class _File:
    """A file of the plan: its key in the ConfigMap, which may hold no slash, and where it goes."""

    key: str
    path: str
    text: str


def _plan_files(night: Night) -> list[_File]:
    """The plan, and the profiles that it names by a path: cells look for them beside it."""
    files = [_File("plan.yaml", "plan.yaml", night.loaded.path.read_text(encoding="utf-8"))]
    beside = {
        posixpath.normpath(cell.profile): cell.profile_source
        for cell in night.cells
        if cell.profile != cell.profile_source and not posixpath.isabs(cell.profile)
    }
    for index, (path, source) in enumerate(beside.items()):
        if path.startswith("../"):
            raise UsageError(
                f"--format k8s: the profile {path} lies above the plan, where no volume reaches; "
                "put it beside the plan, or name it by its whole path in the image."
            )
        files.append(_File(f"profile-{index}.yaml", path, Path(source).read_text(encoding="utf-8")))
    return files


class _Manifest(yaml.SafeDumper):
    """Texts of several lines as they are, and nothing by reference."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Manifest.add_representer(str, _text)


def _cells_job(name: str, night: Night, wanted: Wanted, plan: _Volume) -> dict[str, object]:
    words = [*_VERB, "cell", _PLAN_FILE, *wanted.options]
    out = shlex.quote(_cells_dir(night, wanted))
    script = f'exec {shlex.join(words)} --index "$JOB_COMPLETION_INDEX" --out {out}'
    cells = len(night.cells)
    spec = {
        "completionMode": "Indexed",
        "completions": cells,
        "parallelism": cells,
        # Evicted or killed pods go on where they were cut off; a red cell is an answer, no failure
        # to try again.
        "backoffLimitPerIndex": 3,
        "maxFailedIndexes": cells,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailIndex",
                    "onExitCodes": {
                        "containerName": "cell",
                        "operator": "In",
                        "values": _CODES_OF_AN_ANSWER,
                    },
                }
            ]
        },
        "template": _pod("cell", script, plan, wanted, _resources(night, cells=True)),
    }
    return _job(name, spec)


def _merge_job(name: str, night: Night, wanted: Wanted, plan: _Volume) -> dict[str, object]:
    words = [*_VERB, "merge", _cells_dir(night, wanted), "--plan", _PLAN_FILE]
    words += [*wanted.options, *wanted.merge_options]
    script = f"exec {shlex.join([*words, '--out', _night_dir(night, wanted)])}"
    template = _pod("merge", script, plan, wanted, _resources(night, cells=False))
    return _job(f"{name}-merge", {"suspend": True, "backoffLimit": 0, "template": template})


_VERB: Final = ("hybridbench", "nightly")
_PLAN_FILE: Final = "/plan/plan.yaml"


def _night_dir(night: Night, wanted: Wanted) -> str:
    return f"{wanted.out}/{wanted.stamp}-{night.record.name}"


def _cells_dir(night: Night, wanted: Wanted) -> str:
    return f"{_night_dir(night, wanted)}/cells"


def _job(name: str, spec: Mapping[str, object]) -> dict[str, object]:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": dict(spec)}


def _pod(
    container: str, script: str, plan: _Volume, wanted: Wanted, resources: Mapping[str, str]
) -> dict[str, object]:
    return {
        "spec": {
            "restartPolicy": "Never",
            # A soak drains and stores what it has before it goes.
            "terminationGracePeriodSeconds": 60,
            "containers": [
                {
                    "name": container,
                    "image": wanted.image,
                    "command": ["sh", "-c", script],
                    "resources": {
                        "requests": resources,
                        "limits": resources,
                    },
                    "volumeMounts": [
                        {"name": "plan", "mountPath": "/plan"},
                        {"name": "nights", "mountPath": "/nights"},
                    ],
                }
            ],
            "volumes": [
                plan,
                {"name": "nights", "persistentVolumeClaim": {"claimName": wanted.claim}},
            ],
        }
    }


def _resources(night: Night, *, cells: bool) -> dict[str, str]:
    if not cells:
        return {"cpu": "1", "memory": "1Gi"}
    needs = [cell.needs for cell in night.cells]
    resources = {"cpu": str(max(need.cores for need in needs))}
    memory_mib = max(math.ceil(need.memory_bytes / 2**20) for need in needs)
    gpu = max(need.gpu for need in needs)
    if memory_mib:
        resources["memory"] = f"{memory_mib}Mi"
    if gpu:
        resources["nvidia.com/gpu"] = str(gpu)
    return resources


FORMATS: Final[Mapping[str, Callable[[Night, Wanted], str]]] = {
    "console": _console,
    "json": _json,
    "github": _github,
    "slurm": _slurm,
    "k8s": _k8s,
}
