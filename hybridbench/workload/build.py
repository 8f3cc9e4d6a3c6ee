"""Build a workload that a driver can run, from a profile and optionally a trace."""

from __future__ import annotations

from hybridbench.workload.actions import TimedWorkload
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
