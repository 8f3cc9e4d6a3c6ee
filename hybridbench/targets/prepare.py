"""Install a third-party engine with pip in its own folder, and try one completion.

Only this part of hybridbench uses the network.  Each step leaves a state from which the next call
continues; an unavailable package is refused before anything large is fetched.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from hybridbench.foundation.errors import (
    ErrorCode,
    HybridbenchError,
    RunDirectoryError,
    WorkerFailedError,
)
from hybridbench.foundation.units import format_duration
from hybridbench.records.prepared import Package, PreparedTarget
from hybridbench.targets.engines.engine import Engine, Layout
from hybridbench.targets.first_completion import try_server
from hybridbench.targets.linked_packages import link_packages, site_packages
from hybridbench.targets.pip import Pip, requirement_name, without
from hybridbench.targets.prepared import (
    PARTIAL,
    Partial,
    entries,
    entry_of,
    holds_something_else,
    locked,
    save,
)

# Packages per call of pip: at most these are installed again after an interruption.
_BATCH: Final = 16
_START_PATIENCE_S: Final = 600.0
# The first adds foreign modules; with the others, every pip and every server would have to compile
# all its imports.
_NOT_INHERITED: Final = frozenset({"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"})


def prepare(
    engine: Engine,
    release: str,
    root: Path,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> PreparedTarget:
    """Install ``release`` of ``engine`` under ``root``; continue or reuse an earlier installation.

    Args:
        engine: the engine to install.
        release: its version number.
        root: folder of all targets; created if missing.
        environment: of the child processes; pip takes its indexes and folders from it.
        say: takes a line for the user.

    Raises:
        HybridbenchError: the release is not available here (then nothing is left behind), or a step
            failed (a later call continues from there).
    """
    folder = root / f"{engine.name}-{release}"
    folder.mkdir(parents=True, exist_ok=True)
    if holds_something_else(folder):
        raise RunDirectoryError(
            f"{folder} contains other files; choose another folder with --targets.",
            code=ErrorCode.NOT_EMPTY,
        )
    with locked(folder):
        known = entry_of(folder)
        if known is not None and known.ready is not None:
            return known.ready
        begun = known.partial if known is not None and known.partial is not None else Partial()
        clean = {name: value for name, value in environment.items() if name not in _NOT_INHERITED}
        steps = _Steps(engine, release, Layout(folder), clean, say, begun)
        try:
            return steps.run(root)
        except HybridbenchError:
            if not steps.state.planned:
                shutil.rmtree(folder)
            raise


def releases_of(
    engine: Engine, prepared: str, root: Path, environment: Mapping[str, str]
) -> list[str]:
    """List the releases of ``engine`` that pip finds, oldest first.

    Args:
        engine: the engine.
        prepared: a prepared release, whose pip is used.
        root: folder of all targets.
        environment: of pip.

    Raises:
        ConfigError: pip finds none.
    """
    layout = Layout(root / f"{engine.name}-{prepared}")
    return Pip(layout.python, layout.home, environment).releases(engine.package)


@dataclass
class _Steps:
    """The steps to prepare one target; ``state`` is their stored progress."""

    engine: Engine
    release: str
    layout: Layout
    environment: Mapping[str, str]
    say: Callable[[str], None]
    state: Partial
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return f"{self.engine.name}=={self.release}"

    def run(self, root: Path) -> PreparedTarget:
        pip = self._make_environment()
        if not self.state.planned:
            self._plan(pip)
        self._install(pip, root)
        self._complete()
        if self.engine.make_checkpoints:
            self._make_checkpoints()
        self._try_imports()
        servers = self._try_servers()
        ready = PreparedTarget(
            engine=self.engine.name,
            release=self.release,
            package=self.engine.package,
            note=self.state.note,
            python=self.state.python,
            packages=self.state.planned,
            servers=servers,
            seconds=self._spent_s(),
        )
        save(self.layout.home, ready)
        (self.layout.home / PARTIAL).unlink()
        return ready

    def _make_environment(self) -> Pip:
        pip = Pip(self.layout.python, self.layout.home, self.environment)
        if self.state.python == platform.python_version():
            return pip
        self.say(f"{self.name}: making an environment of Python {platform.python_version()}")
        self._store(name=self.name, python="", installed=())
        self._call([sys.executable, "-I", "-m", "venv", "--clear", str(self.layout.environment)])
        if not pip.renew():
            self.say("pip could not be renewed; this one may fetch wheels to read their METADATA")
        self._store(python=platform.python_version())
        return pip

    def _plan(self, pip: Pip) -> None:
        """Resolve all requirements from METADATA alone; refuse if one is not available."""
        engine = self.engine
        self.say(f"{self.name}: reading METADATA of {engine.package} and of all that it needs")
        found = pip.release(engine.package, self.release)
        instead = engine.instead or {}
        kept = without(found.requirements, engine.left_out | set(instead))
        needed_by = f"{engine.package} {self.release}"
        wanted = [*kept, *instead.values(), *engine.also]
        if engine.requirements is not None:
            wanted = list(engine.requirements)
        planned = pip.plan(wanted, needed_by) if wanted else []
        planned = [one for one in planned if requirement_name(one.name) not in engine.left_out]
        note = engine.note.format(author=found.author or "unknown")
        self._store(planned=(found.package, *planned), note=note)

    def _install(self, pip: Pip, root: Path) -> None:
        done = set(self.state.installed)
        missing = [one for one in self.state.planned if one.name not in done]
        self.say(f"{self.name}: {len(missing)} of {len(self.state.planned)} packages to install")
        for other in entries(root):
            if not missing or other.ready is None or other.ready.python != self.state.python:
                continue
            same = sorted(set(missing) & set(other.ready.packages))
            giver = Layout(other.folder).environment
            linked = link_packages(same, giver, self.layout.environment)
            if linked:
                self.say(
                    f"{self.name}: {len(linked)} of {len(self.state.planned)} packages shared with "
                    f"{other.folder.name}"
                )
            self._store_installed(linked)
            missing = [one for one in missing if one not in linked]
        while missing:
            batch, missing = missing[:_BATCH], missing[_BATCH:]
            pip.install(batch)
            self._store_installed(batch)
            self.say(
                f"{self.name}: {len(self.state.installed)} of {len(self.state.planned)} packages "
                f"installed after {format_duration(self._spent_s())}"
            )

    def _complete(self) -> None:
        """Add what pip does not install: start scripts, and the additions of the engine's file."""
        engine, layout = self.engine, self.layout
        if engine.complete is not None:
            engine.complete(site_packages(layout.environment), self.release)
        inside = resources.files("hybridbench.targets.engines") / "inside"
        for folder in (layout.scripts, layout.servers, layout.checkpoints):
            folder.mkdir(exist_ok=True)
        for name in engine.scripts:
            text = (inside / name).read_text(encoding="utf-8")
            (layout.scripts / name).write_text(text, encoding="utf-8")
        for name, text in engine.servers.items():
            path = layout.servers / name
            path.write_text(self._filled(text), encoding="utf-8")
            path.chmod(0o755)

    def _make_checkpoints(self) -> None:
        self.say(f"{self.name}: making tiny random checkpoints")
        arguments = [self._filled(one) for one in self.engine.make_checkpoints]
        self._call([str(self.layout.python), *arguments])

    def _try_imports(self) -> None:
        for module in self.engine.imports:
            self.say(f"{self.name}: importing {module}")
            self._call([str(self.layout.python), "-c", f"import {module}"])

    def _try_servers(self) -> tuple[str, ...]:
        """Return the servers that answer.

        The default server must answer.  A server for another checkpoint, which the release may be
        unable to serve here, is left out if it does not.
        """
        answering: list[str] = []
        for name in self.engine.servers:
            self.say(f"{self.name}: trying bin/{name}")
            script = self.layout.servers / name
            log = self.layout.home / f"{name}.log"
            try:
                took_s = try_server([str(script)], self.environment, log, _START_PATIENCE_S)
            except WorkerFailedError as error:
                if not answering:
                    raise
                script.unlink()
                self.say(f"{self.name}: bin/{name} is left out: {error}")
                continue
            answering.append(name)
            self.say(f"{self.name}: bin/{name} answered after {format_duration(took_s)}")
        return tuple(answering)

    def _filled(self, text: str) -> str:
        return text.format(
            about=f"{self.engine.name} {self.release} from {self.engine.package}",
            python=self.layout.python,
            commands=self.layout.python.parent,
            checkpoints=self.layout.checkpoints,
            scripts=self.layout.scripts,
        )

    def _call(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            command, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["it printed nothing"]
            raise WorkerFailedError(f"{' '.join(command)} failed: {lines[-1]}")

    def _spent_s(self) -> float:
        return self.state.seconds + time.monotonic() - self.begun_s

    def _store_installed(self, packages: Sequence[Package]) -> None:
        names = [one.name for one in packages]
        self._store(installed=(*self.state.installed, *names))

    def _store(self, **changes: object) -> None:
        now_s = time.monotonic()
        seconds = self.state.seconds + now_s - self.begun_s
        self.begun_s = now_s
        self.state = msgspec.structs.replace(self.state, seconds=seconds, **changes)
        save(self.layout.home, self.state)
