"""A plan for an engine that fans out: GitHub matrix, Slurm array, Kubernetes Job."""

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

import msgspec
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from hybridbench.errors import UsageError
from hybridbench.over_time.cells import PlannedCell
from hybridbench.over_time.planned import OVERHEAD_S, PlannedRun
from hybridbench.over_time.policy import extension_s
from hybridbench.records.nightly import Cell, counted
from hybridbench.units import format_duration

# GitHub starts no more jobs from one matrix.
_GITHUB_MAX: Final = 256
# A fresh runner installs torch before it runs anything.
_GITHUB_SETUP_MIN: Final = 15
PARTIAL: Final = (
    "with cells left out the run ends 13 (INCONCLUSIVE) where it would pass, unless "
    "`nightly merge` or `nightly run` has --allow-partial"
)


@dataclass(frozen=True)
class Target:
    """Where the cells are to run: what the formats need beside the plan.

    Args:
        plan: the plan as the command line names it.
        options: the options of ``nightly plan`` that every cell must repeat.
        out: the directory of nightly runs, seen by all machines.
        stamp: when this was asked for; a run on Kubernetes is named by it.
        image: that the pods run.
        claim: the volume claim with that directory.
        merge_options: what only ``nightly merge`` gets.
    """

    plan: str
    options: Sequence[str]
    out: str
    stamp: str
    image: str
    claim: str
    merge_options: Sequence[str] = ()


def rendered(nightly: PlannedRun, form: str, target: Target) -> str:
    """The plan in the format called ``form``.

    Raises:
        UsageError: the engine cannot take that many cells.
    """
    return FORMATS[form](nightly, target)


def minutes_of(planned: PlannedCell, nightly: PlannedRun) -> int:
    """When an engine may give a cell up: all runs that the policy allows, extended, half as long
    again.
    """
    policy = nightly.record.policy
    runs = 1 + policy.rerun_statistical_leak + policy.rerun_invalid
    run_s = planned.cell.duration_s + OVERHEAD_S
    extend_s = extension_s(planned.cell, policy)
    if nightly.budget_s is not None:
        extend_s = min(extend_s, max(nightly.budget_s - run_s, 0.0))
    return math.ceil(1.5 * (run_s + extend_s) * runs / 60) + 5


def _console(nightly: PlannedRun, target: Target) -> str:
    del target
    width = max(len(cell.id) for cell in nightly.cells)
    record, budgeted = nightly.record, nightly.budgeted
    lines = [f"plan {record.name} {record.hash}: {counted(len(nightly.cells))}"]
    lines += [_line(index, one.cell, width) for index, one in enumerate(nightly.cells)]
    lines.append(f"one after another: {format_duration(budgeted.needed_s)}")
    lines += [budgeted.note] if budgeted.note else []
    lines += [PARTIAL] if record.left_out else []
    lines.append(f"false alarms: {nightly.false_alarms.text}")
    lines.append(f"  = {nightly.false_alarms.formula}")
    return "\n".join(lines) + "\n"


def _line(index: int, cell: Cell, width: int) -> str:
    versions = " ".join(cell.versions)
    what = f"{cell.profile}  seed {cell.seed}  {versions}" if cell.profile else "as it comes"
    return (
        f"{index:4} {cell.id:{width}}  {cell.kind.value:7} {format_duration(cell.duration_s):>6}  "
        f"{cell.model}  {what}"
    )


def _json(nightly: PlannedRun, target: Target) -> str:
    del target
    record, false_alarms = nightly.record, nightly.false_alarms
    document = {
        "schema": "hybridbench.nightly-plan/1",
        "name": record.name,
        "hash": record.hash,
        "cells": [msgspec.to_builtins(one.cell) for one in nightly.cells],
        "left_out": record.left_out,
        "needed_s": nightly.budgeted.needed_s,
        "false_red": {
            "share": false_alarms.share,
            "text": false_alarms.text,
            "formula": false_alarms.formula,
        },
    }
    return json.dumps(document, indent=2) + "\n"


