"""``hybridbench bisect``: find the commit or release that made the engine worse, by comparing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, NoReturn, Protocol, TypeVar

import typer

from hybridbench.cli.compare import BlockTime, Margin, MaxTime, Renew, Rounds, Ui
from hybridbench.cli.compare_options import CompareOptions
from hybridbench.cli.compare_servers import compared_servers, settings_of_servers
from hybridbench.cli.compare_versions import compared, settings_of
from hybridbench.cli.options import (
    Ballast,
    CompareUi,
    Gc,
    Model,
    ProfileName,
    Seed,
    Set,
    Store,
    Targets,
    targets_root,
)
from hybridbench.foundation.errors import ConfigError, ExitCode, WorkerFailedError
from hybridbench.foundation.safe_output import echo, output_after_verdict
from hybridbench.rundir.layout import STORE

if TYPE_CHECKING:
    from hybridbench.compare.bisect import Bisected, Symptom, Tried
    from hybridbench.compare.store import StoredComparison
    from hybridbench.compare.worktree import Revision
    from hybridbench.targets.engines.engine import Engine

V = TypeVar("V")
V_contra = TypeVar("V_contra", contravariant=True)

EXIT_CODES = (
    "Exit codes: 0 the first bad commit or release is found, 13 it is one of several, or the bad "
    "one is not worse, 2 usage, 130 interrupted."
)


def bisect(
    good: Annotated[
        str, typer.Option(metavar="REF", help="A known-good commit; with --target, a release.")
    ],
    bad: Annotated[
        str,
        typer.Option(
            metavar="REF",
            help="A known-bad commit, later than the good one; with --target, a release before or "
            "after it.",
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Search the releases of an engine, and prepare those that are tried: "
            "sglang-cache or vllm-core, whose classes can be driven, or a server: vllm, sglang, "
            "llamacpp.",
        ),
    ] = None,
    targets: Targets = None,
    model: Model = None,
    profile: ProfileName = None,
    max_time: MaxTime = "20m",
    block: BlockTime = "15s",
    rounds: Rounds = None,
    margin: Margin = "3%",
    seed: Seed = None,
    gc: Gc = None,
    ballast: Ballast = None,
    set_: Set = None,
    renew: Renew = 0,
    store: Store = STORE,
    ui: Ui = CompareUi.AUTO,
) -> None:
    """Find the first commit or release that made the engine slower or leak, or that fixed it.

    Example: hybridbench bisect --good v0.1.0 --bad HEAD --profile smoke

    Every step is a `hybridbench compare GOOD MIDDLE` with the same options.  Comparisons of
    the same engines with the same settings in the store are reused, and a
    version that cannot be built or compared is skipped and named.

    With a --good that is later than --bad the releases are searched backwards, for the one that
    fixed it: hybridbench bisect --target sglang-cache --good 0.5.13 --bad 0.5.9.

    Servers are soaked one after the other, each for half of --max-time, and the good one once.
    """
    from hybridbench.compare import bisect as search

    options = CompareOptions(
        model=model, profile=profile, max_time=max_time, block=block, rounds=rounds,
        margin=margin, seed=seed, gc=gc, ballast=ballast, set_=tuple(set_ or ()),
        renew_every=renew, store=store, targets=targets_root(targets), ui=ui,
    )  # fmt: skip
    if target is None:
        commits = search.commits_between(good, bad)
        _bisect(commits, _Commits(), options, search.ancestry(commits))
    from hybridbench.targets.engines.catalog import engine_called

    engine = engine_called(target, option="--target")
    if not engine.servers:
        releases = search.releases_between(good, bad, engine.releases)
        _bisect(releases, _Releases(engine, options.targets, releases), options)
    releases = search.releases_between(good, bad, _installable(engine, good, options.targets))
    _bisect(releases, _Servers(engine, options.targets, releases), _with_seed(options))


def _installable(engine: Engine, good: str, root: Path) -> list[str]:
    """Prepare the good release, and list the releases that pip finds from its environment.

    Raises:
        ConfigError, WorkerFailedError: it cannot be installed here.
    """
    from hybridbench.targets.prepare import releases_of

    _prepare(engine, good, root)
    return releases_of(engine, good, root, os.environ)


def _prepare(engine: Engine, release: str, root: Path) -> None:
    from hybridbench.targets.prepare import prepare

    prepare(engine, release, root, os.environ, partial(echo, err=True))


def _with_seed(options: CompareOptions) -> CompareOptions:
    """Use the profile's seed unless one is given, so that all servers get the same requests."""
    from hybridbench.workload.catalog import DEFAULT_PROFILE, load_profile

    if options.seed is not None:
        return options
    return replace(options, seed=load_profile(options.profile or DEFAULT_PROFILE).seed)


