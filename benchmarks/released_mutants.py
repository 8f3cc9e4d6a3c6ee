"""Recall on foreign code: take statements out of a released engine, one at a time, and soak it.

Healthy soaks first record which statements the traffic executes.  Then a sample of the calls that
give something back (free, release, remove, pop, evict, unlock) is removed from a copy of the
prepared release, one call per copy, and the copy is soaked on the traffic that executes that call.
No knowledge about the purpose of the statements is used.

    python -m benchmarks released-mutants OUT --targets DIR [--sample 20] [--seed 1]
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Annotated

import msgspec
import typer

from hybridbench.analysis.judge import judge
from hybridbench.defects.mutants import COUNTER, Candidate, candidates_in, changed_module
from hybridbench.foundation.errors import UsageError
from hybridbench.records.events import Steady
from hybridbench.records.finding import VerdictKind
from hybridbench.rundir.reader import read_run
from hybridbench.selftest.mutants import FINDINGS
from hybridbench.targets.driven import driven_release
from hybridbench.targets.linked_packages import site_packages

_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Subject:
    """An engine whose classes are driven.

    Attributes:
        package: folder below site-packages.
        parts: files and folders of the driven classes; the rest is for servers and models.
        workloads: profile and options by name, those of the published results.
    """

    package: str
    parts: tuple[str, ...]
    workloads: Mapping[str, Sequence[str]]


_SUBJECTS = {
    "sglang-cache": Subject(
        "sglang/srt",
        ("mem_cache", "managers", "session"),
        {
            "chat-churn": (),
            "chat-churn, unified tree": ("--set", "engine.cache=unified"),
            "shared-prefix": ("--model", "attention-tiny", "--set", "pools.page_size=1"),
            "session-churn": ("--set", "sessions.close_busy=0"),
        },
    ),
    "vllm-core": Subject(
        "vllm/v1",
        ("core", "request.py"),
        {
            "shared-prefix": (),
            "chat-churn": (),
            "chat-churn, windows": ("--model", "gpt-oss"),
        },
    ),
}
_COUNTER = """
import os as _os
_counted = set()
def {counter}(slug):
    if slug not in _counted:
        _counted.add(slug)
        with open({path!r}, "a") as file:
            file.write(slug + "\\n")
"""


class Outcome(msgspec.Struct, frozen=True):
    """How the soak of one mutant ended."""

    name: str
    workload: str
    verdict: str
    headline: str
    was_steady: bool

    @property
    def outcome(self) -> str:
        """Found, crashed, missed, or dead (it ended or hung before it was steady)."""
        if self.verdict in FINDINGS:
            return "found"
        if not self.was_steady:
            return "dead"
        return "crashed" if self.verdict == VerdictKind.CRASHED else "missed"


@dataclass(frozen=True)
class Copy:
    """A copy of a prepared release, made of hard links, in which single files can be replaced."""

    root: Path
    name: str
    subject: Subject

    @property
    def package(self) -> Path:
        return site_packages(self.root / self.name / "env") / self.subject.package

    @contextmanager
    def with_files(self, texts: Mapping[str, str]) -> Iterator[None]:
        """Replace files by ``texts`` (by path), and restore the release's own files afterwards."""
        for path, text in texts.items():
            file = self.package / path
            file.rename(file.with_suffix(".own"))
            file.write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            for path in texts:
                file = self.package / path
                file.with_suffix(".own").replace(file)

    def soak(self, target: str, workload: str, seconds: int, store: Path) -> Outcome:
        """Soak the copy; the run directory stays in ``store``."""
        command = [
            *(sys.executable, "-m", "hybridbench", "soak", "--target", target),
            *("--targets", str(self.root), "--profile", workload.partition(",")[0]),
            *("--duration", f"{seconds}s", "--store", str(store), "--seed", "7"),
            *("--extend", "0", "--diagnose", "never", "--ballast", "20000", "--ui", "none"),
            *self.subject.workloads[workload],
        ]
        store.mkdir(parents=True)
        said = store / "stderr"
        with said.open("w") as stderr:
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
            )
            try:
                process.wait(seconds + _PATIENCE_S)
            except subprocess.TimeoutExpired:
                # A mutant's scheduler may serve nothing and never finish its drain.
                os.killpg(process.pid, signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE_S)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        runs = sorted(path for path in store.iterdir() if (path / "manifest.json").is_file())
        if not runs:
            error = said.read_text().strip()[-200:]
            return Outcome("", workload, VerdictKind.CRASHED, error, was_steady=False)
        record = read_run(runs[-1])
        verdict, steady = judge(record), bool(record.all_events(Steady))
        return Outcome("", workload, verdict.kind, verdict.headline, steady)


