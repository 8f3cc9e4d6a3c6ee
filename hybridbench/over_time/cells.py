"""Expand a plan into its cells, each with an id that stays the same as the plan grows."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from hybridbench.analysis.comparison.records import DEFAULT_LOOKS
from hybridbench.compare.plan import BLOCK_S
from hybridbench.foundation.errors import ConfigError, ErrorCode, UsageError, full_stop, nearest
from hybridbench.foundation.units import format_duration
from hybridbench.over_time.plan import (
    Common,
    CompareEntry,
    LoadedPlan,
    Plan,
    SoakEntry,
    WatchEntry,
    is_release,
)
from hybridbench.records.nightly import Cell, CellKind, Needs
from hybridbench.sampling.redaction import redacted
from hybridbench.sampling.roles import role_of_command
from hybridbench.targets.engines.catalog import named_engine
from hybridbench.workload.catalog import DEFAULT_PROFILE, load_profile, model_fault
from hybridbench.workload.profile import Profile
from hybridbench.workload.yaml_source import KeyPath

DEFECT: Final = "defect:"
DEFECTS_AS_OF: Final = "defects-as-of:"
THIS_ENGINE: Final = "."
_DURATION_S: Final = 600.0
_NOT_IN_AN_ID: Final = re.compile(r"[^a-z0-9.]+")


@dataclass(frozen=True)
class PlannedCell:
    """A cell with facts that hold only on this machine and for this planning.

    Attributes:
        least_s: the length below which no budget shortens it: what it needs to decide, or more.
        profile_source: the value of ``--profile``: a path on this machine, never stored.
        watch: the options and the command of a watched run as typed, never stored.
    """

    cell: Cell
    least_s: float
    profile_source: str = ""
    watch: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.cell.id

    def lasting(self, duration_s: float) -> PlannedCell:
        """Return the same cell with another length."""
        return replace(self, cell=msgspec.structs.replace(self.cell, duration_s=duration_s))


def expand(loaded: LoadedPlan, defects: tuple[str, ...] = ()) -> tuple[PlannedCell, ...]:
    """Return the cells of a plan, in its order, at their full length.

    Args:
        loaded: the plan.
        defects: injected into every soak, whose ids stay the same, to rehearse a regression.

    Raises:
        ConfigError: an invalid profile, a soak too short to decide, or two cells with the same id.
    """
    known = _Profiles(loaded.path.parent)
    plan = loaded.plan
    entries: list[_Entry] = [
        *_of_matrix(plan),
        *((("cells", index), entry) for index, entry in enumerate(plan.cells)),
        *((("compare", index), entry) for index, entry in enumerate(plan.compare)),
    ]
    cells = [(where, _planned(entry, loaded, known, where, defects)) for where, entry in entries]
    cells += [(("watch", i), _watched(entry, plan)) for i, entry in enumerate(plan.watch)]
    found: dict[str, PlannedCell] = {}
    places: dict[str, str] = {}
    for where, planned in cells:
        place = loaded.place(*where)
        if planned.id in found:
            other = found[planned.id].cell
            raise ConfigError(_twice(planned.cell, other, place, places[planned.id]))
        places[planned.id] = place
        found[planned.id] = planned
    return tuple(found.values())


def _twice(cell: Cell, other: Cell, place: str, other_place: str) -> str:
    said = f"{place}: there are two cells {cell.id} (the other at {other_place}); "
    if cell.profile != other.profile:
        # Usually a copy of a shipped profile; an entry of a matrix cannot have an id.
        return (
            f"{said}the profiles {other.profile} and {cell.profile} have the same name: give "
            "one of them another `name`."
        )
    return f"{said}give one of them a different id."


def find_cell(cells: Sequence[PlannedCell], cell_id: str) -> PlannedCell:
    """Return the cell called ``cell_id``.

    Raises:
        UsageError: there is none.
    """
    for cell in cells:
        if cell.id == cell_id:
            return cell
    hint = nearest(cell_id, [cell.id for cell in cells])
    raise UsageError(
        full_stop(f"{cell_id}: the plan has no such cell; {hint}"),
        code=ErrorCode.UNKNOWN_NAME,
        option="--id",
    )


def loads_model(cell: Cell) -> bool:
    """Whether one of our workers loads the cell's model: a preset, or a directory on its machine.

    The model of a watched program is only a name, and released servers bring their own.
    """
    return cell.kind is not CellKind.WATCH and not _model_of_servers(cell.versions)


def plan_hash(plan: Plan, cells: Iterable[PlannedCell]) -> str:
    """Hash everything that runs, and the rules for reruns.

    Waivers are excluded, because adding one must not invalidate a nightly run that is half done.
    They apply when cells are merged, and to further attempts of a cell.
    """
    policy = plan.policy
    ran = [json.dumps(msgspec.to_builtins(cell.cell), sort_keys=True) for cell in cells]
    rules = f"{policy.rerun_statistical_leak} {policy.rerun_invalid} {policy.extend}"
    return hashlib.sha256("\n".join([plan.name, rules, *ran]).encode()).hexdigest()[:16]


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


@dataclass
class _Profiles:
    """Profiles by their name in the plan; paths are relative to the plan."""

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
        """Return ``name`` as ``--profile`` accepts it from any directory."""
        if "/" not in name and not name.endswith((".yaml", ".yml")):
            return name
        return str((self.folder / name).resolve())


def _planned(
    entry: SoakEntry | CompareEntry,
    loaded: LoadedPlan,
    known: _Profiles,
    where: KeyPath,
    defects: tuple[str, ...],
) -> PlannedCell:
    plan, place = loaded.plan, loaded.place(*where)
    name = entry.profile or DEFAULT_PROFILE
    profile = known.get(name, place)
    settings = {key: _setting(value) for key, value in {**plan.set, **entry.set}.items()}
    if settings:
        # Refuse a wrong key now, not hours later when its cell runs.
        try:
            profile = profile.with_overrides(settings)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
    needed_s = _decides_from_s(entry, profile)
    duration_s = entry.duration_s or plan.duration_s or max(_DURATION_S, needed_s)
    least_s = max(entry.least_duration_s or plan.least_duration_s or 0.0, needed_s)
    versions = (entry.version,) if isinstance(entry, SoakEntry) else entry.versions
    served = _model_of_servers(versions)
    model = entry.model or served or profile.model
    # The plan's defaults for our workers do not apply to released servers.
    of_workers: Common = Common() if served else plan
    if served:
        _refuse_of_workers(entry, place)
    cell = Cell(
        id=entry.id or _id(entry, model, profile),
        kind=CellKind.SOAK if isinstance(entry, SoakEntry) else CellKind.COMPARE,
        profile=name,
        model=model,
        versions=versions,
        seed=profile.seed if entry.seed is None else entry.seed,
        duration_s=duration_s,
        ballast=of_workers.ballast if entry.ballast is None else entry.ballast,
        gc=entry.gc or of_workers.gc,
        # A comparison has no such option, and a plan's device applies only to its soaks.
        device=entry.device or of_workers.device if isinstance(entry, SoakEntry) else None,
        settings=settings,
        # Only comparisons have thresholds on ratios.
        thresholds=(
            (*plan.thresholds, *entry.thresholds)
            if isinstance(entry, SoakEntry)
            else entry.thresholds
        ),
        block_s=entry.block_s if isinstance(entry, CompareEntry) else None,
        margin=entry.margin if isinstance(entry, CompareEntry) else None,
        needs=entry.needs or plan.needs or Needs(),
    )
    # A directory may exist only on the machines that run the cells, not on the planning one.
    fault = None if served or "/" in cell.model else model_fault(cell.model)
    if fault is not None:
        raise ConfigError(full_stop(f"{place}: model {fault}"), code=ErrorCode.UNKNOWN_NAME)
    # Servers are soaked one after another, without blocks.
    decides = cell.kind is CellKind.SOAK or not served
    if decides and duration_s < needed_s:
        at = ("duration",) if entry.duration_s is None else (*where, "duration")
        raise ConfigError(_too_short(cell, needed_s, loaded.place(*at)))
    # Defects change neither id nor work, so that the last green run is still the baseline.
    extra = tuple(f"{DEFECT}{name}" for name in defects) if cell.kind is CellKind.SOAK else ()
    cell = msgspec.structs.replace(
        cell, work=_work(cell, profile), versions=(*cell.versions, *extra)
    )
    # A cell that is shorter than the plan's minimum is short on purpose.
    return PlannedCell(cell, min(least_s, duration_s), known.source(name))


def _refuse_of_workers(entry: SoakEntry | CompareEntry, place: str) -> None:
    """Refuse keys that ``soak`` and ``compare`` would refuse for released servers in every cell.

    Raises:
        ConfigError: the entry has a key that applies only to engines in our workers.
    """
    keys: dict[str, object] = {"gc": entry.gc, "ballast": entry.ballast, "device": entry.device}
    if isinstance(entry, CompareEntry):
        keys["block"] = entry.block_s
    given = [key for key, value in keys.items() if value is not None]
    if given:
        applies, it = ("applies", "it") if len(given) == 1 else ("apply", "them")
        raise ConfigError(
            f"{place}: {', '.join(given)}: {applies} only to engines in our workers, not to "
            f"released servers; leave {it} out."
        )


def _model_of_servers(versions: Iterable[str]) -> str:
    """Return the model family of the released servers among ``versions``; empty without one."""
    engines = [named_engine(version)[0] for version in versions if is_release(version)]
    return next((name for engine in engines for name in engine.models), "")


def _watched(entry: WatchEntry, plan: Plan) -> PlannedCell:
    duration_s = entry.duration_s or plan.duration_s or _DURATION_S
    stored = redacted(entry.words)
    cell = Cell(
        id=entry.id,
        kind=CellKind.WATCH,
        profile="",
        model=role_of_command(entry.command),
        versions=(),
        seed=0,
        duration_s=duration_s,
        thresholds=(*plan.thresholds, *entry.thresholds),
        needs=entry.needs or plan.needs or Needs(),
        watch=stored,
        work=hashlib.sha256("\n".join(stored).encode()).hexdigest()[:16],
    )
    least_s = entry.least_duration_s or plan.least_duration_s or 0.0
    return PlannedCell(cell, min(least_s, duration_s), watch=entry.words)


def _decides_from_s(entry: SoakEntry | CompareEntry, profile: Profile) -> float:
    """Return the shortest length at which ``entry`` can reach a verdict.

    Zero for a soak whose profile limits no memory growth: only exact counts decide there.
    """
    if isinstance(entry, CompareEntry):
        block_s = BLOCK_S if entry.block_s is None else entry.block_s
        return DEFAULT_LOOKS[0] * block_s * len(entry.versions)
    needed_s = profile.decides_from_s
    return needed_s if needed_s < math.inf else 0.0


def _too_short(cell: Cell, needed_s: float, place: str) -> str:
    needed = format_duration(needed_s)
    if cell.kind is CellKind.COMPARE:
        decides = (
            f"for {DEFAULT_LOOKS[0]} blocks of each version, which the first interim analysis "
            f"needs: {needed} or more; write duration: {needed}, a shorter block"
        )
    else:
        decides = (
            f"to judge growth of memory: profile {cell.profile} needs {needed} or more; write "
            f"duration: {needed}"
        )
    lasts = f"{cell.id} lasts {format_duration(cell.duration_s)}"
    return f"{place}: {lasts}, too short {decides}, or leave the cell out."


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _id(entry: SoakEntry | CompareEntry, model: str, profile: Profile) -> str:
    """Build the id only from the cell's own facts, so that other cells never change it."""
    model = Path(model).name
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
        str((cell.ballast, cell.gc, cell.device, tuple(cell.settings.items()))),
    ]
    return hashlib.sha256("\n".join(what).encode()).hexdigest()[:16]