def _bisect(
    versions: list[V],
    kind: _Kind[V],
    options: CompareOptions,
    contained: Sequence[int] | None = None,
) -> NoReturn:
    """Search, print the result, and exit."""
    from hybridbench.compare import bisect as search

    first, last = versions[0], versions[-1]
    # Refuse options that are invalid for every version here, so that not all versions are skipped.
    kind.settings((kind.compared_as(first), kind.compared_as(last)), options)
    kind.make_ready(first)
    count = len(versions) - 1
    noun = kind.singular if count == 1 else kind.plural
    echo(f"{count} {noun} after {kind.name(first)}", err=True)
    found = search.bisect(versions, _Search(first, kind, options), contained)
    with output_after_verdict():
        echo("\n".join(_result_lines(found, versions, kind)))
    is_found = len(found.suspects) == 1
    raise typer.Exit(int(ExitCode.CLEAN if is_found else ExitCode.INCONCLUSIVE))


class _Kind(Protocol[V_contra]):
    """The kind of version searched: how to name, compare and identify one."""

    singular: str
    plural: str

    def name(self, version: V_contra) -> str: ...
    def compared_as(self, version: V_contra) -> str:
        """The version as an argument of ``compare``."""
        ...

    def engine_of(self, version: V_contra) -> str:
        """An id that is equal for versions with the same engine."""
        ...

    def result(self, good: V_contra, bad: V_contra) -> str:
        """One line on the two adjacent versions between which the engine changed."""
        ...

    def make_ready(self, version: V_contra) -> None:
        """
        Raises:
            ConfigError, WorkerFailedError: the version cannot be built or installed here.
        """
        ...

    def settings(self, names: Sequence[str], options: CompareOptions) -> str:
        """The digest of the settings of a comparison.

        Raises:
            UsageError, ConfigError: an option is invalid.
        """
        ...

    def compare(
        self, names: Sequence[str], options: CompareOptions
    ) -> tuple[Path, ExitCode | None]:
        """Compare two versions, like ``compare``."""
        ...

    def note_finished(self, directory: Path) -> None:
        """Called with the directory of a finished comparison with the first version."""
        ...


class _InWorkers:
    """Versions that run in our workers and alternate."""

    def settings(self, names: Sequence[str], options: CompareOptions) -> str:
        return settings_of(names, options)

    def compare(
        self, names: Sequence[str], options: CompareOptions
    ) -> tuple[Path, ExitCode | None]:
        return compared(names, options)

    def note_finished(self, directory: Path) -> None:
        """Do nothing: each comparison runs both versions."""


class _Commits(_InWorkers):
    singular, plural = "commit", "commits"

    def name(self, version: Revision) -> str:
        return f"{version.commit[:12]} {version.subject}"

    def compared_as(self, version: Revision) -> str:
        return f"git:{version.commit[:12]}"

    def engine_of(self, version: Revision) -> str:
        return version.tree

    def result(self, good: Revision, bad: Revision) -> str:
        return f"first bad commit: {self.name(bad)}"

    def make_ready(self, version: Revision) -> None:
        """Do nothing: each comparison makes a worktree."""


class _Releases(_InWorkers):
    """Releases of an engine, from the good one to the bad one; each is prepared before its use."""

    singular, plural = "release", "releases"

    def __init__(self, engine: Engine, root: Path, releases: Sequence[str]) -> None:
        from packaging.version import Version

        self._engine = engine
        self._root = root
        self._is_backwards = Version(releases[0]) > Version(releases[-1])

    def name(self, version: str) -> str:
        return version

    def compared_as(self, version: str) -> str:
        return f"{self._engine.name}=={version}"

    engine_of = compared_as

    def result(self, good: str, bad: str) -> str:
        if self._is_backwards:
            return f"last bad release: {bad}; {good} fixed it"
        return f"first bad release: {bad}; {good} is good"

    def make_ready(self, version: str) -> None:
        _prepare(self._engine, version, self._root)


