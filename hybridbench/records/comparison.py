"""comparison.json: what is compared and how it ended; one record for all readers and writers."""

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

# Reasons to end after which a comparison is complete.
FINISHED: Final = ("decided", "rounds", "max-time", "lost")

# Stored as null when absent; any other absent key is left out.
_NULL: Final = frozenset({"engine_hash", "lost", "exit_code", "worker_cpu"})


class Origin(msgspec.Struct, frozen=True):
    """Origin of a version's engine: a commit with its tree, or an interpreter."""

    commit: str | None = None
    subject: str | None = None
    tree: str | None = None
    interpreter: str | None = None
    engine_from: str | None = None

    def stored(self) -> dict[str, JsonValue]:
        """Return the known fields, by name."""
        return {name: value for name, value in by_name(self).items() if value is not None}


class ComparedVersion(OpenRecord, frozen=True):
    """One version: ``run`` is its run directory, ``lost`` says how its worker ended too early.

    The known fields of its ``Origin`` are stored among these.
    """

    name: str = ""
    kind: str = ""
    run: str = ""
    engine_hash: str | None = None
    lost: str | None = None


class ComparisonManifest(OpenRecord, frozen=True):
    """What is compared.

    Attributes:
        settings: a digest of everything except the versions, for live comparisons.
        looks: the numbers of rounds after which the answer is checked.
        renew_every: rounds after which each version gets a new process, 0 for never; for live
            comparisons.
        ended: why no more rounds were run; "" for a comparison that was killed.
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
        """The exit code of a comparison that a signal ended."""
        return ExitCode(self.exit_code) if self.exit_code in set(ExitCode) else None


def comparison_manifest_from_json(stored: Mapping[str, JsonValue]) -> ComparisonManifest:
    """Return the record in ``stored``, with defaults for missing keys.

    Raises:
        msgspec.ValidationError: a value is of another type.
    """
    return from_json(stored, ComparisonManifest)


def comparison_manifest_to_json(manifest: ComparisonManifest) -> dict[str, JsonValue]:
    """Return ``manifest`` as it is stored."""
    versions = [_known(by_name(version)) for version in manifest.versions]
    return plain_mapping({**_known(by_name(manifest)), "versions": versions})


def _known(stored: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {key: value for key, value in stored.items() if value is not None or key in _NULL}