def main(
    out: Annotated[Path, typer.Argument(help="Directory for the runs; finished ones are reused.")],
    targets: Annotated[Path, typer.Option(help="Folder of the prepared targets.")],
    target: Annotated[str, typer.Option(help="The release.")] = "sglang-cache==0.5.13",
    sample: Annotated[int, typer.Option(help="Statements to remove.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 1,
    seconds: Annotated[int, typer.Option(help="Traffic of each soak.", min=30)] = 60,
    jobs: Annotated[int, typer.Option(help="Soaks at a time.", min=1)] = 2,
) -> None:
    """Remove calls that free something from a release, one at a time; soak each mutant."""
    name = target.replace("==", "-")
    if not (targets / name / "env").is_dir():
        raise UsageError(f"{target}: not in {targets}; `hybridbench target prepare {target}`.")
    subject = _SUBJECTS[driven_release(target)[0].name]
    package = site_packages(targets / name / "env") / subject.package
    sources = {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8")
        for part in subject.parts
        for path in sorted(
            [package / part] if part.endswith(".py") else (package / part).rglob("*.py")
        )
    }
    every = [c for path, text in sources.items() for c in candidates_in(path, text)]
    every = [candidate for candidate in every if candidate.kind == "frees"]
    shutil.rmtree(out / "copies", ignore_errors=True)
    copies: Queue[Copy] = Queue()
    for number in range(jobs):
        copy = Copy(out / "copies" / str(number), name, subject)
        copy.root.mkdir(parents=True)
        shutil.copytree(targets / name, copy.root / name, copy_function=os.link, symlinks=True)
        copies.put(copy)
    soaks = _Soaks(out, target, seconds, sources, copies)
    with ThreadPoolExecutor(jobs) as pool:
        workloads = list(subject.workloads)
        executed = dict(
            zip(workloads, pool.map(lambda one: soaks.healthy(one, every), workloads), strict=True)
        )
        # The first workload that executes the statement, as later ones are more specialised.
        where = {slug: name for name, slugs in reversed(executed.items()) for slug in slugs}
        able = [candidate for candidate in every if candidate.slug in where]
        drawn = random.Random(seed).sample(able, min(sample, len(able)))
        outcomes = list(pool.map(lambda one: soaks.mutant(one, where[one.slug]), drawn))
    shutil.rmtree(out / "copies")
    table = _table(outcomes, len(every), len(able))
    (out / "table.md").write_text(table, encoding="utf-8")
    print(table)


class _Soaks:
    """Soaks of one release, healthy and mutated; those already in ``out`` are not repeated."""

    def __init__(
        self, out: Path, target: str, seconds: int, sources: Mapping[str, str], copies: Queue[Copy]
    ) -> None:
        self._out, self._target, self._seconds = out, target, seconds
        self._sources, self._copies = sources, copies
        self._file = out / "outcomes.jsonl"
        lines = self._file.read_bytes().splitlines() if self._file.exists() else []
        stored = [msgspec.json.decode(line, type=Outcome) for line in lines]
        self._known = {one.name: one for one in stored}

    def healthy(self, workload: str, every: Sequence[Candidate]) -> frozenset[str]:
        """Return the slugs of the candidates in ``every`` that ``workload`` executes."""
        file = self._out / f"{workload.replace(', ', '-').replace(' ', '-')}.txt"
        paths = dict.fromkeys(candidate.file for candidate in every)
        texts = {path: _counting(self._sources[path], path, every, file) for path in paths}
        self._soak(workload, workload, texts, self._out / "healthy" / file.stem)
        return frozenset(file.read_text().split() if file.exists() else ())

    def mutant(self, candidate: Candidate, workload: str) -> Outcome:
        """Soak the release with the statement ``candidate`` removed."""
        text = changed_module(self._sources[candidate.file], [candidate], counted=False)
        store = self._out / candidate.slug
        return self._soak(candidate.name, workload, {candidate.file: text}, store)

    def _soak(self, name: str, workload: str, texts: Mapping[str, str], store: Path) -> Outcome:
        if name in self._known:
            return self._known[name]
        shutil.rmtree(store, ignore_errors=True)
        copy = self._copies.get()
        try:
            with copy.with_files(texts):
                outcome = copy.soak(self._target, workload, self._seconds, store)
        finally:
            self._copies.put(copy)
        outcome = msgspec.structs.replace(outcome, name=name)
        with self._file.open("ab") as lines:
            lines.write(msgspec.json.encode(outcome) + b"\n")
        word = "healthy" if name == workload else outcome.outcome
        print(f"{word:8} {name} ({workload}): {outcome.verdict}: {outcome.headline}", flush=True)
        return outcome


def _counting(source: str, path: str, every: Sequence[Candidate], file: Path) -> str:
    """Return ``source`` with each candidate recorded in ``file`` when it is first executed."""
    changed = changed_module(source, [c for c in every if c.file == path], counted=True)
    # A module's docstring and its __future__ imports must stay first.
    lines = changed.splitlines(keepends=True)
    future = [number for number, line in enumerate(lines) if line.startswith("from __future__")]
    at = future[-1] + 1 if future else 0
    counter = _COUNTER.format(counter=COUNTER, path=str(file.absolute()))
    return "".join([*lines[:at], counter, *lines[at:]])


def _table(outcomes: Sequence[Outcome], candidates: int, executed: int) -> str:
    count = Counter(one.outcome for one in outcomes)
    counts = ", ".join(f"{count[word]} {word}" for word in ("found", "crashed", "missed", "dead"))
    head = (
        f"{candidates} calls give something back; the traffic executes {executed}. "
        f"{len(outcomes)} drawn: {counts}.\n\n"
        "| outcome | statement | traffic | headline |\n|---|---|---|---|\n"
    )
    rows = sorted(outcomes, key=lambda one: (one.outcome, one.name))
    return head + "".join(
        f"| {o.outcome} | `{o.name}` | {o.workload} | {o.verdict}: {o.headline} |\n" for o in rows
    )
