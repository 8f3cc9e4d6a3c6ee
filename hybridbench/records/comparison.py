"""comparison.json: what is compared and how it ended; one record for all who write or read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from hybridbench.foundation.errors import ExitCode
from hybridbench.records.codec import OpenRecord, by_name, from_json
from hybridbench.records.json_value import JsonValue, plain_mapping
from hybridbench.records.manifest import Wall

COMPARISON_SCHEMA: Final = "hybridbench.comparison-plan/1"

COUNT_MAX: Final = 10**9
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]

# Ends after which a comparison has said what it can.
FINISHED: Final = ("decided", "rounds", "max-time", "lost")

# Stored as null where there is none; of anything else there is no key then.
_NULL: Final = frozenset({"engine_hash", "lost", "exit_code", "worker_cpu"})


class Origin(msgspec.Struct, frozen=True):
    """Where the engine of a version comes from: a commit with its tree, or an interpreter."""

    commit: str | None = None
    subject: str | None = None
    tree: str | None = None
    interpreter: str | None = None
    engine_from: str | None = None

    def stored(self) -> dict[str, JsonValue]:
        """What is known of it, by name."""
        return {name: value for name, value in by_name(self).items() if value is not None}


class ComparedVersion(OpenRecord, frozen=True):
    """One version: ``run`` is its run directory, ``lost`` how its worker ended too early.

    What is known of its ``Origin`` stands beside that.
    """

    name: str = ""
    kind: str = ""
    run: str = ""
    engine_hash: str | None = None
    lost: str | None = None


class ComparisonManifest(OpenRecord, frozen=True):
    """What is compared.

    Attributes:
        settings: a digest of all but the versions; of live comparisons.
        looks: the numbers of rounds after which the answer is looked at.
        renew_every: rounds after which each version gets a new process, 0 for never; of live
            comparisons.
        ended: why there are no more rounds; "" for a comparison that was killed.
    """

    schema: str = COMPARISON_SCHEMA
    comparison_id: str = ""
    started_wall_s: Wall | None = None
    command: tuple[str, ...] = ()
    settings: str | None = None
    interleaved: bool = False
    order: str | None = None
    model: str = ""
    profile: str = ""
    seed: int | None = None
    looks: tuple[Count, ...] = ()
    margin: float | None = None
    alpha: float | None = None
    block_s: float | None = None
    slice_s: float | None = None
    max_time_s: float | None = None
    renew_every: Count | None = None
    thresholds: tuple[str, ...] = ()
    allowed_mismatches: tuple[str, ...] = ()
    versions: tuple[ComparedVersion, ...] = ()
    rounds: Count = 0
    ended: str = ""
    worker_cpu: int | None = None
    block_requests: Count | None = None
    exit_code: int | None = None
    ended_wall_s: Wall | None = None

    @property
    def ended_by(self) -> ExitCode | None:
        """The exit code of one that a signal ended."""
        return ExitCode(self.exit_code) if self.exit_code in set(ExitCode) else None


def comparison_manifest_from_json(stored: Mapping[str, JsonValue]) -> ComparisonManifest:
    """The record in ``stored``; what is missing has its default.

    Raises:
        msgspec.ValidationError: a value is of another type.
    """
    return from_json(stored, ComparisonManifest)


def comparison_manifest_to_json(manifest: ComparisonManifest) -> dict[str, JsonValue]:
    """``manifest`` as it is stored."""
    versions = [_known(by_name(version)) for version in manifest.versions]
    return plain_mapping({**_known(by_name(manifest)), "versions": versions})


def _known(stored: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {key: value for key, value in stored.items() if value is not None or key in _NULL}
