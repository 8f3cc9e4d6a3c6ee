"""``hybridbench bisect``: the commit that made the engine worse, by comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridbench.cli.compare import BlockTime, Margin, MaxTime, Renew, Rounds, Ui
from hybridbench.cli.compare_options import CompareOptions, compared, settings_of
from hybridbench.cli.options import (
    Ballast,
    CompareUi,
    Gc,
    Model,
    ProfileName,
    Seed,
    Set,
    Store,
)
from hybridbench.errors import ConfigError, ExitCode, WorkerFailedError
from hybridbench.safe_output import echo, output_after_verdict

if TYPE_CHECKING:
    from hybridbench.compare.bisect import Bisected, Symptom, Tried
    from hybridbench.compare.worktree import Revision

EXIT_CODES = (
    "Exit codes: 0 the first bad commit is found, 13 it is one of several, or the bad commit is "
    "not worse, 2 usage, 130 interrupted."
)


def bisect(
    good: Annotated[str, typer.Option(metavar="REF", help="A known-good commit.")],
    bad: Annotated[
        str, typer.Option(metavar="REF", help="A known-bad commit, later than the good one.")
    ],
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
    store: Store = Path("results"),
    ui: Ui = CompareUi.AUTO,
) -> None:
    """Find the first commit that made the engine slower or leak.

    Example: hybridbench bisect --good v0.1.0 --bad HEAD --profile smoke

    Every step is a `hybridbench compare git:GOOD git:MIDDLE` with the same options.  Comparisons of
    the same engines with the same settings in the store are reused, and a
    commit that cannot be built or compared is skipped and named.
    """
    from hybridbench.compare import bisect as search

    options = CompareOptions(
        model=model, profile=profile, max_time=max_time, block=block, rounds=rounds,
        margin=margin, seed=seed, gc=gc, ballast=ballast, set_=tuple(set_ or ()),
        renew_every=renew, store=store, ui=ui,
    )  # fmt: skip
    commits = search.commits_between(good, bad)
    # What cannot be for any commit is no reason to pass each of them over.
    settings_of((f"git:{good}", f"git:{bad}"), options)
    echo(f"{len(commits) - 1} commits after {_name(commits[0])}", err=True)
    found = search.bisect(commits, _Search(commits[0], options))
    raise typer.Exit(int(_print_result(found, commits[-1])))


class _Search:
    """Compares commits with the good one; what the bad one shows is what is searched for."""

    def __init__(self, good: Revision, options: CompareOptions) -> None:
        self._good = good
        self._options = options
        self._symptoms: frozenset[Symptom] | None = None

    def __call__(self, revision: Revision) -> Tried:
        from hybridbench.analysis.comparison.compare import compare
        from hybridbench.analysis.comparison.words import phrased_comparison
        from hybridbench.compare.bisect import Answer, Tried, answer_of, symptoms_of
        from hybridbench.compare.store import read_comparison

        if revision.tree == self._good.tree:
            return _printed(Tried(revision, Answer.GOOD, "no file of hybridbench differs"))
        try:
            stored = read_comparison(self._comparison(revision))
        except (ConfigError, WorkerFailedError) as error:
            return _printed(Tried(revision, Answer.SKIPPED, str(error)))
        verdict = phrased_comparison(stored.comparison, compare(stored.comparison, stored.terms))
        if self._symptoms is None:
            self._symptoms = symptoms_of(verdict)
        answer = answer_of(stored.comparison, verdict, self._symptoms)
        return _printed(Tried(revision, answer, verdict.full_headline))

    def _comparison(self, revision: Revision) -> Path:
        """The directory of one that is in the store already, or of a new one."""
        from hybridbench.compare.bisect import finished_comparison

        versions = (f"git:{self._good.commit[:12]}", f"git:{revision.commit[:12]}")
        trees = (self._good.tree, revision.tree)
        options = self._options
        found = finished_comparison(options.store, trees, settings_of(versions, options))
        if found is not None:
            return found
        directory, hint = compared(versions, options)
        if hint is not None:
            raise typer.Exit(int(hint))
        return directory


def _printed(tried: Tried) -> Tried:
    echo(f"{tried.answer.value:8} {_name(tried.revision)}: {tried.why}", err=True)
    return tried


def _print_result(found: Bisected, bad: Revision) -> ExitCode:
    with output_after_verdict():
        echo("\n".join(_result_lines(found, bad)))
    return ExitCode.CLEAN if len(found.suspects) == 1 else ExitCode.INCONCLUSIVE


def _result_lines(found: Bisected, bad: Revision) -> list[str]:
    names = [_name(suspect) for suspect in found.suspects]
    if not names:
        return [f"{_name(bad)} is not shown to be worse than the good commit."]
    if len(names) == 1:
        return [f"first bad commit: {names[0]}"]
    return [
        "the first bad commit is one of these; those before the last were skipped:",
        *(f"  {name}" for name in names),
    ]


def _name(revision: Revision) -> str:
    return f"{revision.commit[:12]} {revision.subject}"
