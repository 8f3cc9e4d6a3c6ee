"""``hybridbench soak --url``: send the traffic of profiles to a third-party server over HTTP."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hybridbench.cli.observed import Course, ProbeOptions, TargetOptions, check_url, observed_plan
from hybridbench.cli.options import parse_overrides, parse_seconds
from hybridbench.foundation.errors import ConfigError, ErrorCode, UsageError, full_stop, nearest
from hybridbench.foundation.foreign import SEED_MAX

if TYPE_CHECKING:
    from hybridbench.runs.http_load import Traffic
    from hybridbench.runs.watch import WatchPlan
    from hybridbench.workload.profile import Profile
    from hybridbench.workload.trace_replay import TraceOptions

_VOCAB_DEFAULT = 256
_LENGTH = "pools.max_context_len"
# Bytes per word of a text prompt, including its space: six on average, plus some reserve.
_BYTES_OF_WORD = 7
# Settings that start vLLM and SGLang with batch-invariant kernels.
_VLLM_INVARIANT = "VLLM_BATCH_INVARIANT"
_SGLANG_INVARIANT = "--enable-deterministic-inference"
# Default share of the time between two idle points for requesting answers again.
_OF_IDLE_POINTS = 0.1


class ApiName(StrEnum):
    """Interfaces of an OpenAI-compatible server."""

    COMPLETIONS = "completions"
    IDS = "ids"
    CHAT = "chat"
    RESPONSES = "responses"
    GENERATE = "generate"


@dataclass(frozen=True)
class Requests:
    """The options that select the requests, as given on the command line."""

    url: str
    api: ApiName | None
    stream: bool | None
    vocab: int | None
    model: str | None
    profiles: Sequence[str]
    seed: int | None
    set_: Sequence[str]
    trace: TraceOptions | None
    answers: str | None

    def answers_s(self, idle_every_s: float) -> float:
        """Seconds at each idle point for requesting answers again.

        Raises:
            UsageError: ``--answers`` is not a duration.
        """
        if self.answers is None:
            return _OF_IDLE_POINTS * idle_every_s
        return parse_answers(self.answers)

    def read_profiles(self) -> list[Profile]:
        """Read the profiles, changed by ``--set``.

        Raises:
            UsageError, ConfigError: one does not exist, or a setting is invalid.
        """
        from hybridbench.workload.catalog import load_profile

        overrides = parse_overrides(self.set_, None, None)
        return [load_profile(source).with_overrides(overrides) for source in self._sources()]

    def _sources(self) -> Sequence[str]:
        from hybridbench.workload.catalog import DEFAULT_PROFILE

        return self.profiles or [DEFAULT_PROFILE]

    def traffic(self) -> Traffic:
        """The traffic that the options describe.

        Raises:
            UsageError, ConfigError: an option is invalid.
        """
        from hybridbench.records.load import OF_IDS, OF_SESSIONS

        check_url("--url", self.url, "")
        api = self.api or ApiName.COMPLETIONS
        if self.vocab is not None and api.value not in OF_IDS:
            raise UsageError(
                "belongs to --api ids and generate; other interfaces get text.",
                option="--vocab",
                also=("--api",),
            )
        from hybridbench.runs.http_load import Traffic, words_of
        from hybridbench.workload.trace_replay import check_trace, note_on_length

        profiles = self.read_profiles()
        if self.trace is not None:
            if len(profiles) > 1:
                raise UsageError(
                    "replaces the traffic of a profile; give only one.",
                    option="--trace",
                    also=("--profile",),
                )
            profiles = [profiles[0].for_replay()]
            check_trace(self.trace)
        for profile in profiles:
            _check_options(profile.options.without)
        has_sessions = api.value in OF_SESSIONS
        served = tuple(profile.for_servers(sessions=has_sessions) for profile in profiles)
        flattened = [one.name for one in profiles if one.sessions.share and not has_sessions]
        note = ""
        if self.trace is not None:
            note = note_on_length(self.trace, served[0])
        elif flattened:
            names = " and ".join(flattened)
            note = f"--api {api} has no sessions: those of {names} were plain conversations"
        return Traffic(
            url=_base(self.url),
            api=api.value,
            stream=self.stream is not False,
            profiles=served,
            source=self._sources()[0],
            # Random, because repeated runs with one seed would miss growth per distinct request.
            seed=secrets.randbelow(SEED_MAX) if self.seed is None else self.seed,
            vocab_size=words_of(api.value, self.vocab or _VOCAB_DEFAULT),
            model=self.model or "",
            trace=self.trace,
            note=note,
        )


def of_prepared(
    name: str, root: Path, asked: Requests, target: TargetOptions
) -> tuple[Requests, TargetOptions]:
    """Point both at the prepared server ``name``, such as ``vllm==0.32.0``, on a free port.

    The command of ``target`` holds further options of that server, and the model of ``asked`` is
    the family of its checkpoint.  Prompts are token ids unless another interface is requested: its
    tokenizer has one token per byte, so text would be several times as long.

    Raises:
        UsageError: there is no such server or checkpoint, or it is not prepared below ``root``.
    """
    from hybridbench.records.load import OF_IDS
    from hybridbench.targets.prepared_server import free_port, prepared_server

    server, port = prepared_server(name, asked.model, root), free_port()
    added = [*server.command, "--port", str(port)]
    command = [*added, *(target.command or ())]
    set_ = list(asked.set_)
    api = asked.api or ApiName.IDS
    if not any(pair.startswith(f"{_LENGTH}=") for pair in set_):
        # The server would refuse prompts that do not fit.
        each = 1 if api.value in OF_IDS else _BYTES_OF_WORD
        set_.append(f"{_LENGTH}={server.context_len // each}")
        if each > 1:
            _check_words(api, name, server.context_len // each, replace(asked, set_=set_))
    asked = replace(asked, url=f"http://127.0.0.1:{port}", api=api, model=None, set_=set_)
    return asked, replace(target, command=command, added=len(added))


def _check_words(api: ApiName, name: str, most: int, asked: Requests) -> None:
    """Refuse profiles whose prompts do not fit into a context of ``most`` words.

    Raises:
        UsageError: it names the profile that does not fit, and what would.
    """
    try:
        asked.read_profiles()
    except ConfigError as error:
        raise UsageError(
            f"{api} sends text, and {name} is prepared with a tokenizer of one token per byte: its "
            f"context holds about {most} words. Choose --api ids, or a profile of shorter prompts "
            f"such as session-churn ({str(error).rstrip('.')}).",
            code=ErrorCode.OPTION_CONFLICT,
            option="--api",
            also=("--profile",),
        ) from error


def server_plan(
    asked: Requests, target: TargetOptions, probes: ProbeOptions, course: Course
) -> WatchPlan:
    """Plan the soak of a server with our requests; metrics default to its ``/metrics``.

    Raises:
        UsageError, ConfigError: an option is invalid.
    """
    if target.restarts and not target.command:
        raise UsageError(
            "needs COMMAND: hybridbench can restart only what it has started.",
            code=ErrorCode.MISSING_ARGUMENT,
            option="--restarts",
        )
    traffic = asked.traffic()
    plan = observed_plan(target, probes, course, traffic.duration_s, traffic.url)
    if len(traffic.profiles) > 1 and not plan.idle_every_s:
        raise UsageError(
            "0 leaves no idle points, at which the next profile begins; give one --profile.",
            option="--idle-every",
            also=("--profile",),
        )
    return replace(
        plan,
        restarts=target.restarts,
        traffic=replace(
            traffic,
            answers_s=asked.answers_s(plan.idle_every_s),
            exact=_is_batch_invariant(plan.target, plan.environment),
        ),
        metrics_url=plan.metrics_url or f"{traffic.url}/metrics",
        thresholds=tuple(dict.fromkeys((*traffic.thresholds, *plan.thresholds))),
    )


def _is_batch_invariant(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the server's answers are independent of the other requests in a batch."""
    if environment.get(_VLLM_INVARIANT) == "1" or f"{_VLLM_INVARIANT}=1" in command:
        return True
    return _SGLANG_INVARIANT in command


def _check_options(names: Sequence[str]) -> None:
    """
    Raises:
        ConfigError: one of ``names`` is not an option of any interface.
    """
    from hybridbench.load.options import OPTIONS

    known = sorted({option.name for option in OPTIONS})
    for name in names:
        if name not in known:
            raise ConfigError(
                full_stop(f"options.without: {name!r} is not an option; {nearest(name, known)}"),
                code=ErrorCode.UNKNOWN_NAME,
            )


def parse_answers(given: str) -> float:
    """Parse ``--answers`` into seconds.

    Raises:
        UsageError: ``given`` is not a duration.
    """
    return 0.0 if given == "0" else parse_seconds("--answers", given)


def _base(url: str) -> str:
    """The base address of the interfaces: the part before ``/v1``."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"
