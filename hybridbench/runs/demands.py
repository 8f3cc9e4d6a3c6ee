"""What a profile's traffic needs of a worker, held against what the worker says that it takes.

The bundled engine takes everything; another version behind the same wire may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hybridbench.errors import ConfigError
from hybridbench.targets.target import Capability
from hybridbench.workload.profile import Profile


def check_takes(profile: Profile, capabilities: Iterable[str]) -> None:
    """Refuse traffic that the worker would not understand, before any of it is sent.

    Raises:
        ConfigError: names what is missing and the key of the profile that asks for it.
    """
    able = set(capabilities)
    for capability, key in _demands(profile):
        if capability not in able:
            raise ConfigError(
                f"profile {profile.name}: {key} needs an engine that takes {capability}, and this "
                "one does not; choose another profile, or a newer engine."
            )


def _demands(profile: Profile) -> Iterator[tuple[Capability, str]]:
    """Every capability that ``profile`` needs, with the key that asks for it."""
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