class _Servers(_Releases):
    """Releases of a server, soaked one after the other; the run of the good one is reused."""

    def __init__(self, engine: Engine, root: Path, releases: Sequence[str]) -> None:
        super().__init__(engine, root, releases)
        self._runs: dict[str, Path] = {}

    def settings(self, names: Sequence[str], options: CompareOptions) -> str:
        # The settings do not depend on the release, and only the first one is sure to be prepared.
        return settings_of_servers((names[0], names[0]), options)

    def compare(
        self, names: Sequence[str], options: CompareOptions
    ) -> tuple[Path, ExitCode | None]:
        return compared_servers(names, options, self._runs)

    def note_finished(self, directory: Path) -> None:
        from hybridbench.compare.store import read_comparison_manifest

        good = read_comparison_manifest(directory).versions[0]
        self._runs[good.name] = directory / good.run


class _Search(Generic[V]):
    """Compares versions with the good one, looking for the symptoms of the bad one."""

    def __init__(self, good: V, kind: _Kind[V], options: CompareOptions) -> None:
        self._good = good
        self._kind = kind
        self._options = options
        self._symptoms: frozenset[Symptom] | None = None

    def __call__(self, version: V) -> Tried[V]:
        from hybridbench.analysis.comparison.compare import compare
        from hybridbench.analysis.comparison.words import phrased_comparison
        from hybridbench.compare.bisect import Answer, Tried, answer_of, symptoms_of

        kind = self._kind
        if kind.engine_of(version) == kind.engine_of(self._good):
            return self._printed(Tried(version, Answer.GOOD, "no file of hybridbench differs"))
        try:
            kind.make_ready(version)
            directory, stored = self._comparison(version)
        except (ConfigError, WorkerFailedError) as error:
            return self._printed(Tried(version, Answer.SKIPPED, str(error)))
        if not stored.comparison.versions[0].verdict.invalid:
            kind.note_finished(directory)
        verdict = phrased_comparison(stored.comparison, compare(stored.comparison, stored.terms))
        if self._symptoms is None:
            self._symptoms = symptoms_of(stored.comparison, verdict)
        answer = answer_of(stored.comparison, verdict, self._symptoms)
        return self._printed(Tried(version, answer, verdict.full_headline))

    def _comparison(self, version: V) -> tuple[Path, StoredComparison]:
        """Return a comparison with its directory: a finished one from the store, else a new one.

        A comparison with an INVALID run, as on a busy machine, is repeated.
        """
        from hybridbench.compare.bisect import finished_comparison
        from hybridbench.compare.store import read_comparison

        kind, options = self._kind, self._options
        versions = (kind.compared_as(self._good), kind.compared_as(version))
        engines = (kind.engine_of(self._good), kind.engine_of(version))
        found = finished_comparison(options.store, engines, kind.settings(versions, options))
        if found is not None:
            stored = read_comparison(found)
            if not any(one.verdict.invalid for one in stored.comparison.versions):
                return found, stored
        directory, hint = kind.compare(versions, options)
        if hint is not None:
            raise typer.Exit(int(hint))
        return directory, read_comparison(directory)

    def _printed(self, tried: Tried[V]) -> Tried[V]:
        echo(f"{tried.answer.value:8} {self._kind.name(tried.version)}: {tried.why}", err=True)
        return tried


def _result_lines(found: Bisected[V], versions: Sequence[V], kind: _Kind[V]) -> list[str]:
    names = [kind.name(suspect) for suspect in found.suspects]
    if not names:
        bad = kind.name(versions[-1])
        return [f"{bad} is not shown to be worse than the good {kind.singular}."]
    if len(names) == 1:
        before = versions[versions.index(found.suspects[0]) - 1]
        return [kind.result(before, found.suspects[0])]
    return [
        f"it is one of these {kind.plural}; those before the last were skipped:",
        *(f"  {name}" for name in names),
    ]
