"""A profile: one workload, its pools and its coverage, from YAML to one frozen record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from functools import cache
from pathlib import Path
from typing import Final, cast

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from hybridbench.foundation.errors import ConfigError, ErrorCode
from hybridbench.workload.consistency import check_consistency
from hybridbench.workload.settings import SETTINGS, Limits, ProfileKeys
from hybridbench.workload.validation import validated
from hybridbench.workload.yaml_source import KeyPath, Source, parse_scalar, parse_yaml, read_yaml

# Calling a trend a leak takes four minutes after ``steady``; a fifth of a run may be warm-up.
CALLS_LEAK_FROM_S: Final = 300.0
# The keys of ``arrival`` that apply to one process alone.
_ARRIVAL_KEYS: Final = {"closed": ("concurrency", "think"), "poisson": ("rate", "max_in_flight")}


@plain_dataclass(frozen=True)
class Cadence:
    """How often a run of one planned duration samples, probes and stops for a checkpoint."""

    sample_every_s: float
    collectible_every_s: float
    checkpoint_every_s: float


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Profile(ProfileKeys):
    """Everything that defines a run except its device and dtype.

    ``model`` is a preset or a checkpoint directory; ``--model`` overrides it.

    Build one with ``load_profile``, ``Profile.from_yaml`` or ``with_overrides``; all of them check
    that the parts fit together.
    """

    @classmethod
    def from_yaml(cls, path: Path) -> Profile:
        """Return the profile in the file at ``path``.

        Raises:
            ConfigError: one sentence with file, line and key.
        """
        return _checked(read_yaml(path))

    @classmethod
    def from_yaml_text(cls, text: str, origin: str = "profile") -> Profile:
        """Return the profile in ``text``; errors name ``origin``.

        Raises:
            ConfigError: one sentence with origin, line and key.
        """
        return _checked(parse_yaml(text, origin))

    @classmethod
    def from_resolved(cls, data: Mapping[str, object], origin: str = "profile") -> Profile:
        """Return the profile that ``resolved`` wrote, for example from a manifest.

        Raises:
            ConfigError: if ``data`` is not a profile.
        """
        return _checked(Source(origin, dict(data), {}))

    def resolved(self) -> dict[str, object]:
        """Return every key with its value as plain JSON, which reads back as the same profile."""
        plain = _adapter().dump_python(self, mode="json", by_alias=True)
        return cast("dict[str, object]", plain)

    def with_overrides(self, overrides: Mapping[str, str]) -> Profile:
        """Return this profile with keys set as by ``--set key.path=value``, with YAML values.

        A different ``arrival.process`` drops the profile's own keys of the former one.

        Raises:
            ConfigError: one sentence that names the wrong setting.
        """
        data = self.resolved()
        if overrides.get("arrival.process", self.arrival.process) != self.arrival.process:
            arrival = cast("dict[str, object]", data["arrival"])
            for key in _ARRIVAL_KEYS[self.arrival.process]:
                del arrival[key]
        for dotted, text in overrides.items():
            _set(data, dotted, parse_scalar(text), f"--set {dotted}={text}")
        settings = " ".join(f"--set {key}={text}" for key, text in overrides.items())
        return _checked(Source(settings or self.name, data, {}))

    def for_replay(self) -> Profile:
        """Return this profile for a recorded trace: keep pools and settings, drop its own traffic.

        Coverage requirements are dropped too, since the trace decides what happens.
        """
        own = ("assert_coverage", "aborts", "bad_input", "controls", "options")
        return self.with_overrides({**dict.fromkeys(own, "{}"), "priorities": "[]"})

    def for_servers(self, *, sessions: bool = False) -> Profile:
        """Return this profile for another engine's server: without keys that its interface cannot
        express, and without requirements on the bundled engine.

        Args:
            sessions: whether the interface supports sessions.
        """
        nothing = ["assert_coverage", "controls", "force"]
        nothing += [] if sessions else ["sessions"]
        # The server has its own pools; here they only bound the length of a request.
        page = self.pools.page_size
        needed = page * (1 + -(-self.pools.max_context_len // page))
        kv_tokens = str(max(self.pools.kv_tokens, needed))
        more = {"priorities": "[]", "prompts.payload": "0", "pools.kv_tokens": kv_tokens}
        return self.with_overrides({**dict.fromkeys(nothing, "{}"), **more})

    @property
    def of_servers_alone(self) -> str:
        """The key that asks for requests only an HTTP server can receive; empty if none does."""
        if self.bad_input.malformed > 0:
            return "bad_input.malformed"
        return "options.share" if self.options.share > 0 else ""

    def limits_as_planned(self, duration_s: float) -> Limits:
        """Return the limits of a run planned for ``duration_s``; very short runs have none.

        They are for the plan and the preview: a verdict takes its limits from
        ``analysis/facts/limits.py``, which allows for extensions.
        """
        return ([Limits()] + [e for e in self.limits if e.from_s <= duration_s])[-1]

    def limits_by_metric(self) -> tuple[dict[str, float], ...]:
        """Return the limits as in a manifest: an extended run is held to those of its length."""
        return tuple({"from_s": entry.from_s, **entry.by_metric()} for entry in self.limits)

    @property
    def decides_from_s(self) -> float:
        """The shortest run, in seconds of traffic, that can end CLEAN or LEAK by memory growth.

        The profile has a limit on private memory for it, and its judged window is long enough to
        call a leak.  Infinite for a profile without any limit on private memory.
        """
        limited = (e.from_s for e in self.limits if e.rss_bytes_per_h is not None)
        return max(next(limited, math.inf), CALLS_LEAK_FROM_S)

    def coverage_minimums(self, traffic_s: float) -> dict[str, int]:
        """Return the minimum count for ``traffic_s`` seconds of traffic, by counter."""
        return {name: floor.minimum(traffic_s) for name, floor in self.assert_coverage.items()}

    def cadence(self, duration_s: float) -> Cadence:
        """Return how often to sample and probe a run planned for ``duration_s``.

        Unset intervals are a share of the run, within bounds: 240 samples, 90 probes and 10
        checkpoints are enough to analyse a run of minutes, and do not slow down an overnight run.
        """
        return Cadence(
            sample_every_s=_auto(self.probe.sample_every_s, duration_s / 240, 0.5, 10.0),
            collectible_every_s=_auto(self.probe.collectible_every_s, duration_s / 90, 1.0, 60.0),
            checkpoint_every_s=_auto(self.checkpoint.every_s, duration_s / 10, 15.0, 600.0),
        )


def strictest_limits(profiles: Sequence[Profile]) -> tuple[dict[str, float], ...]:
    """Return limits for a run of all ``profiles`` as in a manifest: the lowest limits on growth.

    Limits on other metrics are for one profile's requests, so only a single profile keeps them.
    """
    if len(profiles) == 1:
        return profiles[0].limits_by_metric()
    strictest = []
    for from_s in sorted({entry.from_s for profile in profiles for entry in profile.limits}):
        lowest: dict[str, float] = {}
        for profile in profiles:
            for metric, limit in profile.limits_as_planned(from_s).growth_by_metric().items():
                lowest[metric] = min(limit, lowest.get(metric, limit))
        strictest.append({"from_s": from_s, **lowest})
    return tuple(strictest)


def profile_json_schema() -> dict[str, object]:
    """Return the JSON Schema of a profile file, for editors and other tools."""
    # The descriptions are the strings below the fields, in the class that declares them.
    keys = TypeAdapter(ProfileKeys).json_schema(by_alias=True, mode="validation")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **keys}
    return {**schema, "title": "Profile"}


def _auto(given_s: float | None, share_s: float, least_s: float, most_s: float) -> float:
    return given_s if given_s is not None else min(max(share_s, least_s), most_s)


@cache
def _adapter() -> TypeAdapter[Profile]:
    return TypeAdapter(Profile)


def _checked(source: Source) -> Profile:
    profile = validated(_adapter(), source)
    check_consistency(profile, source)
    return profile


def _set(data: dict[str, object], dotted: str, value: object, setting: str) -> None:
    # Create a new path below null; the validator checks whether its keys exist.
    *parents, last = _steps(dotted)
    here: object = data
    for index, step in enumerate(parents):
        below = _get(here, step)
        if below is None and isinstance(here, dict):
            below = here[step] = {}
        if not isinstance(below, dict | list):
            path = ".".join(str(part) for part in parents[: index + 1])
            raise ConfigError(
                f"{setting}: {path} has no keys of its own.", code=ErrorCode.UNKNOWN_NAME
            )
        here = below
    if isinstance(here, dict):
        here[last] = value
    elif isinstance(here, list):
        if not isinstance(last, int) or not 0 <= last < len(here):
            raise ConfigError(
                f"{setting}: that list has entries 0 to {len(here) - 1}.",
                code=ErrorCode.UNKNOWN_NAME,
            )
        here[last] = value


def _get(container: object, step: str | int) -> object:
    if isinstance(container, dict):
        return container.get(step)
    if isinstance(container, list) and isinstance(step, int) and 0 <= step < len(container):
        return cast("object", container[step])
    return None


def _steps(dotted: str) -> KeyPath:
    return tuple(int(part) if part.isdigit() else part for part in dotted.split("."))
