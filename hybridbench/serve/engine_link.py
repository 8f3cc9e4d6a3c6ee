"""Connect the server's event loop to the engine: send requests, receive their tokens.

Everything here runs on the event loop's thread, which watches the wire's file descriptor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol, TypeAlias, TypeVar

from hybridbench.foundation.errors import WorkerFailedError
from hybridbench.foundation.latency import E2E, ITL, TTFT, LatencyHistogram
from hybridbench.records.messages import (
    CheckpointReply,
    Counters,
    CountersReply,
    Disconnect,
    Drain,
    Drained,
    Ended,
    Fatal,
    FromWorker,
    Goodbye,
    Shutdown,
    Steady,
    StepEvents,
    Submit,
    TokenLogprobs,
    ToWorker,
)
from hybridbench.serve.schema import Asked
from hybridbench.targets.wire import WireClosedError

Answer = TypeVar("Answer", bound=FromWorker)
# Frames have a size limit, and all prompts posted in one iteration of the loop share a frame.
_FRAME_TOKENS_MAX: Final = 200_000
# The type of an answer, and the id of the probe that it answers.
_Key: TypeAlias = tuple[type[object], int]


class Wire(Protocol):
    """The message channel to the worker; ``targets/bundled.py`` implements it."""

    def post(self, message: ToWorker) -> None: ...
    def exchange(self, timeout_s: float) -> list[FromWorker]: ...
    def fileno(self) -> int: ...
    @property
    def has_unsent(self) -> bool: ...


class EngineGoneError(Exception):
    """The worker has ended, or did not answer in time."""


@dataclass(frozen=True)
class Tokens:
    """Some tokens of an answer, with their logprobs if the client requested them."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(eq=False)
