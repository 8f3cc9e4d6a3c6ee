"""``hybridbench soak --url``: a profile's traffic to a server of others, as requests over HTTP."""

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
from hybridbench.foundation.errors import ConfigError, ErrorCode, UsageError
from hybridbench.foundation.foreign import SEED_MAX

if TYPE_CHECKING:
    from hybridbench.runs.http_load import Traffic
    from hybridbench.runs.watch import WatchPlan
    from hybridbench.workload.trace_replay import TraceOptions

_VOCAB_DEFAULT = 256
_LENGTH = "pools.max_context_len"
# Of a word of a prompt as text, with its space: six on average, and some to spare.
_BYTES_OF_WORD = 7
# How vLLM and SGLang are started with kernels that give the same bits in every batch.
_VLLM_INVARIANT = "VLLM_BATCH_INVARIANT"
_SGLANG_INVARIANT = "--enable-deterministic-inference"
# Of the time between two idle points.
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
    """The options that say what is sent, as they stand on the command line."""

    url: str
    api: ApiName | None
    stream: bool | None
    vocab: int | None
    model: str | None
    profile: str | None
    seed: int | None
    set_: Sequence[str]
    trace: TraceOptions | None
    answers: str | None

    def answers_s(self, idle_every_s: float) -> float:
        """Seconds at each idle point in which answers are asked for again.

        Raises:
            UsageError: it is no time.
        """
        if self.answers is None:
            return _OF_IDLE_POINTS * idle_every_s
        return parse_answers(self.answers)

    def traffic(self) -> Traffic:
        """What they ask for.

        Raises:
            UsageError, ConfigError: one of them cannot be as it is.
        """
        from hybridbench.records.load import OF_IDS, OF_SESSIONS

        check_url("--url", self.url, "")
        api = self.api or ApiName.COMPLETIONS
        if self.vocab is not None and api.value not in OF_IDS:
            raise UsageError(
                "belongs to --api ids and generate; other interfaces get text.",
                code=ErrorCode.OPTION_CONFLICT,
                option="--vocab",
                also=("--api",),
            )
        from hybridbench.runs.http_load import Traffic, words_of
        from hybridbench.workload.catalog import DEFAULT_PROFILE, load_profile
        from hybridbench.workload.trace_replay import check_trace

        source = self.profile or DEFAULT_PROFILE
        profile = load_profile(source).with_overrides(parse_overrides(self.set_, None, None))
        if self.trace is not None:
            profile = profile.for_replay()
            check_trace(self.trace, whole=False)
        _check_options(profile.options.without)
        has_sessions = api.value in OF_SESSIONS
        note = ""
        if profile.sessions.share and self.trace is None and not has_sessions:
            note = f"--api {api} has no sessions: those of {profile.name} were plain conversations"
        return Traffic(
            url=_base(self.url),
            api=api.value,
            stream=self.stream is not False,
            profile=profile.for_servers(sessions=has_sessions),
            source=source,
            # Two runs with one seed do not find what grows by distinct requests.
            seed=secrets.randbelow(SEED_MAX) if self.seed is None else self.seed,
            vocab_size=words_of(api.value, self.vocab or _VOCAB_DEFAULT),
            model=self.model or "",
            trace=self.trace,
            note=note,
        )


def of_prepared(
    name: str, root: Path, asked: Requests, target: TargetOptions
) -> tuple[Requests, TargetOptions]:
    """Both for the prepared server ``name``, such as ``vllm==0.32.0``, on a port that is free.

    The command of ``target`` is further options of that server, and the model that is ``asked`` for
    is the family of its checkpoint.  Prompts are token ids unless another interface is asked for:
    its tokenizer has a token for each byte, so that text would be several times as long.

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
        # What does not fit would be refused.
        each = 1 if api.value in OF_IDS else _BYTES_OF_WORD
        set_.append(f"{_LENGTH}={server.context_len // each}")
    asked = replace(asked, url=f"http://127.0.0.1:{port}", api=api, model=None, set_=set_)
    return asked, replace(target, command=command, added=len(added))


def server_plan(
    asked: Requests, target: TargetOptions, probes: ProbeOptions, course: Course
) -> WatchPlan:
    """The soak of a server that gets our requests; its metrics are looked for beside it.

    Raises:
        UsageError, ConfigError: an option cannot be as it is.
    """
    if target.restarts and not target.command:
        raise UsageError(
            "needs COMMAND: only what hybridbench has started can it start again.",
            code=ErrorCode.MISSING_ARGUMENT,
            option="--restarts",
        )
    traffic = asked.traffic()
    plan = observed_plan(target, probes, course, traffic.profile.duration_s, traffic.url)
    return replace(
        plan,
        restarts=target.restarts,
        traffic=replace(
            traffic,
            answers_s=asked.answers_s(plan.idle_every_s),
            exact=_is_batch_invariant(plan.target, plan.environment),
        ),
        metrics_url=plan.metrics_url or f"{traffic.url}/metrics",
        thresholds=tuple(dict.fromkeys((*traffic.profile.thresholds, *plan.thresholds))),
    )


def _is_batch_invariant(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a server is started so that what is computed beside a request changes no answer."""
    if environment.get(_VLLM_INVARIANT) == "1" or f"{_VLLM_INVARIANT}=1" in command:
        return True
    return _SGLANG_INVARIANT in command


def _check_options(names: Sequence[str]) -> None:
    """
    Raises:
        ConfigError: one of ``names`` is no option of any interface.
    """
    from hybridbench.load.options import OPTIONS
    from hybridbench.workload.validation import full_stop, nearest

    known = sorted({option.name for option in OPTIONS})
    for name in names:
        if name not in known:
            raise ConfigError(
                full_stop(f"options.without: {name!r} is no option; {nearest(name, known)}"),
                code=ErrorCode.UNKNOWN_NAME,
            )


def parse_answers(given: str) -> float:
    """Seconds by ``--answers``.

    Raises:
        UsageError: it is no time.
    """
    return 0.0 if given == "0" else parse_seconds("--answers", given)


def _base(url: str) -> str:
    """The address below which the interfaces are: what stands before ``/v1``."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"
