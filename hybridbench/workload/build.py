"""Build a workload that a driver can run, from profiles and optionally a trace."""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.workload.actions import TimedWorkload
from hybridbench.workload.in_turn import InTurn
from hybridbench.workload.profile import Profile
from hybridbench.workload.scenario import Scenario
from hybridbench.workload.trace_replay import TraceOptions, TraceReplay


def build_workload(
    profile: Profile, vocab_size: int, trace: TraceOptions | None = None, seed: int | None = None
) -> TimedWorkload:
    """Return traffic over tokens 0 to ``vocab_size - 1``; ``seed`` replaces the profile's.

    Raises:
        ConfigError: if the trace cannot be read or is malformed.
    """
    if trace is not None:
        return TraceReplay(profile, trace, vocab_size, seed)
    return Scenario(profile, vocab_size, seed)


def build_traffic(
    profiles: Sequence[Profile], vocab_size: int, trace: TraceOptions | None, seed: int
) -> TimedWorkload:
    """Return the traffic of ``profiles`` for a server, of several in turn.

    A ``trace`` replaces the traffic of a single profile.

    Raises:
        ConfigError: if the trace cannot be read or is malformed.
    """
    if len(profiles) == 1:
        return build_workload(profiles[0], vocab_size, trace, seed)
    # With equal seeds, one profile would find prompts of another in the server's cache.
    return InTurn(
        [Scenario(profile, vocab_size, seed + index) for index, profile in enumerate(profiles)],
        [profile.name for profile in profiles],
    )
