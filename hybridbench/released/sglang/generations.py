"""Table of the differences between the interfaces of SGLang's releases."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, Final, Literal

from hybridbench.released.adapter import not_driven


@dataclass(frozen=True, slots=True)
class Held:
    """What the record of a request or of a session holds.

    Attributes:
        row: index of its row in the table of KV slots; None without one.
        kv_from, kv_until: range of columns in its row with its own KV slots; those before belong to
            the tree.
        states: its state slots, including those of its track buffer.
    """

    row: int | None
    kv_from: int
    kv_until: int
    states: list[int]


@dataclass(frozen=True)
class Generation:
    """Releases with the same interface.

    Attributes:
        releases: their version numbers.
        token_ids: converts token ids to the type of a request's tokens.
        states: returns the free state slots, given the pool of request rows.
        sessions: the modules of sessions that keep their KV, and of their records between turns;
            None in releases without them.
        unified_tree: "absent", "switch" if a switch enables it, "only" if there is no other tree.
        next_batch: makes the scheduler choose its next batch, and returns it; None without one.
        held: reads the record of a request or of a session.
        tracked_until: returns the length, in tokens, at which a request's track buffer last saved a
            state; None if it has saved none.
    """

    releases: tuple[str, ...]
    token_ids: Callable[[Sequence[int]], Any]
    states: Callable[[Any], Any]
    sessions: tuple[str, str] | None
    unified_tree: Literal["absent", "switch", "only"]
    next_batch: Callable[[Any], Any]
    held: Callable[[Any], Held]
    tracked_until: Callable[[Any], int | None]


def _next_batch(scheduler: Any) -> Any:
    scheduler.cur_batch = scheduler.get_next_batch_to_run()
    return scheduler.cur_batch


def _planned_batch(scheduler: Any) -> Any:
    plan = scheduler.get_next_batch_to_run(
        running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
    )
    scheduler.running_batch = plan.running_batch
    scheduler.cur_batch_for_debug = plan.batch_to_run
    return plan.batch_to_run


def _batch_after_timeouts(scheduler: Any) -> Any:
    # Earlier releases abort timed-out requests while they choose a batch.
    for message in scheduler._poll_timeout_aborts():
        scheduler.abort_request(message)
    return _planned_batch(scheduler)


def _in_record(record: Any) -> Held:
    return _held(record, record.cache_protected_len, record.kv_allocated_len)


def _in_part(record: Any) -> Held:
    # A record without KV of its own lacks this part.
    until = 0 if record.kv is None else record.kv.kv_allocated_len
    return _held(record, record.cache_protected_len, until)


def _in_kv(record: Any) -> Held:
    return _in_record(record.kv)


def _held(record: Any, kv_from: int, kv_until: int) -> Held:
    own, tracks, row = (
        record.mamba_pool_idx, record.mamba_ping_pong_track_buffer, record.req_pool_idx
    )  # fmt: skip
    states = [] if own is None else [int(own)]
    states += [] if tracks is None else [slot for slot in tracks.tolist() if slot > 0]
    return Held(None if row is None else int(row), kv_from, kv_until, states)


def _tracked_in_request(req: Any) -> int | None:
    length: int | None = req.mamba_last_track_seqlen
    return length


def _tracked_in_kv(req: Any) -> int | None:
    return None if req.kv is None else _tracked_in_request(req.kv)


_FIRST: Final = Generation(
    releases=("0.5.9",),
    token_ids=list,
    states=attrgetter("mamba_pool.free_slots"),
    sessions=None,
    unified_tree="absent",
    next_batch=_next_batch,
    held=_in_record,
    tracked_until=_tracked_in_request,
)
_WITH_SESSIONS: Final = replace(
    _FIRST,
    releases=("0.5.10", "0.5.10.post1"),
    sessions=("managers.session_controller", "mem_cache.session_aware_cache"),
)
_WITH_UNIFIED_TREE: Final = replace(
    _WITH_SESSIONS,
    releases=("0.5.11", "0.5.12", "0.5.12.post1"),
    sessions=("session.session_controller", "session.streaming_session"),
    unified_tree="switch",
)
_WITH_ALLOCATOR: Final = replace(
    _WITH_UNIFIED_TREE,
    releases=("0.5.13", "0.5.13.post1", "0.5.14", "0.5.15", "0.5.15.post1"),
    token_ids=partial(array, "q"),
    states=attrgetter("mamba_allocator.free_slots"),
)
_WITH_PLAN: Final = replace(
    _WITH_ALLOCATOR,
    releases=("0.5.16", "0.5.17", "0.5.18"),
    next_batch=_planned_batch,
    held=_in_part,
)
_ONLY_UNIFIED_TREE: Final = replace(
    _WITH_PLAN,
    releases=("0.5.19",),
    unified_tree="only",
    held=_in_kv,
    tracked_until=_tracked_in_kv,
)
_WITH_TIMEOUT_ABORTS: Final = replace(
    _ONLY_UNIFIED_TREE,
    releases=("0.5.20", "0.5.21", "0.5.22", "0.5.23"),
    next_batch=_batch_after_timeouts,
)
GENERATIONS: Final = (
    _FIRST,
    _WITH_SESSIONS,
    _WITH_UNIFIED_TREE,
    _WITH_ALLOCATOR,
    _WITH_PLAN,
    _ONLY_UNIFIED_TREE,
    _WITH_TIMEOUT_ABORTS,
)


def generation_of(release: str) -> Generation:
    """Return the generation that ``release`` belongs to.

    Raises:
        ConfigError: this release is not supported.
    """
    for generation in GENERATIONS:
        if release in generation.releases:
            return generation
    raise not_driven("sglang", release, [known for one in GENERATIONS for known in one.releases])
