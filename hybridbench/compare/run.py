"""Run live versions in rounds of one block each, until decided or out of time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from hybridbench.analysis.comparison.compare import look
from hybridbench.analysis.comparison.metrics import is_open_loop
from hybridbench.analysis.comparison.mismatches import (
    comparable_facts,
    mismatches,
    refusal,
    uncovered,
)
from hybridbench.analysis.comparison.records import Block
from hybridbench.analysis.comparison.words import look_text
from hybridbench.compare.alike import cpu_for_workers, scattered_pages_held
from hybridbench.compare.launching import StartRefusedError
from hybridbench.compare.live_side import BlockDone, CompareContext, LiveSide
from hybridbench.compare.plan import ComparePlan, order_of
from hybridbench.compare.sides import Side
from hybridbench.compare.store import ComparisonWriter, opened_comparison
from hybridbench.foundation.clock import Clock, SystemClock
from hybridbench.foundation.errors import (
    ErrorCode,
    ExitCode,
    SameEngineError,
    UsageError,
    full_stop,
    nearest,
)
from hybridbench.foundation.units import format_duration
from hybridbench.records.comparison import ComparedVersion, ComparisonManifest
from hybridbench.records.manifest import Manifest
from hybridbench.records.messages import Ready
from hybridbench.runs.interrupts import Interrupts, SecondSignalError, handled_interrupts
from hybridbench.runs.live import make_view
from hybridbench.runs.loop import WorkerLostError
from hybridbench.runs.status import View

T = TypeVar("T")
# Names of the versions' run directories.
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_CALIBRATE_SHARE = 0.5  # of a block
_CALIBRATE_LEAST_S = 3.0
# With fewer requests, start-up and drain dominate a block.
_FEWEST_REQUESTS = 32
_SEED_STRIDE = 7919


@dataclass(frozen=True)
class CompareOutcome:
    """Directory of the result; ``exit_hint`` is 130 or 143 if the comparison was interrupted."""

    directory: Path
    exit_hint: ExitCode | None = None


class ComparedSide(Protocol):
    """Interface of LiveSide.  WorkerLostError from any method ends the version."""

    side: Side
    label: str
    lost: str | None

    @property
    def manifest(self) -> Manifest: ...
    @property
    def ready(self) -> Ready: ...
    def open(self) -> None: ...
    def launch(self) -> None: ...
    def start(self) -> None: ...
    def warm_up(self, seed: int, calibrate_s: float) -> float: ...
    def begin_block(self, seed: int, requests: int, tag: str, phase: str) -> None: ...
    def go_on(self, slice_s: float) -> bool: ...
    def end_block(self) -> BlockDone: ...
    def retire(self) -> None: ...
    def finish(self) -> None: ...
    def record_loss(self, lost: WorkerLostError) -> None: ...
    def record_failure(self, error: Exception) -> None: ...
    def close(self) -> None: ...


def run_comparison(
    plan: ComparePlan,
    clock: Clock | None = None,
    make_side: Callable[[Side, str, CompareContext], ComparedSide] = LiveSide,
    alike: Callable[[], AbstractContextManager[None]] = scattered_pages_held,
) -> CompareOutcome:
    """Run the comparison of ``plan``; its directory is readable at any time.

    A worker that dies or hangs is its version's outcome, recorded in that version's run.  Workers
    are built within ``alike``, which gives them equally fragmented memory.

    Raises:
        UsageError: the versions cannot be compared; the differing keys are named.
        ConfigError: a version cannot be built as requested.
        WorkerFailedError: a worker cannot be started, or speaks another wire protocol.
        RunDirectoryError: the store cannot be written.
    """
    clock = clock if clock is not None else SystemClock()
    view = make_view(plan.ui)
    try:
        with (
            opened_comparison(plan.store, clock, plan.terms, _manifest(plan)) as writer,
            handled_interrupts() as interrupts,
        ):
            context = CompareContext(plan, writer.directory, clock, interrupts, cpu_for_workers())
            writer.store(replace(writer.manifest, worker_cpu=context.cpu))
            sides = [
                make_side(side, LETTERS[index], context) for index, side in enumerate(plan.sides)
            ]
            return _Comparison(context, writer, view, alike).run(sides)
    finally:
        view.close()


def refuse_mismatches(versions: Sequence[tuple[str, str, Manifest]], allowed: Set[str]) -> None:
    """Check that the first of ``versions`` (name, kind, manifest) is comparable with all others.

    Raises:
        UsageError: they are not; names the keys that differ and their values.  Or no version has
            a key in ``allowed``.
    """
    known = {key: None for *_, manifest in versions for key in comparable_facts(manifest)}
    for misspelt in uncovered(allowed, known):
        hint = nearest(misspelt, known, "without it, those that differ are named")
        raise UsageError(
            full_stop(f"{misspelt}: the versions have no such key; {hint}"),
            code=ErrorCode.UNKNOWN_NAME,
            option="--allow-mismatch",
        )
    base_name, base_kind, base = versions[0]
    for name, kind, manifest in versions[1:]:
        found = mismatches(base, manifest, (base_kind, kind), allowed)
        if found:
            raise UsageError(
                f"{base_name} and {name} cannot be compared, they differ in {refusal(found)}; "
                "make them equal, or give --allow-mismatch KEY for each that may differ.",
                code=ErrorCode.MISMATCH,
            )


class _Comparison:
    """Owns the sides from their first start to the final manifest."""

    def __init__(
        self,
        context: CompareContext,
        writer: ComparisonWriter,
        view: View,
        alike: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._context = context
        self._plan = context.plan
        self._interrupts: Interrupts = context.interrupts
        self._writer = writer
        self._view = view
        self._alike = alike
        self._start_s = context.clock.monotonic_s()
        self._blocks: list[Block] = []
        self._rounds = 0

    def run(self, sides: Sequence[ComparedSide]) -> CompareOutcome:
        with ExitStack() as held:
            try:
                ended = self._compare(sides, held)
            except (SecondSignalError, StartRefusedError):
                ended = "interrupted"
            except Exception as error:
                if not self._blocks:
                    raise
                # Keep and report the blocks measured so far.
                self._view.note(f"the comparison failed: {type(error).__name__}: {error}")
                for side in sides:
                    side.record_failure(error)
                ended = "failed"
            last_words = replace(
                self._writer.manifest,
                ended=ended,
                exit_code=self._interrupts.exit_code,
                rounds=self._rounds,
                ended_wall_s=self._context.clock.wall_s(),
                versions=_versions(sides),
            )
            self._writer.store(last_words)
        return CompareOutcome(self._context.directory, self._interrupts.exit_code)

    def _compare(self, sides: Sequence[ComparedSide], held: ExitStack) -> str:
        for side in sides:
            self._view.note(f"building {side.side.name} as {side.label}")
            side.open()
            held.callback(side.close)
        with self._alike():
            for side in sides:
                side.launch()
            for side in sides:
                side.start()
                self._view.note(f"{side.label}: {_identity(side)}")
        refuse_mismatches(
            [(side.side.name, side.side.kind, side.manifest) for side in sides],
            self._plan.allowed,
        )
        if not self._plan.same_engine:
            _refuse_same_engine(sides)
        self._writer.store(replace(self._writer.manifest, versions=_versions(sides)))
        requests = self._warm_up(sides)
        if requests is None:
            return "lost" if any(side.lost for side in sides) else "interrupted"
        ended = self._rounds_of(sides, requests)
        for side in sides:
            if side.lost is None:
                self._asked(side, side.finish)
        return ended

    def _warm_up(self, sides: Sequence[ComparedSide]) -> int | None:
        """Warm up every side with a block that does not count; return the requests per block."""
        plan = self._plan
        requests = 0
        for index, side in enumerate(sides):
            self._view.note(f"warming up {side.label}")
            # All calibrate for the same time, but only the first side's rate is used.
            calibrate_s = max(_CALIBRATE_LEAST_S, _CALIBRATE_SHARE * plan.block_s)
            rates = self._asked(side, partial(side.warm_up, plan.seed, calibrate_s))
            if not rates or self._interrupts.first is not None:
                return None
            if index == 0:
                requests = max(_FEWEST_REQUESTS, round(rates[0] * plan.block_s))
        self._writer.store(replace(self._writer.manifest, block_requests=requests))
        took = f"about {format_duration(plan.block_s)} of {sides[0].label}"
        self._view.note(f"{requests} requests per block, {took}")
        for side in sides:
            first = self._served([side], plan.seed + _SEED_STRIDE, requests, ("0.", "warmup"))
            if first is None or self._interrupts.first is not None:
                return None
        return requests

    def _rounds_of(self, sides: Sequence[ComparedSide], requests: int) -> str:
        plan, clock = self._plan, self._context.clock
        began_s = clock.monotonic_s()
        longest_s = 0.0
        while self._rounds < plan.terms.looks[-1]:
            round_s = clock.monotonic_s()
            if self._rounds and round_s - began_s + longest_s > plan.max_time_s:
                return "max-time"
            if not self._round(sides, requests):
                return "lost"
            longest_s = max(longest_s, clock.monotonic_s() - round_s)
            self._rounds += 1
            self._writer.store(replace(self._writer.manifest, rounds=self._rounds))
            if self._interrupts.first is not None:
                return "interrupted"
            if self._answered(sides):
                return "decided"
        return "rounds"

    def _round(self, sides: Sequence[ComparedSide], requests: int) -> bool:
        """Run one block of each side; return False if a version, and so the round, was lost."""
        seed = self._plan.seed + _SEED_STRIDE * (self._rounds + 2)
        order = order_of(self._rounds, len(sides))
        # Either all together in slices, or one after another.
        together = [order] if self._slice_s() < math.inf else [(index,) for index in order]
        tag = f"{self._rounds + 1}."
        if self._is_renewal_due() and not self._renewed(self._in_order_of_starts(sides)):
            return False
        for indices in together:
            group = [sides[index] for index in indices]
            served = self._served(group, seed, requests, (tag, "steady"))
            if served is None:
                return False
            for index, done in zip(indices, served, strict=True):
                started_s = done.start_s - self._start_s
                block = Block(index, self._rounds, order.index(index), started_s, done.values)
                self._blocks.append(block)
                self._writer.block(block)
        self._view.note(self._round_line(sides))
        return True

    def _served(
        self, group: Sequence[ComparedSide], seed: int, requests: int, name: tuple[str, str]
    ) -> list[BlockDone] | None:
        """Serve a block of each in ``group``, slice by slice; None if a version was lost.

        ``name`` is the block's tag and phase.
        """
        for side in group:
            if not self._asked(side, partial(side.begin_block, seed, requests, *name)):
                return None
        slice_s = self._slice_s() if len(group) > 1 else math.inf
        left = list(group)
        while left:
            for side in tuple(left):
                over = self._asked(side, partial(side.go_on, slice_s))
                if not over:
                    return None
                if over[0]:
                    left.remove(side)
        served: list[BlockDone] = []
        for side in group:
            done = self._asked(side, side.end_block)
            if not done:
                return None
            served += done
        return served

    def _slice_s(self) -> float:
        """Duration of a turn; infinite for open loops, whose arrivals would not pause."""
        slice_s = self._plan.slice_s
        return slice_s if slice_s > 0 and self._plan.is_closed_loop else math.inf

    def _is_renewal_due(self) -> bool:
        """Whether to start new processes of all versions before this round."""
        every = self._plan.renew_every
        # The first processes have served an extra block, which does not count.  That is acceptable
        # for several rounds, but not if every round must begin the same way.
        return every > 0 and self._rounds % every == 0 and (self._rounds > 0 or every == 1)

    def _in_order_of_starts(self, sides: Sequence[ComparedSide]) -> list[ComparedSide]:
        """Alternate the order of starts as well: the first process has other conditions."""
        swapped = bool(self._rounds // self._plan.renew_every % 2)
        return list(reversed(sides)) if swapped else list(sides)

    def _renewed(self, sides: Sequence[ComparedSide]) -> bool:
        """Start and warm up new processes for the next round; return False if one was lost.

        All old processes end before any is built, and all are built at the same time, as described
        in ``Launch``.
        """
        self._each(sides, lambda side: side.retire())
        with self._alike():
            self._each(sides, lambda side: side.launch())
            self._each(sides, lambda side: side.start())
        if any(side.lost is not None for side in sides):
            return False
        return all(self._asked(side, partial(side.warm_up, self._plan.seed, 0.0)) for side in sides)

    def _each(self, sides: Sequence[ComparedSide], step: Callable[[ComparedSide], None]) -> None:
        for side in sides:
            if side.lost is None:
                self._asked(side, partial(step, side))

    def _answered(self, sides: Sequence[ComparedSide]) -> bool:
        if self._rounds not in self._plan.terms.looks:
            return False
        seen = look(
            self._blocks,
            self._plan.terms,
            versions=len(sides),
            looks=self._plan.terms.looks,
            open_loop=is_open_loop([side.manifest for side in sides]),
        )
        self._view.note(f"after {self._rounds} rounds: {look_text(seen)}")
        return seen.decided

    def _round_line(self, sides: Sequence[ComparedSide]) -> str:
        of_round = {b.version: b.values for b in self._blocks if b.round == self._rounds}
        speeds = [
            f"{side.label} {of_round[index].get('throughput_tokens_per_s', 0.0):,.0f} served tok/s"
            for index, side in enumerate(sides)
        ]
        most = self._plan.terms.looks[-1]
        return f"round {self._rounds + 1} of at most {most}: {', '.join(speeds)}"

    def _asked(self, side: ComparedSide, step: Callable[[], T]) -> list[T]:
        """Return a list with the result of ``step``; empty if it lost the worker, now recorded."""
        try:
            return [step()]
        except WorkerLostError as lost:
            self._view.note(f"{side.label}: {lost.detail}")
            side.record_loss(lost)
            return []


def _manifest(plan: ComparePlan) -> ComparisonManifest:
    return ComparisonManifest(
        command=plan.command,
        settings=plan.settings_digest(),
        interleaved=True,
        order="ABBA",
        model=plan.model,
        profile=plan.profile.name,
        seed=plan.seed,
        block_s=plan.block_s,
        slice_s=plan.slice_s,
        max_time_s=plan.max_time_s,
        renew_every=plan.renew_every,
        thresholds=plan.thresholds,
        allowed_mismatches=tuple(sorted(plan.allowed)),
    )


def _versions(sides: Sequence[ComparedSide]) -> tuple[ComparedVersion, ...]:
    return tuple(
        side.side.compared(side.label, side.manifest.engine_hash, side.lost) for side in sides
    )


def _refuse_same_engine(sides: Sequence[ComparedSide]) -> None:
    """Refuse differently named versions with the same engine files: the result would be SAME.

    Equal names are accepted: they show the difference between two runs of one engine.

    Raises:
        SameEngineError: they are the same engine.
    """
    alike = {
        (side.ready.engine_files_sha256, side.side.defects, side.side.program.python)
        for side in sides
    }
    if len(alike) > 1 or len({side.side.name for side in sides}) == 1:
        return
    names = " and ".join(side.side.name for side in sides)
    raise SameEngineError(
        f"{names} run the same engine files (engine {sides[0].ready.engine_files_sha256[:12]}): "
        "nothing differs, so nothing was compared. Add --same-engine to compare them anyway."
    )


def _identity(side: ComparedSide) -> str:
    """Return one line about the engine that actually runs."""
    ready = side.ready
    parts = [f"engine {ready.engine_files_sha256[:12]} ({ready.engine_files} files)"]
    origin = side.side.origin
    if origin.commit is not None:
        parts.append(f"commit {origin.commit[:10]} {origin.subject or ''}".rstrip())
    if origin.engine_from is not None:
        parts.append(f"Python {origin.interpreter}, engine {origin.engine_from}")
    if side.side.defects:
        parts.append(f"with {', '.join(side.side.defects)}")
    return "; ".join(parts)
