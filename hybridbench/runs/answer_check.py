"""Recompute finished answers of a soak, and decide which differences exceed rounding.

A reference engine in a separate process recomputes them.  During the run it gets a twentieth of a
core, including its start; the rest of the sample is computed after the worker has exited, for a
limited time.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from hybridbench.foundation.clock import Clock
from hybridbench.foundation.errors import WorkerFailedError
from hybridbench.records.answers import ROUTING_GAP_LEAST, tolerance_of
from hybridbench.records.events import AnswersCompared
from hybridbench.records.messages import (
    AnswerTotals,
    Fatal,
    FinishedAnswer,
    FromWorker,
    Recompute,
    Recomputed,
    ReferenceReady,
    Start,
)
from hybridbench.runs.answer_tally import FOR_WRONG, Sizes, Tally, heirs
from hybridbench.sampling.headroom import memory_headroom
from hybridbench.targets.target import WireTarget
from hybridbench.targets.wire import WireClosedError

# Share of a core during the run.
CORE_SHARE: Final = 0.05
# About twenty wrong answers are enough to show what they have in common, which is worth the time.
WRONG_LEAST_S: Final = 180.0
# Importing torch and building a small model takes 5 s of CPU; start when the share allows more.
_START_CPU_S: Final = 8.0
_START_PATIENCE_S: Final = 60.0
_TURN_S: Final = 0.2
# Share of memory that must be free, so that the reference's model does not exhaust it.
_ROOM_SHARE: Final = 0.125
# Faults hide in rarely taken paths, so every second answer compared has a rare trait: one that
# fewer than this share of the waiting answers have.
_RARE_SHARE: Final = 0.1
# Prompt tokens per step in the first run that repeats a suspect.
_OTHER_CHUNK: Final = 48


@dataclass
class _Suspect:
    """An answer beyond the tolerance, and the results of repeating it."""

    answer: FinishedAnswer
    first: Recomputed
    repeats: list[Recomputed] = field(default_factory=list)


class AnswerCheck:
    """Keeps a sample of one worker's answers, and lets the reference recompute them.

    Owns the reference's process, from its start to ``finish``.
    """

    def __init__(
        self,
        start: Start,
        sizes: Sizes,
        clock: Clock,
        launch: Callable[[Path], WireTarget],
        share: float = CORE_SHARE,
    ) -> None:
        """``start`` is the start message of the worker under soak; ``launch`` starts the process of
        the reference, which gets ``share`` of a core during the run.
        """
        self._start = msgspec.structs.replace(start, is_reference=True, ballast_objects=0)
        self._clock = clock
        self._launch = launch
        self._share = share
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._began_s = clock.monotonic_s()
        self._sample: dict[tuple[bool, int], FinishedAnswer] = {}
        self._finished: dict[str, int] = {}
        self._target: WireTarget | None = None
        self._ready = False
        self._given_up = ""
        self._tolerance = 0.0
        self._asked: FinishedAnswer | _Suspect | None = None
        self._next_id = 0
        self._cpu_s = 0.0
        self._turn = 0
        self._random = random.Random(0)
        # Answers not compared yet that computed tokens reused by wrong answers.
        self._makers: list[FinishedAnswer] = []
        self._tally = Tally(sizes)

    def take(self, message: FromWorker) -> None:
        """Take a message of the worker under soak."""
        if isinstance(message, FinishedAnswer):
            self._sample[message.reused, message.place] = message
        elif isinstance(message, AnswerTotals):
            self._finished = message.finished

    def pump(self) -> None:
        """Continue if the reference has not used up its share; never blocks."""
        elapsed_s = self._clock.monotonic_s() - self._began_s
        allowed_s = self._share * elapsed_s
        if self._given_up or not (self._sample or self._asked):
            return
        if self._target is None:
            if allowed_s >= _START_CPU_S:
                self._begin()
            return
        self._listen(0.0)
        if self._ready and self._asked is None and self._cpu_s < allowed_s:
            self._ask_next()

    def finish(self, limit_s: float, interrupted: Callable[[], bool]) -> AnswersCompared:
        """Compute the rest of the sample, for at most ``limit_s``, and end the reference.

        If an answer is wrong, the limit is at least ``WRONG_LEAST_S``; a limit of 0 computes
        nothing.
        """
        run_s, run_cpu_s = self._clock.monotonic_s() - self._began_s, self._cpu_s
        try:
            self._compute_rest(limit_s, interrupted)
        finally:
            if self._target is not None:
                self._target.kill()
            if self._folder is not None:
                self._folder.cleanup()
        return msgspec.structs.replace(
            self._tally.recorded(self._tolerance),
            left_out=self._left_out(),
            cpu_s=run_cpu_s,
            run_s=run_s,
        )

    @property
    def waiting(self) -> int:
        """Number of answers in the sample that are not compared yet."""
        return len(self._sample) + (self._asked is not None)

    def _compute_rest(self, limit_s: float, interrupted: Callable[[], bool]) -> None:
        began_s = self._clock.monotonic_s()
        if self._target is None and self._sample and limit_s and not interrupted():
            self._begin()
            began_s += self._await_ready(interrupted)
        while not self._given_up and self.waiting and not interrupted():
            goes_on = limit_s > 0 and self._tally.wrong
            most_s = max(limit_s, WRONG_LEAST_S) if goes_on else limit_s
            if self._clock.monotonic_s() - began_s >= most_s:
                return
            if self._ready and self._asked is None:
                self._ask_next()
            self._listen(_TURN_S)

    def _await_ready(self, interrupted: Callable[[], bool]) -> float:
        """Wait until the reference is ready, at most a minute; return the seconds waited."""
        began_s = self._clock.monotonic_s()
        while not (self._ready or self._given_up or interrupted()):
            if self._clock.monotonic_s() - began_s > _START_PATIENCE_S:
                self._give_up("the reference did not start in time")
            else:
                self._listen(_TURN_S)
        return self._clock.monotonic_s() - began_s

    def _left_out(self) -> dict[str, int]:
        tally = self._tally
        left_out = Counter(tally.left_out)
        # Older workers, which take part in comparisons, sample greedy requests only.
        comparable = self._finished.get("comparable", self._finished.get("greedy", 0))
        for name in ("filtered", "sampled", "payload"):
            left_out[name] += self._finished.get(name, 0)
        if self._given_up:
            left_out[self._given_up] += self.waiting
        else:
            left_out["time"] += self.waiting
        seen = tally.compared + sum(tally.left_out.values()) + self.waiting
        left_out["not-drawn"] += max(0, comparable - seen)
        return {name: count for name, count in left_out.items() if count}

    def _begin(self) -> None:
        room = memory_headroom()
        try:
            if room is not None and room.left_bytes < _ROOM_SHARE * room.limit_bytes:
                self._give_up("memory")
                return
            self._folder = tempfile.TemporaryDirectory(prefix="hybridbench-reference-")
            self._target = self._launch(Path(self._folder.name) / "stderr.log")
            self._target.post(self._start)
        except WorkerFailedError:
            self._give_up("reference-failed")

    def _listen(self, timeout_s: float) -> None:
        target = self._target
        if target is None:
            return
        try:
            messages = target.exchange(timeout_s)
        except (WireClosedError, WorkerFailedError):
            self._give_up("reference-failed")
            return
        for message in messages:
            match message:
                case ReferenceReady():
                    self._on_ready(message)
                case Recomputed():
                    self._cpu_s = message.cpu_s
                    self._on_recomputed(message)
                case Fatal():
                    self._give_up("reference-failed")

    def _give_up(self, reason: str) -> None:
        self._given_up = reason
        if self._target is not None:
            self._target.kill()

    def _on_ready(self, ready: ReferenceReady) -> None:
        self._cpu_s = ready.cpu_s
        tolerance = tolerance_of(ready.family, ready.layers, ready.hidden_size)
        if tolerance is None:
            self._give_up("not-measured")
            return
        self._tolerance, self._ready = tolerance, True
        sizes = self._tally.sizes
        self._tally.sizes = Sizes(sizes.page_size, sizes.track_interval, ready.sliding_window)

    def _ask_next(self) -> None:
        """Send the next answer, alternating two rules.

        Odd turns prefer an answer that a wrong one reuses, then one with a rare trait.  Otherwise
        the answer is random, from each half in turn while both have some.  It is random because a
        short run's sample is in order of completion: time may not suffice for all of it, and late
        requests must be covered as well.
        """
        if not self._sample:
            return
        self._turn += 1
        answer = (self._next_maker() or self._next_rare()) if self._turn % 2 else None
        if answer is None:
            half = bool(self._turn // 2 % 2)
            keys = [key for key in self._sample if key[0] is half] or list(self._sample)
            answer = self._sample[self._random.choice(keys)]
        self._asked = self._sample.pop((answer.reused, answer.place))
        self._ask(self._asked)

    def _next_maker(self) -> FinishedAnswer | None:
        while self._makers:
            maker = self._makers.pop()
            if self._sample.get((maker.reused, maker.place)) is maker:
                # An answer chosen because of a wrong one is excluded from the test of traits.
                self._tally.chosen[maker.rid] = FOR_WRONG
                return maker
        return None

    def _next_rare(self) -> FinishedAnswer | None:
        """Return an answer with the rare trait compared least often; None if no trait is rare."""
        having: dict[str, list[FinishedAnswer]] = {}
        for answer in self._sample.values():
            for trait in answer.traits:
                having.setdefault(trait, []).append(answer)
        most = _RARE_SHARE * len(self._sample)
        rare = [trait for trait, answers in having.items() if len(answers) < most]
        if not rare:
            return None
        trait = min(rare, key=self._tally.with_trait.__getitem__)
        answer = self._random.choice(having[trait])
        self._tally.chosen[answer.rid] = trait
        return answer

    def _ask(self, answer: FinishedAnswer, *, careful: bool = False, chunk: int = 0) -> None:
        assert self._target is not None, "no reference was started"
        self._next_id += 1
        self._target.post(
            Recompute(
                self._next_id,
                answer.prompt,
                answer.output,
                careful,
                chunk,
                answer.temperature,
                answer.seed,
            )
        )

    def _on_recomputed(self, found: Recomputed) -> None:
        asked, self._asked = self._asked, None
        if asked is None or found.probe_id != self._next_id:
            return
        suspect = asked if isinstance(asked, _Suspect) else None
        answer = suspect.answer if suspect else asked
        assert isinstance(answer, FinishedAnswer)
        if found.error:
            self._tally.left_out["reference-failed"] += 1
        elif suspect is not None:
            self._on_repeated(suspect, found)
        elif found.distance > self._tolerance:
            # The first repeat computes the prompt in other chunks, and so rounds differently.
            self._asked = _Suspect(answer, found)
            self._ask(answer, careful=True, chunk=_OTHER_CHUNK)
        else:
            self._tally.add_right(answer, found)

    def _on_repeated(self, suspect: _Suspect, found: Recomputed) -> None:
        first = suspect.first
        if found.routing_gap is not None and found.routing_gap < ROUTING_GAP_LEAST:
            self._tally.left_out["near-tie"] += 1
        elif found.wrong_place != first.wrong_place or found.distance <= self._tolerance:
            self._tally.left_out["not-repeated"] += 1
        elif not suspect.repeats:
            suspect.repeats.append(found)
            self._asked = suspect
            self._ask(suspect.answer, careful=True)
        else:
            self._tally.add_wrong(suspect.answer, first)
            wrong = [suspect.answer]
            self._makers += [a for a in self._sample.values() if any(heirs(wrong, [a]))]
