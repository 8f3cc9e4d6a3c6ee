"""The interface of an adapter: what the driving loop needs from one engine's scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from hybridbench.engine.counters import EngineCounters
from hybridbench.engine.models.registry import resolve_model
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import EngineConfig, PauseMode
from hybridbench.foundation.errors import ConfigError
from hybridbench.released.books import Accounts

# No model reads the tokens; they only have to differ.
VOCAB_SIZE: Final = 8192


class Record(Protocol):
    """One request of the release, as the driving loop reads it."""

    @property
    def req(self) -> Any:
        """The release's own object."""
        ...

    @property
    def output_ids(self) -> Sequence[int]: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that its last admission took from the cache."""
        ...

    @property
    def holds_state(self) -> bool:
        """Whether it has a recurrent state of its own."""
        ...

    @property
    def end(self) -> tuple[str, str] | None:
        """Once it has ended: "stop", "length" or "abort", and a sentence, which may be empty."""
        ...


@dataclass
class Step:
    """The effects of one iteration of the loop.

    Attributes:
        mode: mode of the batch: "extend", "decode" or "idle".
        reqs: requests in the batch, the release's own objects.
        prefilled: ``id`` of each of them whose prompt the step computed, in part or completely.
        tokens: number of tokens that the model would have computed.
        prompt_tokens: how many of them belong to prompts.
        cut: ``id`` of each request whose prompt is only partly computed.
        refusals: number of requests matched against the cache but not admitted.
        sent_away: by rid, a sentence for each request that ended without another step.
    """

    mode: Literal["extend", "decode", "idle"] = "idle"
    reqs: list[Any] = field(default_factory=list)
    prefilled: frozenset[int] = frozenset()
    tokens: int = 0
    prompt_tokens: int = 0
    cut: frozenset[int] = frozenset()
    refusals: int = 0
    sent_away: dict[str, str] = field(default_factory=dict)


class CacheWatch(Protocol):
    """Counts the changes of a prefix cache."""

    def look(self) -> None:
        """Add the changes since the last call to the counters."""
        ...

    def sizes(self) -> Mapping[str, int]:
        """Number of entries at the last look, by name."""
        ...


UNCOUNTED_CALLS: Final = frozenset({"evict_calls", "late_tokens", "surplus_steps"})
"""Events that happen inside a release's own methods, where no adapter counts them."""


class DrivenScheduler(Protocol):
    """A release's scheduler, built without a model, and read access to its structures."""

    package: str
    release: str
    cache_name: str
    uncounted: frozenset[str]

    @property
    def accounts(self) -> Accounts: ...
    @property
    def has_sessions(self) -> bool:
        """Whether sessions keep their KV between turns."""
        ...

    # Traffic.

    def submit(
        self,
        rid: str,
        input_ids: Sequence[int],
        params: SamplingParams,
        session_id: str | None,
        priority: int | None,
        extra_key: str | None,
    ) -> Record | None:
        """Submit a request; None if it was refused at once."""
        ...

    def abort(self, rid: str) -> None: ...
    def pause(self, mode: PauseMode) -> None: ...
    def resume(self) -> None: ...
    @property
    def is_paused(self) -> bool: ...
    def step(self) -> Step: ...
    @property
    def has_sent_away(self) -> bool:
        """Whether the next step will report the end of a request."""
        ...

    # Sessions.

    def sessions(self) -> Mapping[str, Any]: ...
    def open_session(self, session_id: str, timeout_s: float | None) -> bool: ...
    def close_session(self, session_id: str) -> None: ...
    def reap_sessions(self) -> None: ...

    # Structures.

    def waiting(self) -> Sequence[Any]: ...
    def admitted(self) -> Sequence[Any]: ...
    @property
    def is_at_rest(self) -> bool:
        """Whether no request is waiting or running."""
        ...

    def used_slots(self) -> tuple[int, ...]:
        """Slots of each pool that hold something, cached entries included."""
        ...

    def evict_all(self) -> None:
        """Empty the prefix cache, by the release's own code."""
        ...

    def watch(self, counters: EngineCounters) -> CacheWatch: ...
    def containers(self) -> dict[str, int]: ...
    def objects(self, reported: Sequence[Any]) -> dict[str, tuple[type, int]]:
        """Classes of the release, with the number of instances that it and ``reported`` hold.

        ``reported`` are requests that the caller still holds: their end has not been reported yet.
        """
        ...

    def sources(self) -> tuple[str, int]:
        """SHA-256 of the release's driven files, and their number."""
        ...


def kept_beside_kv(config: EngineConfig) -> Literal["states", "windows", "nothing"]:
    """Return what the model keeps besides the KV of all positions."""
    model = resolve_model(config.model, "cpu").config
    if model.linear_layer_ids:
        return "states"
    is_sliding = bool(model.swa_layer_ids)
    return "windows" if config.keeps_windows_only(sliding=is_sliding) else "nothing"


def sliding_window(config: EngineConfig) -> int | None:
    """The model's window, in tokens; None without one."""
    return resolve_model(config.model, "cpu").config.sliding_window or None


def refuse(wanted: Mapping[str, bool]) -> None:
    """Refuse settings that released engines do not support.

    Raises:
        ConfigError: names the first setting of ``wanted`` that is used.
    """
    for name, is_wanted in wanted.items():
        if is_wanted:
            raise ConfigError(
                f"{name}: released engines are driven without it; leave it at its default."
            )


def not_driven(package: str, release: str, known: Iterable[str]) -> ConfigError:
    """Build the error for a release that is not in ``known``."""
    return ConfigError(f"{package} {release} is not driven; there are {', '.join(known)}.")
