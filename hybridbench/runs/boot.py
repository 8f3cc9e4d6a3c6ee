"""Boot a worker: tell it what to build, wait until it is ready, and check that it fits.

It must fit the profile and, in a resumed run, be the same engine as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hybridbench.foundation.errors import ConfigError
from hybridbench.records.messages import Fatal, Ready
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.loop import WorkerLostError
from hybridbench.runs.plan import Segment, SoakPlan
from hybridbench.targets.target import Capability, WireTarget
from hybridbench.targets.wire import WireClosedError
from hybridbench.workload.profile import Profile

_TURN_S = 0.25
# The worker's versions that affect its memory behaviour.
_DECISIVE_VERSIONS = ("python", "implementation", "torch")


def boot_worker(target: WireTarget, plan: SoakPlan, interrupts: Interrupts) -> Ready | None:
    """Send the worker its start message, and wait for its first answer.

    Raises: as ``await_ready`` does.
    """
    target.post(plan.start_message())
    return await_ready(target, plan, interrupts)


def await_ready(target: WireTarget, plan: SoakPlan, interrupts: Interrupts) -> Ready | None:
    """Wait for the first message of a worker that has its start message; None if the user
    interrupts.

    Raises:
        ConfigError: the configuration cannot be built (the message is the worker's), or the engine
            does not support the profile's traffic, or only servers do.
        WorkerLostError: the worker died, or was not ready in time although it could have run.
        WorkerFailedError: the worker speaks another version of the wire protocol.
    """
    _refuse_traffic_of_servers(plan.profile)
    while interrupts.first is None:
        if target.could_run_s() > plan.boot_limit_s:
            raise WorkerLostError("hang", f"the worker was not ready in {plan.boot_limit_s:.0f} s")
        try:
            messages = target.exchange(_TURN_S)
        except WireClosedError as error:
            raise WorkerLostError("exit", "the worker ended while it built the engine") from error
        for message in messages:
            if isinstance(message, Ready):
                check_capabilities(plan.profile, message.capabilities)
                return message
            if isinstance(message, Fatal) and message.usage:
                raise ConfigError(message.message)
            if isinstance(message, Fatal):
                raise WorkerLostError("exit", message.message)
    return None


def _refuse_traffic_of_servers(profile: Profile) -> None:
    key = profile.of_servers_alone
    if key:
        raise ConfigError(
            f"profile {profile.name}: {key} is for requests over HTTP; give a server with --url, "
            "such as `hybridbench serve`."
        )


def check_capabilities(profile: Profile, capabilities: Iterable[str]) -> None:
    """Refuse traffic that the worker does not support, before any of it is sent.

    Raises:
        ConfigError: names what is missing and the profile key that requires it.
    """
    able = set(capabilities)
    for capability, key in _needed(profile):
        if capability not in able:
            raise ConfigError(
                f"profile {profile.name}: {key} needs an engine that takes {capability}, and this "
                "one does not; choose another profile, or a newer engine."
            )


def check_same_engine(segment: Segment, ready: Ready) -> None:
    """Refuse to resume with another engine: the memory of two engines cannot be combined.

    Raises:
        ConfigError: engine files, interpreter or torch differ from those of the run so far.
    """
    if segment.manifest.engine_hash != ready.engine_files_sha256:
        raise ConfigError(
            f"{segment.run_dir}: the engine's files have changed since this run began; "
            "restore them to resume it, or start a new run."
        )
    before = segment.manifest.versions
    for name in _DECISIVE_VERSIONS:
        if before.get(name) != ready.versions.get(name):
            raise ConfigError(
                f"{segment.run_dir}: this run began with {name} {before.get(name)}, and here is "
                f"{ready.versions.get(name)}; resume it with the former, or start a new run."
            )


def _needed(profile: Profile) -> Iterator[tuple[Capability, str]]:
    """Yield every capability that ``profile`` needs, with the key that requires it."""
    aborts, controls = profile.aborts, profile.controls
    yield Capability.TRAFFIC, "arrival"
    yield Capability.DRAIN, "checkpoint"
    if profile.checkpoint.flush:
        yield Capability.FLUSH, "checkpoint.flush"
    if profile.sessions.share > 0:
        yield Capability.SESSIONS, "sessions"
    if aborts.queued + aborts.prefill + aborts.decode > 0 or aborts.queue_timeout_s is not None:
        yield Capability.ABORT, "aborts"
    if controls.abort_all_every_s is not None:
        yield Capability.ABORT, "controls.abort_all_every_s"
    if aborts.disconnect > 0:
        yield Capability.DISCONNECT, "aborts.disconnect"