class Generation:
    """One prompt's generation in the engine.

    Tokens not taken yet are buffered here, so that a slow client costs no more memory than its own
    answer.

    Attributes:
        ended: how it ended; None while it runs, or if the engine never accepted it.
        refusal: why the engine refused it.
        failure: why it cannot finish.
    """

    rid: str
    changed: asyncio.Event
    ended: Ended | None = None
    refusal: str = ""
    failure: str = ""
    _fresh: Tokens = field(default_factory=Tokens)
    _received: int = 0

    @property
    def is_over(self) -> bool:
        """Whether no more tokens will come."""
        return self.ended is not None or bool(self.refusal or self.failure)

    def take(self) -> Tokens:
        """Take the tokens since the last call, without a final stop token."""
        fresh, self._fresh = self._fresh, Tokens()
        return fresh

    def add(self, ids: Sequence[int]) -> None:
        """Buffer tokens that the engine has emitted."""
        self._received += len(ids)
        self._fresh.ids.extend(ids)
        self.changed.set()

    def add_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Buffer logprobs of the tokens in the next call of ``add`` or ``end``."""
        self._fresh.logprobs.extend(logprobs)

    def end(self, ended: Ended) -> None:
        """Finish; tokens that were not reported yet are taken from the whole output."""
        self.ended = ended
        self.add(ended.output_ids[self._received :])
        if ended.reason == "stop" and self._fresh.ids:
            self._fresh.ids.pop()
            del self._fresh.logprobs[len(self._fresh.ids) :]

    def give_up(self, *, refusal: str = "", failure: str = "") -> None:
        """End without an answer: the engine refused the prompt, or is gone."""
        self.refusal, self.failure = refusal, failure
        self.changed.set()


class EngineLink:
    """Owns the traffic with a ready worker; the caller owns the process.

    Attributes:
        lost: why the engine is gone, as one sentence; empty while it is there.
        latencies: all latencies that the engine has reported so far.
        is_steady: whether the engine has reported that it is warm.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._generations: dict[str, Generation] = {}
        self._awaited: dict[_Key, list[asyncio.Future[FromWorker]]] = {}
        self._exchange_due = False
        self._waits_to_write = False
        self.lost = ""
        self.is_steady = False
        self.latencies = {name: LatencyHistogram() for name in (TTFT, ITL, E2E)}
        self._loop.add_reader(wire.fileno(), self._exchange)

    def __len__(self) -> int:
        """Number of generations that run or wait."""
        return len(self._generations)

    async def leave(self, patience_s: float) -> bool:
        """Drain the engine and shut its process down; the link is unusable afterwards.

        Returns:
            Whether the process confirmed that it ends.
        """
        try:
            await self.ask(Drain(), Drained, patience_s)
            await self.ask(Shutdown(), Goodbye, patience_s)
        except EngineGoneError:
            return False
        else:
            return True
        finally:
            if not self.lost:
                self._lose("the server has ended")

    def submit(self, asked: Asked, changed: asyncio.Event) -> list[Generation]:
        """Start a generation for each prompt; ``changed`` is set whenever one has news.

        Raises:
            EngineGoneError: the engine is gone.
        """
        self._check()
        generations = []
        for prompt, sampling in zip(asked.prompts, asked.sampling, strict=True):
            generation = Generation(f"http-{next(self._numbers)}", changed)
            self._generations[generation.rid] = generation
            generations.append(generation)
            self.post(
                Submit(
                    generation.rid,
                    prompt,
                    sampling,
                    session_id=asked.session_id,
                    priority=asked.priority,
                    extra_key=asked.extra_key,
                    # The logprobs of a whole answer might not fit into one frame.
                    stream=asked.stream or asked.logprobs is not None,
                )
            )
        if sum(map(len, asked.prompts)) > _FRAME_TOKENS_MAX:
            self._exchange()
        return generations

    def drop(self, generation: Generation) -> None:
        """Disconnect ``generation`` from its client; no effect if it is over."""
        if self._generations.pop(generation.rid, None) is not None:
            self.post(Disconnect(generation.rid))

    def new_probe_id(self) -> int:
        """A unique id for a probe."""
        return next(self._numbers)

    async def counters(self, patience_s: float) -> CountersReply:
        """The worker's counters, which it sends even while its engine is busy.

        Raises:
            EngineGoneError: no reply within ``patience_s``.
        """
        probe_id = self.new_probe_id()
        return await self.ask(Counters(probe_id), CountersReply, patience_s, probe_id)

    async def ask(
        self, request: ToWorker, kind: type[Answer], patience_s: float, probe_id: int = 0
    ) -> Answer:
        """Post ``request``, with its ``probe_id`` if any, and await its answer.

        Raises:
            EngineGoneError: no answer within ``patience_s``.
        """
        self._check()
        future: asyncio.Future[FromWorker] = self._loop.create_future()
        self._awaited.setdefault((kind, probe_id), []).append(future)
        self.post(request)
        try:
            answer = await asyncio.wait_for(future, patience_s)
        except TimeoutError as error:
            raise EngineGoneError("the engine does not answer") from error
        finally:
            waiting = self._awaited.get((kind, probe_id), [])
            if future in waiting:
                waiting.remove(future)
        assert isinstance(answer, kind)
        return answer

    def post(self, message: ToWorker) -> None:
        """Send ``message``; no effect if the engine is gone."""
        if self.lost:
            return
        self._wire.post(message)
        if not self._exchange_due:
            # Later in this loop iteration, so that messages of several requests share a frame.
            self._exchange_due = True
            self._loop.call_soon(self._exchange)

    def _check(self) -> None:
        if self.lost:
            raise EngineGoneError(self.lost)

    def _exchange(self) -> None:
        self._exchange_due = False
        if self.lost:
            return
        try:
            messages = self._wire.exchange(0.0)
        except WireClosedError:
            self._lose("the engine's process has ended")
            return
        except WorkerFailedError as error:
            self._lose(str(error))
            return
        for message in messages:
            self._handle(message)
        self._await_room()

    def _await_room(self) -> None:
        """Send the rest of the posted messages when the worker reads again."""
        if not self.lost and self._wire.has_unsent != self._waits_to_write:
            self._waits_to_write = not self._waits_to_write
            if self._waits_to_write:
                self._loop.add_writer(self._wire.fileno(), self._exchange)
            else:
                self._loop.remove_writer(self._wire.fileno())

    def _handle(self, message: FromWorker) -> None:
        if isinstance(message, StepEvents):
            self._on_step_events(message)
            return
        if isinstance(message, CountersReply):
            for name, counts in message.latencies.items():
                self.latencies[name].add_counts(counts)
        elif isinstance(message, Steady):
            self.is_steady = True
        elif isinstance(message, Fatal):
            self._lose(message.message)
            return
        probe_id = message.probe_id if isinstance(message, CountersReply | CheckpointReply) else 0
        for future in self._awaited.pop((type(message), probe_id), ()):
            if not future.done():
                future.set_result(message)

    def _on_step_events(self, events: StepEvents) -> None:
        generations = self._generations
        for refused in events.rejected:
            generation = generations.pop(refused.rid, None)
            if generation is not None:
                generation.give_up(refusal=refused.message)
        for rid, logprobs in events.logprobs.items():
            generation = generations.get(rid)
            if generation is not None:
                generation.add_logprobs(logprobs)
        for rid, ids in events.emitted.items():
            generation = generations.get(rid)
            if generation is not None:
                generation.add(ids)
        for ended in (*events.finished, *events.aborted):
            generation = generations.pop(ended.rid, None)
            if generation is not None:
                generation.end(ended)

    def _lose(self, sentence: str) -> None:
        self.lost = sentence
        self._unwatch()
        for generation in self._generations.values():
            generation.give_up(failure=sentence)
        self._generations.clear()
        for futures in self._awaited.values():
            for future in futures:
                if not future.done():
                    future.set_exception(EngineGoneError(sentence))
        self._awaited.clear()

    def _unwatch(self) -> None:
        self._loop.remove_reader(self._wire.fileno())
        self._loop.remove_writer(self._wire.fileno())