def _github(nightly: PlannedRun, target: Target) -> str:
    """One line, for ``echo "matrix=$(...)" >> "$GITHUB_OUTPUT"``."""
    del target
    if len(nightly.cells) > _GITHUB_MAX:
        raise UsageError(
            f"github: {len(nightly.cells)} cells, and one matrix has at most "
            f"{_GITHUB_MAX}; split the plan.",
            option="--format",
        )
    include = [
        {
            "id": one.id,
            "minutes": minutes_of(one, nightly) + _GITHUB_SETUP_MIN,
            "runs_on": list(one.cell.needs.labels) or _runner(one.cell),
        }
        for one in nightly.cells
    ]
    return json.dumps({"include": include}) + "\n"


def _runner(cell: Cell) -> str | list[str]:
    return ["self-hosted", "gpu"] if cell.needs.gpu else "ubuntu-latest"


def _slurm(nightly: PlannedRun, target: Target) -> str:
    # An array has one request for all of its tasks.
    minutes = max(minutes_of(cell, nightly) for cell in nightly.cells)
    return _from_template("slurm.sh.j2", nightly, target, minutes=minutes)


def _k8s(nightly: PlannedRun, target: Target) -> str:
    files = _plan_files(nightly)
    # Jobs cannot be changed: every nightly run has one of its own.
    name = f"hybridbench-{nightly.record.name}-{target.stamp}".replace("_", "-").replace(".", "-")
    texts = yaml.dump({file.key: file.text for file in files}, Dumper=_Texts, allow_unicode=True)
    return _from_template("k8s.yaml.j2", nightly, target, job=name, files=files, texts=texts)


def _from_template(template: str, nightly: PlannedRun, target: Target, **more: object) -> str:
    needs = [one.cell.needs for one in nightly.cells]
    return (
        _environment()
        .get_template(template)
        .render(
            record=nightly.record,
            target=target,
            cores=max(need.cores for need in needs),
            memory_mib=max(math.ceil(need.memory_bytes / 2**20) for need in needs),
            gpu=max(need.gpu for need in needs),
            **more,
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(  # noqa: S701  # a script and a manifest, no page; words are quoted
        loader=PackageLoader("hybridbench.over_time", "templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quote"] = shlex.quote
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.filters["words"] = lambda words: "".join(f" {shlex.quote(word)}" for word in words)
    return environment


@dataclass(frozen=True)
class _File:
    """A file of the plan: its key in the ConfigMap, which may hold no slash, and where it goes."""

    key: str
    path: str
    text: str


def _plan_files(nightly: PlannedRun) -> list[_File]:
    """The plan, and the profiles that it names by a path: cells look for them beside it."""
    files = [_File("plan.yaml", "plan.yaml", nightly.loaded.path.read_text(encoding="utf-8"))]
    beside = {
        posixpath.normpath(one.cell.profile): one.profile_source
        for one in nightly.cells
        if one.cell.profile != one.profile_source and not posixpath.isabs(one.cell.profile)
    }
    for index, (path, source) in enumerate(beside.items()):
        if path.startswith("../"):
            raise UsageError(
                f"k8s: the profile {path} is outside the plan's directory, whose files "
                "alone are included; move it beside the plan, or use its absolute path in the "
                "image.",
                option="--format",
            )
        files.append(_File(f"profile-{index}.yaml", path, Path(source).read_text(encoding="utf-8")))
    return files


class _Texts(yaml.SafeDumper):
    """Texts of several lines as they are."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Texts.add_representer(str, _text)

FORMATS: Final[Mapping[str, Callable[[PlannedRun, Target], str]]] = {
    "console": _console,
    "json": _json,
    "github": _github,
    "slurm": _slurm,
    "k8s": _k8s,
}
