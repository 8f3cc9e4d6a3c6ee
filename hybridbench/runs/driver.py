"""Connect workload and target: actions become messages, the engine's events become feedback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from hybridbench.records.answers import pack_tokens
from hybridbench.records.messages import (
    Disconnect,
    Ended,
    FinishedAnswer,
    Sampling,
    StepEvents,
    Submit,
    TokenLogprobs,
)
from hybridbench.targets.target import Drive
from hybridbench.workload.actions import WaitUntil, Workload
from hybridbench.workload.tenants import Beginnings

# An open loop that fell behind must not keep the soak loop from checking the clock.
_ACTIONS_PER_PUMP_MAX = 512


@dataclass
class DriverCounts:
    """Requests as the client sees them; only counts, never the requests."""

    finished: int = 0
    aborted: int = 0
    rejected: int = 0


class _Asked(NamedTuple):
    """What a request asked for; ``prompt_tokens`` with earlier turns, None if unknown."""

    sampling: Sampling
    prompt_tokens: int | None


class Driver:
    """Execute the workload's actions and report the results to it, in the engine's order."""

    def __init__(self, workload: Workload, target: Drive) -> None:
        self._workload = workload
        self._target = target
        self._paused = False
        # Only for requests whose end has not been reported yet.
        self._asked: dict[str, _Asked] = {}
        self._beginnings = Beginnings()
        self.counts = DriverCounts()

    @property
    def failure(self) -> str:
        """Why the workload cannot send any more; empty while it can."""
        return self._workload.failure

    def pump(self, now_s: float) -> float | None:
        """Post everything that is due; return the latest time for the next pump, or None."""
        for _ in range(_ACTIONS_PER_PUMP_MAX):
            action = self._workload.next_action(now_s)
            if isinstance(action, WaitUntil):
                return action.due_s
            if isinstance(action, Submit):
                self._note(action)
            elif isinstance(action, Disconnect):
                self._asked.pop(action.rid, None)
            self._target.post(action)
        return now_s

    def _note(self, request: Submit) -> None:
        # A session's turn sends only its new tokens; its prompt begins with the others.
        is_turn = bool(request.session_id)
        prompt = self._workload.prompt_of(request.rid) if is_turn else request.input_ids
        known = prompt is not None and not request.truncate
        self._asked[request.rid] = _Asked(request.sampling, len(prompt or ()) if known else None)
        if request.extra_key:
            self._beginnings.sent(request.rid, request.extra_key, prompt or request.input_ids)

    def pause(self, now_s: float) -> None:
        """Submit nothing until ``resume``."""
        if not self._paused:
            self._paused = True
            self._workload.pause(now_s)

    def resume(self, now_s: float) -> None:
        """Continue submitting."""
        if self._paused:
            self._paused = False
            self._workload.resume(now_s)

    @property
    def in_flight(self) -> int:
        """Number of requests that were submitted and have no answer."""
        return self._workload.in_flight

    @property
    def refusal(self) -> str:
        """Why the engine first refused a valid request; empty if it has refused none."""
        return self._workload.refusal

    def as_sent(self, answer: FinishedAnswer) -> FinishedAnswer:
        """Return ``answer`` with the prompt, temperature and seed that the client sent, even if the
        engine reports others.

        Call it before the workload is told that the request has ended.
        """
        asked, prompt = self._asked.get(answer.rid), self._workload.prompt_of(answer.rid)
        if asked is not None:
            answer = msgspec.structs.replace(
                answer, temperature=asked.sampling.drawn_at, seed=asked.sampling.seed
            )
        if prompt is None:
            return answer
        return msgspec.structs.replace(answer, prompt=pack_tokens(prompt))

    def faults_of(self, events: StepEvents) -> list[str]:
        """Return a sentence on each answer that ends elsewhere than its client asked, follows a
        prompt of another length, has other tokens' logprobs, or reuses what only other tenants can
        have computed.

        An engine that loses or confuses the settings of requests cannot see this itself.  Call it
        before ``on_step_events``.
        """
        faults: list[tuple[str, str]] = []
        for answer in events.finished:
            rid, asked = answer.rid, self._asked.get(answer.rid)
            faults.append((rid, self._beginnings.fault_of(rid, answer.cached_tokens)))
            if asked is not None:
                faults.append((rid, _fault_of_prompt(answer, asked.prompt_tokens)))
                faults.append((rid, _fault_of_end(answer, asked.sampling)))
                logprobs = events.logprobs.get(rid, [])
                faults.append((rid, _fault_of_logprobs(answer, asked.sampling, logprobs)))
        return [f"request {rid}: its client {fault}" for rid, fault in faults if fault]

    def on_step_events(self, events: StepEvents) -> None:
        """Feed one message from the worker back into the workload."""
        workload, now_s, counts = self._workload, events.t_s, self.counts
        # Refusals on arrival come first: they happened before the step ran.
        for refused in events.rejected:
            counts.rejected += 1
            self._asked.pop(refused.rid, None)
            workload.on_rejected(refused.rid, refused.message)
        for rid in events.admitted:
            workload.on_admitted(rid)
        for rid in events.first_tokens:
            workload.on_first_token(rid, now_s)
        for ended in (*events.finished, *events.aborted):
            self._asked.pop(ended.rid, None)
        for ended in events.finished:
            counts.finished += 1
            workload.on_finished(ended.rid, ended.output_ids, ended.reason, now_s)
        for ended in events.aborted:
            counts.aborted += 1
            workload.on_finished(ended.rid, ended.output_ids, ended.reason, now_s)


def _fault_of_prompt(answer: Ended, sent: int | None) -> str:
    """Return that ``answer`` follows a prompt of another length; empty if not, or if unknown."""
    if sent is None or sent == answer.prompt_tokens:
        return ""
    return f"sent a prompt of {sent:,} tokens, and it was one of {answer.prompt_tokens:,}"


def _fault_of_logprobs(answer: Ended, asked: Sampling, logprobs: Sequence[TokenLogprobs]) -> str:
    """Return what shows that ``logprobs`` are not those of ``answer``; empty if nothing does."""
    if asked.logprobs is None:
        return ""
    tokens = answer.output_ids
    if len(logprobs) != len(tokens):
        return f"got {len(tokens):,} tokens and the logprobs of {len(logprobs):,}"
    for place, (token, said) in enumerate(zip(tokens, logprobs, strict=True), 1):
        likeliest = dict(said.best)
        highest = max(likeliest.values(), default=said.logprob)
        if likeliest.get(token, said.logprob) != said.logprob or said.logprob > highest:
            return f"got two different logprobs of output token {place}"
        # Two tokens may be equally probable; then either may come first.
        if asked.drawn_at == 0 and likeliest.get(token) != highest:
            return f"got logprobs in which its greedy output token {place} is not the likeliest"
    return ""


def _fault_of_end(answer: Ended, asked: Sampling) -> str:
    """Return how ``answer`` ends elsewhere than ``asked``; empty if it does not."""
    length, most = len(answer.output_ids), asked.max_new_tokens
    stops = (n for n, token in enumerate(answer.output_ids, 1) if token in asked.stop_token_ids)
    if length > most:
        return f"asked for {most:,} tokens at most and got {length:,}"
    if (first_stop := next(stops, length)) < length:
        return f"got {length - first_stop:,} more tokens after the first of its stop tokens"
    if answer.reason == "length" and length < most:
        return f"asked for {most:,} tokens and got {length:,}, cut off for their number"
    if answer.reason == "stop" and asked.ignore_eos:
        return f"asked for no stop token, and its answer ended at one after {length:,} of {most:,}"
    return ""
