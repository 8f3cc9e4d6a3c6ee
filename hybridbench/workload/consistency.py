"""What no single key can know: whether the parts of a profile fit together, with the arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from hybridbench.errors import ConfigError
from hybridbench.workload.coverage import COVERAGE_COUNTERS
from hybridbench.workload.validation import full_stop, nearest
from hybridbench.workload.yaml_source import KeyPath, Source, dotted_path

if TYPE_CHECKING:
    from hybridbench.workload.profile import Profile

Fault = tuple[KeyPath, str]


def check_consistency(profile: Profile, source: Source) -> None:
    """Raise ConfigError, one sentence with place and key, on the first fault found."""
    for check in _CHECKS:
        for path, complaint in check(profile):
            raise ConfigError(full_stop(f"{source.place(path)}: {dotted_path(path)} {complaint}"))


def max_prompt_tokens(profile: Profile) -> int:
    """The longest prompt the profile can make: a whole conversation, as far as the context goes."""
    turns = profile.conversations.turns.high
    user = _max_user_tokens(profile)
    answer = profile.output.tokens.high
    whole = profile.prompts.system_tokens.high + turns * user + (turns - 1) * answer
    return min(whole, profile.pools.max_context_len - answer)


def _max_user_tokens(profile: Profile) -> int:
    prompts = profile.prompts
    if prompts.long > 0 or profile.aborts.prefill > 0:
        return max(prompts.user_tokens.high, prompts.long_tokens.high)
    return prompts.user_tokens.high


def _pools(profile: Profile) -> Iterator[Fault]:
    pools = profile.pools
    if pools.kv_tokens % pools.page_size:
        below = pools.kv_tokens - pools.kv_tokens % pools.page_size
        near = max(below, pools.page_size)
        yield (
            ("pools", "kv_tokens"),
            f"{pools.kv_tokens} is not a multiple of page_size {pools.page_size}; {near} is",
        )
    answer = profile.output.tokens.high
    first = profile.prompts.system_tokens.high + _max_user_tokens(profile)
    if first + answer > pools.max_context_len:
        yield (
            ("pools", "max_context_len"),
            f"{pools.max_context_len} cannot hold a first turn of prompt up to {first} + output "
            f"{answer}; at least {first + answer}",
        )
    prompt = max_prompt_tokens(profile)
    # One page stays free, so that a decode step never finds the last one half taken.
    pages = -(-(prompt + answer) // pools.page_size) + 1
    needed = pages * pools.page_size
    if pools.kv_tokens < needed:
        yield (
            ("pools", "kv_tokens"),
            f"{pools.kv_tokens} cannot hold one request of prompt up to {prompt} + output "
            f"{answer}; at least {needed}",
        )
    buffer = _track_buffer_size(profile)
    least = 2 + buffer
    if pools.mamba_slots < least:
        saved = ("", ", one saved copy of it", ", two saved copies of it")[buffer]
        yield (
            ("pools", "mamba_slots"),
            f"{pools.mamba_slots} cannot hold the state of one running request{saved} + one that "
            f"the tree keeps; at least {least}",
        )


def _track_buffer_size(profile: Profile) -> int:
    """State slots of a running request beside its own."""
    engine = profile.engine
    if engine.mamba_scheduler_strategy == "no_buffer":
        return 0
    return 2 if engine.enable_overlap_schedule else 1


def _engine(profile: Profile) -> Iterator[Fault]:
    chunk, page = profile.engine.chunked_prefill_size, profile.pools.page_size
    if chunk is not None and chunk % page:
        near = max(page, chunk - chunk % page)
        yield (
            ("engine", "chunked_prefill_size"),
            f"{chunk} is not a multiple of pools.page_size {page}; {near} is",
        )
    yield from _tracking(profile)
    ratio = profile.engine.new_token_ratio
    if ratio.min > ratio.init:
        yield (
            ("engine", "new_token_ratio", "min"),
            f"{ratio.min} is above init {ratio.init}; it is what the ratio falls to",
        )
    engine = profile.engine
    if engine.speculative_num_draft_tokens < 2:
        yield (
            ("engine", "speculative_num_draft_tokens"),
            f"{engine.speculative_num_draft_tokens} leaves no room for a guess behind a request's "
            "last token; at least 2",
        )
    if profile.aborts.prefill > 0 and chunk is None:
        yield (
            ("aborts", "prefill"),
            f"{profile.aborts.prefill} needs prompts that take more than one step; set "
            f"engine.chunked_prefill_size",
        )


def _tracking(profile: Profile) -> Iterator[Fault]:
    engine, page = profile.engine, profile.pools.page_size
    if engine.mamba_scheduler_strategy == "no_buffer":
        return
    if engine.mamba_track_interval < 2:
        yield (
            ("engine", "mamba_track_interval"),
            f"{engine.mamba_track_interval} leaves no step between two copies; at least 2",
        )
    for key, length in (
        ("mamba_track_interval", engine.mamba_track_interval),
        ("mamba_cache_chunk_size", max(engine.mamba_cache_chunk_size, page)),
    ):
        if length % page:
            near = max(page, length - length % page)
            yield (
                ("engine", key),
                f"{length} is not a multiple of pools.page_size {page}; {near} is",
            )


def _arrival(profile: Profile) -> Iterator[Fault]:
    arrival = profile.arrival
    if arrival.process == "closed":
        if arrival.concurrency is None:
            yield ("arrival", "concurrency"), "is missing; a closed loop needs it, for example 32"
        if arrival.rate_per_s is not None:
            yield ("arrival", "rate"), "has no meaning in a closed loop; use process: poisson"
    else:
        if arrival.rate_per_s is None:
            yield ("arrival", "rate"), "is missing; poisson arrivals need it, for example 40/s"
        if arrival.concurrency is not None:
            yield ("arrival", "concurrency"), "has no meaning with poisson arrivals; use rate"
    if arrival.ramp is not None and arrival.ramp.over_s <= 0:
        yield ("arrival", "ramp", "over"), "must be more than 0s"
    bursts = arrival.bursts
    if bursts is None:
        return
    if not 0 < bursts.length_s < bursts.every_s:
        yield (
            ("arrival", "bursts", "length"),
            f"{bursts.length_s:g}s must be more than 0 and less than every {bursts.every_s:g}s",
        )
    if bursts.factor < 1:
        yield ("arrival", "bursts", "factor"), f"{bursts.factor:g} must be at least 1"


def _shares(profile: Profile) -> Iterator[Fault]:
    aborts, bad = profile.aborts, profile.bad_input
    ends = aborts.queued + aborts.prefill + aborts.decode + aborts.disconnect
    if ends > 1:
        yield ("aborts",), f"take {ends:g} of the requests in all; at most 1"
    if bad.overlong + bad.truncate > 0.5:
        yield ("bad_input",), "may make at most half of the requests too long"


def _queue(profile: Profile) -> Iterator[Fault]:
    priorities, engine = profile.priorities, profile.engine
    total = sum(entry.share for entry in priorities)
    if total > 1:
        yield ("priorities",), f"take {total:g} of the requests in all; at most 1"
    if priorities and not engine.enable_priority_scheduling:
        yield ("priorities",), "mean nothing unless engine.enable_priority_scheduling is true"
    controls = profile.controls
    if controls.pause_every_s is not None and controls.pause_for_s >= controls.pause_every_s:
        yield (
            ("controls", "pause_for"),
            f"{controls.pause_for_s:g}s must be less than pause_every {controls.pause_every_s:g}s",
        )


def _sampling(profile: Profile) -> Iterator[Fault]:
    sampling = profile.sampling
    if sampling.top_p <= 0:
        yield ("sampling", "top_p"), "0 leaves no token to choose; 1 considers all"


def _sessions(profile: Profile) -> Iterator[Fault]:
    sessions = profile.sessions
    if sessions.close_busy + sessions.abandon > 1:
        total = sessions.close_busy + sessions.abandon
        yield ("sessions",), f"close_busy and abandon take {total:g} of the sessions; at most 1"
    if sessions.abandon > 0 and sessions.timeout_s is None:
        yield (
            ("sessions", "abandon"),
            "needs sessions.timeout, or nobody ever closes them",
        )
    if sessions.share > 0 and profile.prompts.payload_bytes > 0:
        yield ("sessions", "share"), "and prompts.payload exclude each other; set one of them to 0"


def _coverage(profile: Profile) -> Iterator[Fault]:
    for name in profile.assert_coverage:
        if name not in COVERAGE_COUNTERS:
            yield (
                ("assert_coverage", name),
                f"is not an event the engine counts; {nearest(name, COVERAGE_COUNTERS)}",
            )


def _times(profile: Profile) -> Iterator[Fault]:
    for path, value_s in (
        (("duration",), profile.duration_s),
        (("checkpoint", "every"), profile.checkpoint.every_s),
        (("probe", "sample_every"), profile.probe.sample_every_s),
        (("probe", "collectible_every"), profile.probe.collectible_every_s),
        (("aborts", "queue_timeout"), profile.aborts.queue_timeout_s),
        (("engine", "req_waiting_timeout"), profile.engine.req_waiting_timeout_s),
        (("controls", "pause_every"), profile.controls.pause_every_s),
        (("controls", "abort_all_every"), profile.controls.abort_all_every_s),
        (("sessions", "timeout"), profile.sessions.timeout_s),
    ):
        if value_s is not None and value_s <= 0:
            yield path, "must be longer than 0s"
    checkpoint = profile.checkpoint
    if checkpoint.every_s is not None and checkpoint.idle_s >= checkpoint.every_s > 0:
        yield (
            ("checkpoint", "idle"),
            f"{checkpoint.idle_s:g}s must be less than every {checkpoint.every_s:g}s",
        )
    starts = [entry.from_s for entry in profile.promise]
    if not starts:
        yield ("promise",), "is empty; CLEAN needs a limit, for example {from: 5m, rss: 512MiB/h}"
    for index in range(1, len(starts)):
        if starts[index] <= starts[index - 1]:
            yield (
                ("promise", index, "from"),
                f"is {starts[index]:g}s; entries go up, and the one before begins at "
                f"{starts[index - 1]:g}s",
            )


_CHECKS: Final[tuple[Callable[[Profile], Iterator[Fault]], ...]] = (
    _pools,
    _engine,
    _arrival,
    _shares,
    _queue,
    _sampling,
    _sessions,
    _coverage,
    _times,
)
