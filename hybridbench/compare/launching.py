"""Start the worker of a version, which may come from another tree or release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from hybridbench.compare.alike import children_on
from hybridbench.compare.sides import Side
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.errors import ConfigError, WorkerFailedError
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import Git, Interpreter, Manifest
from hybridbench.records.messages import Ready, Start
from hybridbench.runs.boot import await_ready
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.loop import WorkerLostError
from hybridbench.runs.manifest import with_worker
from hybridbench.runs.plan import SoakPlan
from hybridbench.targets.bundled import BundledTarget

DEFAULTS: Mapping[str, object] = asdict(EngineConfig())
_KILL_PATIENCE_S = 10.0


class StartRefusedError(Exception):
    """The comparison was interrupted while a worker was being built."""


@dataclass(frozen=True)
class StartedWorker:
    """A worker that is ready; its owner must stop it.

    ``left_to_engine`` names settings that were not sent because the version does not support all
    settings; each had this release's default value.
    """

    target: BundledTarget
    ready: Ready
    left_to_engine: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """Starts workers of one version, any number of times, pinned to ``cpu`` unless it is None.

    ``begin`` and ``finish`` are separate so that the workers of all versions can be built at the
    same time: a worker built first would get differently fragmented memory; see ``alike``.
    """

    side: Side
    plan: SoakPlan
    stderr_path: Path
    interrupts: Interrupts
    cpu: int | None = None

    def begin(self) -> BundledTarget:
        """Start a worker that builds its engine; ``finish`` waits for it, or its owner kills it.

        Raises:
            WorkerFailedError: the system cannot start it.
        """
        return self._begin(self.plan.start_message())

    def finish(self, begun: BundledTarget) -> StartedWorker:
        """Wait until the worker is ready, or restart it with fewer settings.

        Raises:
            ConfigError: the engine cannot be built as requested; the worker's message.
            WorkerFailedError: it did not start, or speaks another wire protocol.
            StartRefusedError: the comparison was interrupted.
        """
        whole = self.plan.start_message()
        try:
            return self._await(begun)
        except ConfigError as error:
            if not self.side.is_foreign:
                raise
            # An older engine has fewer settings; send only those that differ from the defaults.
            engine = whole.engine.items()
            fewer = {k: v for k, v in engine if k not in DEFAULTS or DEFAULTS[k] != v}
            left = tuple(sorted(set(whole.engine) - set(fewer)))
            try:
                started = self._await(self._begin(msgspec.structs.replace(whole, engine=fewer)))
            except ConfigError:
                raise ConfigError(f"{self.side.name}: {error}") from error
            return replace(started, left_to_engine=left)

    def _begin(self, message: Start) -> BundledTarget:
        with children_on(self.cpu):
            target = BundledTarget(self.plan.worker_launch(self.stderr_path))
        target.post(message)
        return target

    def _await(self, target: BundledTarget) -> StartedWorker:
        ready: Ready | None = None
        try:
            ready = await_ready(target, self.plan, self.interrupts)
        except WorkerLostError as lost:
            said = (target.stderr_tail() or [""])[-1].strip()
            detail = f"{lost.detail}: {said}" if said else lost.detail
            raise WorkerFailedError(f"{self.side.name}: {detail}.") from lost
        except WorkerFailedError as error:
            raise WorkerFailedError(f"{self.side.name}: {error}") from error
        finally:
            if ready is None:
                target.kill()
                target.stop(_KILL_PATIENCE_S)
        if ready is None:
            raise StartRefusedError
        return StartedWorker(target, ready)


def with_started(
    manifest: Manifest,
    plan: SoakPlan,
    side: Side,
    started: StartedWorker,
    workload: Mapping[str, JsonValue],
) -> Manifest:
    """Return ``manifest`` with the started worker's versions, interpreter and commit."""
    ready = started.ready
    described = msgspec.structs.replace(
        with_worker(manifest, plan, ready, workload),
        versions=ready.versions,
        left_to_engine=started.left_to_engine,
    )
    if side.kind == "python":
        interpreter = Interpreter(
            implementation=ready.versions.get("implementation", ""),
            version=ready.versions.get("python", ""),
        )
        described = msgspec.structs.replace(described, interpreter=interpreter)
    if side.origin.commit is not None:
        git = Git(commit=side.origin.commit, branch=side.name)
        described = msgspec.structs.replace(described, git=git)
    return described
