"""From a plan to its cells: what each runs, under an id that stays when the plan grows."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from hybridbench.analysis.comparison.records import DEFAULT_LOOKS
from hybridbench.compare.plan import BLOCK_S
from hybridbench.errors import ConfigError, UsageError
from hybridbench.nightly.plan import (
    Common,
    CompareEntry,
    LoadedPlan,
    Needs,
    Plan,
    SoakEntry,
)
from hybridbench.units import format_duration
from hybridbench.workload.catalog import DEFAULT_PROFILE, load_profile
from hybridbench.workload.profile import Profile
from hybridbench.workload.validation import full_stop, nearest
from hybridbench.workload.yaml_source import KeyPath

DEFECT: Final = "defect:"
DEFECTS_AS_OF: Final = "defects-as-of:"
THIS_ENGINE: Final = "."
_DURATION_S: Final = 600.0
_NOT_IN_AN_ID: Final = re.compile(r"[^a-z0-9.]+")


class CellKind(StrEnum):
    """What a cell is made of."""

    SOAK = "soak"
    COMPARE = "compare"


@dataclass(frozen=True)
class Cell:
    """One job of a night: one soak, or one comparison with all its versions on one machine.

    Attributes:
        versions: one of a soak, two or more of a comparison.
        duration_s: of the traffic; of a comparison the longest it may take.
        least_s: a smaller budget never shortens it below this: what it needs to decide, or more.
        settings: keys of the profile that are set.
        work: hash of what runs apart from its length and seed; only cells that share it are
            compared from night to night.
    """

    id: str
    kind: CellKind
    profile: str
    model: str
    versions: tuple[str, ...]
    seed: int
    duration_s: float
    least_s: float
    ballast: int | None = None
    gc: str | None = None
    device: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    thresholds: tuple[str, ...] = ()
    block_s: float | None = None
    margin: float | None = None
    needs: Needs = field(default_factory=Needs)
    work: str = ""
    profile_source: str = ""  # what --profile takes; a path of this machine, stored nowhere


def expand(loaded: LoadedPlan, defects: tuple[str, ...] = ()) -> tuple[Cell, ...]:
    """The cells of a plan, in its order, at their full length.

    Args:
        loaded: the plan.
        defects: put into every soak, under ids that do not tell: a rehearsal of a regression.

    Raises:
        ConfigError: a profile that is none, a soak too short to decide, or two cells with one id.
    """
    known = _Profiles(loaded.path.parent)
    entries = [*_of_matrix(loaded.plan), *_of_cells(loaded.plan), *_of_compare(loaded.plan)]
    cells: dict[str, Cell] = {}
    places: dict[str, str] = {}
    for where, entry in entries:
        place = loaded.place(*where)
        cell = _cell(entry, loaded, known, where)
        if cell.id in cells:
            raise ConfigError(_twice(cell, cells[cell.id], place, places[cell.id]))
        places[cell.id] = place
        if cell.kind is CellKind.SOAK:
            extra = tuple(f"{DEFECT}{name}" for name in defects)
            cell = replace(cell, versions=(*cell.versions, *extra))
        cells[cell.id] = cell
    return tuple(cells.values())


def _twice(cell: Cell, other: Cell, place: str, other_place: str) -> str:
    said = f"{place}: there are two cells {cell.id} (the other at {other_place}); "
    if cell.profile != other.profile:
        # A copy of a shipped profile, mostly; what stands in a matrix cannot have an id.
        return (
            f"{said}the profiles {other.profile} and {cell.profile} bear one name: give one of "
            "them another `name`."
        )
    return f"{said}give one of them an id of its own."


def find_cell(cells: tuple[Cell, ...], cell_id: str) -> Cell:
    """The cell called ``cell_id``.

    Raises:
        UsageError: there is none.
    """
    for cell in cells:
        if cell.id == cell_id:
            return cell
    hint = nearest(cell_id, [cell.id for cell in cells])
    raise UsageError(full_stop(f"--id {cell_id}: the plan has no such cell; {hint}"))


def plan_hash(plan: Plan, cells: tuple[Cell, ...]) -> str:
    """Hash of all that runs and of what decides about running again.

    Waivers are left out: they are read when cells are merged, and adding one must not make a
    night that is half done worthless.
    """
    policy = plan.policy
    ran = [json.dumps(cell_to_json(cell), sort_keys=True) for cell in cells]
    rules = f"{policy.rerun_statistical_leak} {policy.rerun_invalid} {policy.extend}"
    return hashlib.sha256("\n".join([plan.name, rules, *ran]).encode()).hexdigest()[:16]


def cell_to_json(cell: Cell) -> dict[str, object]:
    """``cell`` as plain JSON, for cell.json, night.json and ``nightly plan --format json``."""
    needs = cell.needs
    return {
        "id": cell.id,
        "kind": cell.kind.value,
        "profile": cell.profile,
        "model": cell.model,
        "versions": list(cell.versions),
        "seed": cell.seed,
        "duration_s": cell.duration_s,
        "ballast": cell.ballast,
        "gc": cell.gc,
        "device": cell.device,
        "set": dict(cell.settings),
        "thresholds": list(cell.thresholds),
        "block_s": cell.block_s,
        "margin": cell.margin,
        "needs": {
            "gpu": needs.gpu,
            "cores": needs.cores,
            "memory_bytes": needs.memory_bytes,
            "labels": list(needs.labels),
        },
        "work": cell.work,
    }


_Entry = tuple[tuple[str | int, ...], SoakEntry | CompareEntry]


def _of_matrix(plan: Plan) -> Iterator[_Entry]:
    matrix = plan.matrix
    seeds: tuple[int | None, ...] = matrix.seeds or (None,)
    models: tuple[str | None, ...] = matrix.models or (None,)
    for index, profile in enumerate(matrix.profiles):
        for model in models:
            for version in matrix.versions:
                for seed in seeds:
                    entry = SoakEntry(profile=profile, model=model, version=version, seed=seed)
                    yield ("matrix", "profiles", index), entry


def _of_cells(plan: Plan) -> Iterator[_Entry]:
    yield from ((("cells", index), entry) for index, entry in enumerate(plan.cells))


def _of_compare(plan: Plan) -> Iterator[_Entry]:
    yield from ((("compare", index), entry) for index, entry in enumerate(plan.compare))


@dataclass
class _Profiles:
    """Profiles by the name a plan gives them; paths are relative to the plan."""

    folder: Path
    loaded: dict[str, Profile] = field(default_factory=dict)

    def get(self, name: str, place: str) -> Profile:
        if name not in self.loaded:
            try:
                self.loaded[name] = load_profile(self.source(name))
            except ConfigError as error:
                raise ConfigError(f"{place}: {error}") from error
        return self.loaded[name]

    def source(self, name: str) -> str:
        """``name`` as ``--profile`` takes it from anywhere."""
        if "/" not in name and not name.endswith((".yaml", ".yml")):
            return name
        return str((self.folder / name).resolve())


def _cell(
    entry: SoakEntry | CompareEntry, loaded: LoadedPlan, known: _Profiles, where: KeyPath
) -> Cell:
    plan, place = loaded.plan, loaded.place(*where)
    name = entry.profile or DEFAULT_PROFILE
    profile = known.get(name, place)
    settings = tuple((key, _setting(value)) for key, value in _merged(plan, entry).items())
    if settings:
        # A wrong key is told now, not by the first cell at two in the morning.
        try:
            profile = profile.with_overrides(dict(settings))
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
    kind = CellKind.SOAK if isinstance(entry, SoakEntry) else CellKind.COMPARE
    needed_s = _decides_from_s(entry, profile)
    duration_s = entry.duration_s or plan.duration_s or max(_DURATION_S, needed_s)
    least_s = max(entry.least_duration_s or plan.least_duration_s or 0.0, needed_s)
    cell = Cell(
        id=entry.id or _id(entry, profile),
        kind=kind,
        profile=name,
        profile_source=known.source(name),
        model=entry.model or profile.model,
        versions=(entry.version,) if isinstance(entry, SoakEntry) else entry.versions,
        seed=profile.seed if entry.seed is None else entry.seed,
        duration_s=duration_s,
        # A cell that is shorter than the plan's least was meant to be.
        least_s=min(least_s, duration_s),
        ballast=plan.ballast if entry.ballast is None else entry.ballast,
        gc=entry.gc or plan.gc,
        device=entry.device or plan.device,
        settings=settings,
        # A comparison has ratios to ask for, and a soak none.
        thresholds=(
            (*plan.thresholds, *entry.thresholds)
            if isinstance(entry, SoakEntry)
            else entry.thresholds
        ),
        block_s=entry.block_s if isinstance(entry, CompareEntry) else None,
        margin=entry.margin if isinstance(entry, CompareEntry) else None,
        needs=entry.needs or plan.needs or Needs(),
    )
    if kind is CellKind.SOAK and duration_s < needed_s:
        at = ("duration",) if entry.duration_s is None else (*where, "duration")
        raise ConfigError(_too_short(cell, needed_s, loaded.place(*at)))
    return replace(cell, work=_work(cell, profile))


def _decides_from_s(entry: SoakEntry | CompareEntry, profile: Profile) -> float:
    """The shortest length at which ``entry`` can come to a verdict.

    A soak of a profile that limits no growth of memory promises nothing of it, and has none: only
    what is counted decides there.
    """
    if isinstance(entry, CompareEntry):
        return DEFAULT_LOOKS[0] * _first(entry.block_s, BLOCK_S) * len(entry.versions)
    needed_s = profile.decides_from_s
    return needed_s if needed_s < math.inf else 0.0


def _too_short(cell: Cell, needed_s: float, place: str) -> str:
    needed = format_duration(needed_s)
    return (
        f"{place}: {cell.id} lasts {format_duration(cell.duration_s)}, too short to judge growth "
        f"of memory: profile {cell.profile} needs {needed} or more; write duration: {needed}, or "
        "leave the cell out."
    )


def _merged(plan: Plan, entry: Common) -> dict[str, bool | int | float | str]:
    return {**plan.set, **entry.set}


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _first(given: float | None, otherwise: float) -> float:
    return otherwise if given is None else given


def _id(entry: SoakEntry | CompareEntry, profile: Profile) -> str:
    """Made of what the cell itself says only, so that other cells never change it."""
    model = Path(entry.model or profile.model).name
    if isinstance(entry, CompareEntry):
        parts = ["compare", "-vs-".join(_slug(v) for v in entry.versions), model, profile.name]
    else:
        version = "" if entry.version == THIS_ENGINE else entry.version
        parts = [model, profile.name, version, entry.gc or ""]
    if entry.seed is not None:
        parts.append(f"seed{entry.seed}")
    return "+".join(_slug(part) for part in parts if part)


def _slug(text: str) -> str:
    return "here" if text == THIS_ENGINE else _NOT_IN_AN_ID.sub("-", text.lower()).strip("-.")


def _work(cell: Cell, profile: Profile) -> str:
    resolved: Mapping[str, object] = profile.resolved()
    what = [
        json.dumps({k: v for k, v in resolved.items() if k != "description"}, sort_keys=True),
        cell.kind,
        cell.model,
        *cell.versions,
        str((cell.ballast, cell.gc, cell.device, cell.settings)),
    ]
    return hashlib.sha256("\n".join(what).encode()).hexdigest()[:16]
