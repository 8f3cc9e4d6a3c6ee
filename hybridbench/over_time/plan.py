"""A nightly plan, from YAML: which soaks and comparisons, how long, and when the run fails."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass as plain_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, Strict, TypeAdapter
from pydantic.dataclasses import dataclass

from hybridbench.analysis.findings.engine_reports import ENGINE_PREFIX
from hybridbench.analysis.findings.kinds import finding_kinds
from hybridbench.foundation.errors import ConfigError, ErrorCode, UsageError, full_stop, nearest
from hybridbench.foundation.setting_types import DurationS, Name, Text
from hybridbench.foundation.thresholds import Stat, parse_threshold
from hybridbench.over_time.policy import SLOWER
from hybridbench.records.nightly import Needs, Policy, Waiver, parse_max_rate
from hybridbench.targets.engines.catalog import named_engine
from hybridbench.workload.catalog import list_plans
from hybridbench.workload.fields import Objects, Seed
from hybridbench.workload.settings import SETTINGS
from hybridbench.workload.validation import validated
from hybridbench.workload.yaml_source import KeyPath, Source, read_yaml

# `hybridbench soak` refuses shorter runs.
SHORTEST_S: Final = 20.0

Settings = Mapping[Text, bool | int | float | str]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Matrix:
    """Every combination of profile, model and engine version, once for each seed.

    A version is ``.`` (the installed or checked-out engine), ``defect:SLUG`` or a prepared release
    (``vllm==0.32.0``).  Models and seeds default to the profile's.
    """

    profiles: tuple[Text, ...] = ()
    models: tuple[Text, ...] = ()
    versions: tuple[Text, ...] = (".",)
    seeds: tuple[Seed, ...] = ()


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Common:
    """Keys that every cell may set; the plan's values are the defaults.

    A budget never shortens a cell below ``least_duration``, nor a soak below the length that its
    profile needs to decide, even if ``least_duration`` is shorter.
    """

    duration_s: DurationS | None = None
    least_duration_s: DurationS | None = None
    ballast: Objects | None = None
    gc: Literal["default", "freeze-after-warmup"] | None = None
    device: Text | None = None
    set: Settings = Field(default_factory=dict)
    thresholds: tuple[Text, ...] = ()
    needs: Needs | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class SoakEntry(Common):
    """One soak in addition to the matrix."""

    id: Name | None = None
    profile: Text
    model: Text | None = None
    version: Text = "."
    seed: Seed | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class CompareEntry(Common):
    """One comparison: its versions alternate on one machine.  ``duration`` is the time limit."""

    id: Name | None = None
    versions: Annotated[tuple[Text, ...], Field(min_length=2)]
    profile: Text | None = None
    model: Text | None = None
    seed: Seed | None = None
    block_s: DurationS | None = None
    margin: Annotated[float, Strict(), Field(gt=0.0, lt=1.0)] | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class WatchEntry:
    """One watched run of another program; its keys are options of ``hybridbench watch``."""

    id: Name
    command: Annotated[tuple[Text, ...], Field(min_length=1)]
    duration_s: DurationS | None = None
    least_duration_s: DurationS | None = None
    metrics: Text | None = None
    ready: Text | None = None
    load: Text | None = None
    log: Text | None = None
    idle_every: Text | None = None
    reset_cache: Text | None = None
    instrument: tuple[Text, ...] = ()
    cache_budget: tuple[Text, ...] = ()
    thresholds: tuple[Text, ...] = ()
    needs: Needs | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """Return the options, then the command, as typed on the command line."""
        single = ("metrics", "ready", "load", "log", "idle_every", "reset_cache")
        options = [(name, value) for name in single if (value := getattr(self, name)) is not None]
        options += [("instrument", value) for value in self.instrument]
        options += [("cache_budget", value) for value in self.cache_budget]
        typed = (word for n, value in options for word in (f"--{n.replace('_', '-')}", value))
        return (*typed, "--", *self.command)


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Plan(Common):
    """A plan as written; ``cells.expand`` turns it into cells.

    Without a ``duration`` a cell lasts ten minutes, or longer if its profile needs that to decide.
    """

    name: Name
    description: str = ""
    budget_s: DurationS | None = None
    matrix: Matrix = Matrix()
    cells: tuple[SoakEntry, ...] = ()
    compare: tuple[CompareEntry, ...] = ()
    watch: tuple[WatchEntry, ...] = ()
    policy: Policy = Policy()
    waivers: tuple[Waiver, ...] = ()


@plain_dataclass(frozen=True)
class LoadedPlan:
    """A plan and its file, which errors cite and to which profile paths are relative."""

    plan: Plan
    path: Path
    source: Source

    def place(self, *path: str | int) -> str:
        """Return ``file:line`` of a key."""
        return self.source.place(path)


def load_plan(name_or_path: str | Path) -> LoadedPlan:
    """Return the plan in that file, or the shipped plan of that name.

    Raises:
        ConfigError: one sentence with file, line and key.
    """
    path = Path(name_or_path)
    shipped = list_plans()
    # Ignore a directory of that name: nightly runs often write results to one.
    if not path.exists() or (path.is_dir() and str(name_or_path) in shipped):
        if str(name_or_path) not in shipped:
            hint = nearest(str(name_or_path), list(shipped))
            raise ConfigError(
                full_stop(f"{name_or_path}: there is no such plan; {hint}"),
                code=ErrorCode.NOT_FOUND,
            )
        path = shipped[str(name_or_path)]
    source = read_yaml(path, "plan")
    loaded = LoadedPlan(plan=validated(_adapter(), source), path=path, source=source)
    for where, fault in _faults(loaded.plan):
        raise ConfigError(full_stop(f"{source.place(where)}: {fault}"))
    return loaded


def plan_json_schema() -> dict[str, object]:
    """Return the JSON Schema of a plan, for editors and other tools."""
    schema: dict[str, object] = _adapter().json_schema(by_alias=True, mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def named_versions(plan: Plan) -> Iterator[tuple[KeyPath, str]]:
    """Yield every version that ``plan`` names, and where."""
    for index, version in enumerate(plan.matrix.versions):
        yield ("matrix", "versions", index), version
    for index, cell in enumerate(plan.cells):
        yield ("cells", index, "version"), cell.version
    for index, entry in enumerate(plan.compare):
        for position, version in enumerate(entry.versions):
            yield ("compare", index, "versions", position), version


@cache
def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def _faults(plan: Plan) -> Iterator[tuple[KeyPath, str]]:
    """Yield faults that the types cannot express; only the first is reported."""
    if not (plan.matrix.profiles or plan.cells or plan.compare or plan.watch):
        said = f"{plan.name} has nothing to run; give matrix.profiles, cells, compare or watch"
        yield ("name",), said
    yield from _lengths(plan, (), plan)
    yield from _thresholds(plan, (), of_comparison=False)
    for index, cell in enumerate(plan.cells):
        yield from _thresholds(cell, ("cells", index), of_comparison=False)
        yield from _lengths(cell, ("cells", index), plan)
        yield from _version(cell.version, ("cells", index, "version"))
    for index, entry in enumerate(plan.compare):
        yield from _thresholds(entry, ("compare", index), of_comparison=True)
        if entry.device is not None:
            said = "device: `hybridbench compare` has no such option"
            yield ("compare", index, "device"), said
        yield from _lengths(entry, ("compare", index), plan)
    for index, watched in enumerate(plan.watch):
        yield from _thresholds(watched, ("watch", index), of_comparison=False)
        yield from _lengths(watched, ("watch", index), plan)
    for index, version in enumerate(plan.matrix.versions):
        yield from _version(version, ("matrix", "versions", index))
    for index, waiver in enumerate(plan.waivers):
        yield from _waiver(waiver, ("waivers", index))


def _lengths(
    entry: Common | WatchEntry, where: KeyPath, plan: Plan
) -> Iterator[tuple[KeyPath, str]]:
    least_s = entry.least_duration_s
    for key, value in (("duration", entry.duration_s), ("least_duration", least_s)):
        if value is not None and value < SHORTEST_S:
            yield (
                (*where, key),
                f"{key}: too short to be judged; use at least {SHORTEST_S:g}s",
            )
    duration_s = plan.duration_s if entry.duration_s is None else entry.duration_s
    if least_s is not None and duration_s is not None and least_s > duration_s:
        yield (
            (*where, "least_duration"),
            f"least_duration {least_s:g}s is longer than duration {duration_s:g}s",
        )


def _thresholds(
    entry: Common | WatchEntry, where: KeyPath, *, of_comparison: bool
) -> Iterator[tuple[KeyPath, str]]:
    for index, text in enumerate(entry.thresholds):
        try:
            ratio = parse_threshold(text).stat is Stat.RATIO
        except ValueError as error:
            yield (*where, "thresholds", index), str(error)
            continue
        if ratio and not of_comparison:
            said = f"'{text}': a ratio compares two versions; put it under compare"
            yield (*where, "thresholds", index), said


def _version(version: str, where: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if version == "." or re.fullmatch(r"defect:\S+|defects-as-of:\S+", version):
        return
    if is_release(version):
        try:
            named_engine(version)
        except UsageError as error:
            yield where, f"{version}: {str(error).rstrip('.')}"
        return
    yield (
        where,
        f"{version} cannot be soaked; write . (the engine of this checkout), defect:SLUG or a "
        "prepared release (vllm==0.32.0), and name git: and python: versions under compare",
    )


def is_release(version: str) -> bool:
    """Whether ``version`` names a release of another engine."""
    return "==" in version


def _waiver(waiver: Waiver, where: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    kinds = (*finding_kinds(), SLOWER)
    if waiver.kind not in kinds and not waiver.kind.startswith(ENGINE_PREFIX):
        said = f"{waiver.kind}: there is no such kind of finding; {nearest(waiver.kind, kinds)}"
        yield (*where, "kind"), said
    if not waiver.subject.strip("*"):
        yield (
            (*where, "subject"),
            f"{waiver.subject} would waive every subject; name the metric, pool or class",
        )
    if waiver.max_rate is not None:
        try:
            parse_max_rate(waiver.max_rate)
        except ValueError as error:
            yield (*where, "max_rate"), str(error)
