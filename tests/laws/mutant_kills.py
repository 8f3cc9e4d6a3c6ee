"""Find which mutants of the engine the laws kill: a pytest plugin that replaces the test run.

``hybridbench selftest --mutants`` starts it.  All laws first run once while executed candidates are
counted, which gives each law's time and the statements that it executes.  Then each mutant gets a
forked process that runs the laws executing its statement, quickest first, until one fails or the
time is up.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import HealthCheck, Phase, settings

from hybridbench.defects.defect import Defect
from hybridbench.defects.inject import apply_defects, injected
from hybridbench.defects.mutants import REACHED, candidates, find_mutant

# One failing example is enough; no need to shrink it.
settings.register_profile(
    "mutants", max_examples=10, derandomize=True, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)  # fmt: skip
# A law hangs if it takes this many times as long as with the healthy engine.
_HANGS = 10.0
_HANGS_LEAST_S = 5.0
# CPU time per mutant, quickest laws first; only laws of storage take longer.
_BUDGET_S = 5.0
_LAWS_LEAST = 5
# CPU time allowed for a mutant's laws in addition to the one that hangs.
_MARGIN_S = 60.0
_MEMORY_MOST = 4 * 2**30
_PR_SET_PDEATHSIG = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutant-store", type=Path, required=True, help="laws.json, kills.jsonl")
    parser.addoption("--mutant-jobs", type=int, default=1)
    parser.addoption("--mutants", default="", help="slugs, with commas; all if empty")


@dataclass(frozen=True)
class Law:
    """A law, its time on the healthy engine, and the candidates that it does not execute."""

    item: pytest.Item
    took_s: float
    spares: frozenset[str]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    store: Path = session.config.getoption("--mutant-store")
    laws = _laws(session, store / "laws.json")
    kills = store / "kills.jsonl"
    kills.touch()
    done = {json.loads(line)["mutant"] for line in kills.read_text().splitlines()}
    jobs: int = session.config.getoption("--mutant-jobs")
    given: str = session.config.getoption("--mutants")
    # The first removes nothing: no law may fail merely because of how it is run here.
    slugs = given.split(",") if given else [REACHED, *(c.slug for c in candidates())]
    waiting = [slug for slug in slugs if slug not in done]
    running: dict[int, tuple[int, str]] = {}
    with kills.open("a") as out:
        while waiting or running:
            while waiting and len(running) < jobs:
                slug = waiting.pop(0)
                reaching = [law for law in laws if slug not in law.spares]
                reaching.sort(key=_by_time)
                if reaching:
                    running.update([_start(find_mutant(slug), reaching)])
                else:
                    _note(out, slug, {"killed_by": None, "of": 0})
            for descriptor in select.select(list(running), [], [], 1.0 if running else 0.0)[0]:
                pid, slug = running.pop(descriptor)
                _note(out, slug, _ended(descriptor, pid))
    return True


def _note(out: TextIO, slug: str, answer: dict[str, object]) -> None:
    out.write(json.dumps({"mutant": slug, **answer}) + "\n")
    out.flush()


def _by_time(law: Law) -> float:
    return law.took_s


def _laws(session: pytest.Session, path: Path) -> list[Law]:
    """Run each law once on the counting engine, or read ``path`` if that was done before."""
    if not path.exists():
        counting = find_mutant(REACHED)
        every = {candidate.slug for candidate in candidates()}
        measured: dict[str, tuple[float, list[str]]] = {}
        with injected(counting):
            for item in session.items:
                counting.truth.clear()
                began_s = time.process_time()
                _run(item)
                took_s = time.process_time() - began_s
                measured[item.nodeid] = took_s, sorted(every - set(counting.truth.counts()))
                assert not session.testsfailed, f"{item.nodeid} fails without a mutant"
        path.write_text(json.dumps(measured))
    known = json.loads(path.read_text())
    return [
        Law(item, known[item.nodeid][0], frozenset(known[item.nodeid][1]))
        for item in session.items
        if item.nodeid in known
    ]


def _run(item: pytest.Item) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


def _start(mutant: Defect, laws: Sequence[Law]) -> tuple[int, tuple[int, str]]:
    """Fork a process for ``mutant``; its answer is read from the returned descriptor."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # The warning is about threads, which a fork does not copy; between laws, none holds a lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(write)
        return read, (pid, mutant.slug)
    os.close(read)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_MOST, _MEMORY_MOST))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A loop in native code runs no signal handlers; this limit kills it.
    most_s = int(_MARGIN_S + max(_patience_s(law) for law in laws))
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))
    try:
        answer = json.dumps(_tried(mutant, laws, write))
    except BaseException as error:
        answer = json.dumps({"killed_by": f"the process: {error!r}"})
    os.write(write, answer.encode())
    os._exit(0)


def _tried(mutant: Defect, laws: Sequence[Law], answer: int) -> dict[str, object]:
    """Run ``laws`` on the mutant; if one hangs, write the answer to the descriptor ``answer``."""
    apply_defects([mutant])
    began_s = time.process_time()
    tried = 0
    for law in laws:
        if tried >= _LAWS_LEAST and time.process_time() - began_s > _BUDGET_S:
            break

        def hangs(*_: object, killed_by: str = law.item.nodeid) -> None:
            # Do not raise: Hypothesis would catch the error and try the law again.
            os.write(answer, json.dumps({"killed_by": killed_by, "hangs": True}).encode())
            os._exit(0)

        # A timer of CPU time, so that a busy machine kills no mutant.
        signal.signal(signal.SIGPROF, hangs)
        signal.setitimer(signal.ITIMER_PROF, _patience_s(law))
        _run(law.item)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        tried += 1
        if law.item.session.testsfailed:
            return {"killed_by": law.item.nodeid, "tried": tried, "of": len(laws)}
    return {"killed_by": None, "tried": tried, "of": len(laws)}


def _patience_s(law: Law) -> float:
    """Return the CPU time after which ``law`` counts as hanging."""
    return max(_HANGS_LEAST_S, _HANGS * law.took_s)


def _ended(descriptor: int, pid: int) -> dict[str, object]:
    with os.fdopen(descriptor) as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    if text:
        answered: dict[str, object] = json.loads(text)
        return answered
    # Killed by the kernel: out of memory, or a fault in native code.
    return {"killed_by": f"signal {os.WTERMSIG(status)}"}
