"""Check across a profile's keys whether its parts fit together numerically."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hybridbench.foundation.engine_config import EngineConfigError
from hybridbench.foundation.errors import nearest
from hybridbench.foundation.setting_types import yaml_key
from hybridbench.workload.actions import Malformed
from hybridbench.workload.coverage import COVERAGE_COUNTERS
from hybridbench.workload.settings import Arrival, ProfileKeys
from hybridbench.workload.validation import KeyFault, KeyFaultError
from hybridbench.workload.yaml_source import KeyPath, Source, dotted_path

Fault = tuple[KeyPath, str]


def check_consistency(profile: ProfileKeys, source: Source) -> None:
    """Raise KeyFaultError, with a sentence for each fault of the first check that finds one.

    Later checks rely on the earlier ones having passed.
    """
    for check in _CHECKS:
        faults = [
            KeyFault(path, "conflict", f"{dotted_path(path)} {complaint}")
            for path, complaint in check(profile)
        ]
        if faults:
            raise KeyFaultError(source, faults)


def max_prompt_tokens(profile: ProfileKeys) -> int:
    """Return the length of the longest prompt: a whole conversation, limited by the context."""
    turns = profile.conversations.turns.high
    user = _max_user_tokens(profile)
    answer = profile.output.tokens.high
    whole = profile.prompts.system_tokens.high + turns * user + (turns - 1) * answer
    return min(whole, profile.pools.max_context_len - answer)


def _max_user_tokens(profile: ProfileKeys) -> int:
    prompts = profile.prompts
    if prompts.long > 0 or profile.aborts.prefill > 0:
        return max(prompts.user_tokens.high, prompts.long_tokens.high)
    return prompts.user_tokens.high


def _pools(profile: ProfileKeys) -> Iterator[Fault]:
    pools = profile.pools
    answer = profile.output.tokens.high
    first = profile.prompts.system_tokens.high + _max_user_tokens(profile)
    if first + answer > pools.max_context_len:
        yield (
            ("pools", "max_context_len"),
            f"{pools.max_context_len} cannot hold a first turn with a prompt of up to {first} + "
            f"output {answer}; at least {first + answer}",
        )
    prompt = max_prompt_tokens(profile)
    # Keep one page free, so that a decode step always finds a free page.
    pages = -(-(prompt + answer) // pools.page_size) + 1
    needed = pages * pools.page_size
    if pools.kv_tokens < needed:
        yield (
            ("pools", "kv_tokens"),
            f"{pools.kv_tokens} cannot hold one request with a prompt of up to {prompt} + output "
            f"{answer}; at least {needed}",
        )
    config = profile.engine_config()
    if pools.mamba_slots < config.least_mamba_slots:
        buffer = config.track_buffer_size
        saved = ("", ", one saved copy of it", ", two saved copies of it")[buffer]
        yield (
            ("pools", "mamba_slots"),
            f"{pools.mamba_slots} cannot hold the state of one running request{saved} + one that "
            f"the tree keeps; at least {config.least_mamba_slots}",
        )


def _engine(profile: ProfileKeys) -> Iterator[Fault]:
    try:
        profile.engine_config()
    except EngineConfigError as error:
        group = "pools" if error.path[0] in vars(profile.pools) else "engine"
        yield (group, *map(yaml_key, error.path)), error.complaint
    if profile.aborts.prefill > 0 and profile.engine.chunked_prefill_size is None:
        yield (
            ("aborts", "prefill"),
            f"{profile.aborts.prefill} needs prompts that take more than one step; set "
            f"engine.chunked_prefill_size",
        )


def _arrival(profile: ProfileKeys) -> Iterator[Fault]:
    arrival = profile.arrival
    if arrival.process == "closed":
        if arrival.concurrency is None:
            yield ("arrival", "concurrency"), "is missing; a closed loop needs it, for example 32"
        if arrival.rate_per_s is not None:
            yield ("arrival", "rate"), "has no effect in a closed loop; use process: poisson"
    else:
        yield from _open_loop(arrival)
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


def _open_loop(arrival: Arrival) -> Iterator[Fault]:
    if arrival.rate_per_s is None:
        yield ("arrival", "rate"), "is missing; poisson arrivals need it, for example 40/s"
    if arrival.concurrency is not None:
        yield ("arrival", "concurrency"), "has no effect with poisson arrivals; use rate"
    if arrival.think_s > 0:
        yield ("arrival", "think"), "has no effect with poisson arrivals; use process: closed"


def _shares(profile: ProfileKeys) -> Iterator[Fault]:
    aborts, bad = profile.aborts, profile.bad_input
    ends = aborts.queued + aborts.prefill + aborts.decode + aborts.disconnect
    if ends > 1:
        yield ("aborts",), f"take {ends:g} of the requests in all; at most 1"
    if bad.overlong + bad.truncate > 0.5:
        yield ("bad_input",), "may make at most half of the requests too long"
    taken = bad.overlong + bad.truncate + bad.malformed
    if taken > 1:
        yield ("bad_input",), f"takes {taken:g} of the requests in all; at most 1"
    if bad.malformed > 0 and set(bad.without) == set(Malformed):
        yield ("bad_input", "without"), "leaves no kind of malformed request"


def _queue(profile: ProfileKeys) -> Iterator[Fault]:
    priorities, engine = profile.priorities, profile.engine
    total = sum(entry.share for entry in priorities)
    if total > 1:
        yield ("priorities",), f"take {total:g} of the requests in all; at most 1"
    if priorities and not engine.enable_priority_scheduling:
        yield ("priorities",), "have no effect unless engine.enable_priority_scheduling is true"
    controls = profile.controls
    if controls.pause_every_s is not None and controls.pause_for_s >= controls.pause_every_s:
        yield (
            ("controls", "pause_for"),
            f"{controls.pause_for_s:g}s must be less than pause_every {controls.pause_every_s:g}s",
        )


def _sampling(profile: ProfileKeys) -> Iterator[Fault]:
    sampling = profile.sampling
    if sampling.top_p <= 0:
        yield ("sampling", "top_p"), "0 leaves no token to choose; 1 considers all"


def _sessions(profile: ProfileKeys) -> Iterator[Fault]:
    sessions = profile.sessions
    if sessions.close_busy + sessions.abandon > 1:
        total = sessions.close_busy + sessions.abandon
        yield ("sessions",), f"close_busy and abandon take {total:g} of the sessions; at most 1"
    if sessions.abandon > 0 and sessions.timeout_s is None:
        yield (
            ("sessions", "abandon"),
            "needs sessions.timeout, or they are never closed",
        )
    if sessions.share > 0 and profile.prompts.payload_bytes > 0:
        yield ("sessions", "share"), "and prompts.payload exclude each other; set one of them to 0"


def _coverage(profile: ProfileKeys) -> Iterator[Fault]:
    for name in profile.assert_coverage:
        if name not in COVERAGE_COUNTERS:
            yield (
                ("assert_coverage", name),
                f"is not an event the engine counts; {nearest(name, COVERAGE_COUNTERS)}",
            )


def _times(profile: ProfileKeys) -> Iterator[Fault]:
    for path, value_s in (
        (("duration",), profile.duration_s),
        (("checkpoint", "every"), profile.checkpoint.every_s),
        (("probe", "sample_every"), profile.probe.sample_every_s),
        (("probe", "collectible_every"), profile.probe.collectible_every_s),
        (("aborts", "queue_timeout"), profile.aborts.queue_timeout_s),
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
    starts = [entry.from_s for entry in profile.limits]
    if not starts:
        yield ("promise",), "is empty; CLEAN needs a limit, for example {from: 5m, rss: 512MiB/h}"
    for index in range(1, len(starts)):
        if starts[index] <= starts[index - 1]:
            yield (
                ("promise", index, "from"),
                f"is {starts[index]:g}s; entries must ascend, and the one before begins at "
                f"{starts[index - 1]:g}s",
            )


_CHECKS: Final[tuple[Callable[[ProfileKeys], Iterator[Fault]], ...]] = (
    _engine,
    _pools,
    _arrival,
    _shares,
    _queue,
    _sampling,
    _sessions,
    _coverage,
    _times,
)
