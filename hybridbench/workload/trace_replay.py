"""A recorded trace as a workload: scaled lengths, faster arrivals, the same prefix sharing.

Hash ids become token blocks drawn from a seed, so equal ids at equal positions give equal tokens.
If the trace ends before the run, it restarts with fresh tokens, so that a second lap cannot hit
what the first one left in the cache.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Final

from hybridbench.foundation.errors import ConfigError, UsageError
from hybridbench.foundation.units import format_duration
from hybridbench.records.json_value import JsonValue
from hybridbench.records.messages import Submit
from hybridbench.workload.actions import Action, WaitUntil
from hybridbench.workload.draws import SamplingDraws
from hybridbench.workload.profile import Profile
from hybridbench.workload.rng_streams import stream, token_block
from hybridbench.workload.trace import TraceFile, TraceFormat, TraceRow
from hybridbench.workload.traffic_clock import TrafficClock


@dataclass(frozen=True)
class TraceOptions:
    """The values of ``--trace``, ``--length-scale`` and ``--speedup``."""

    path: Path
    length_scale: Fraction = Fraction(1)
    speedup: float = 1.0
    time_unit: str = ""


_SCALE: Final = re.compile(r"[0-9]{1,18}/[0-9]{1,18}|[0-9]{0,18}\.?[0-9]{1,18}")


def parse_length_scale(text: str) -> Fraction:
    """Parse ``1/32``, ``0.05`` or ``1``: the factor on all lengths of a trace.

    Raises:
        UsageError: for anything else, zero, or a factor above 1.
    """
    # No exponents: a Fraction of 1e-999999999 would be computed to its last digit.
    try:
        scale = Fraction(text.strip()) if _SCALE.fullmatch(text.strip()) else Fraction(0)
    except ZeroDivisionError:
        scale = Fraction(0)
    if not 0 < scale <= 1:
        raise UsageError(
            f"{text} is not a factor; write a number of at most 1, such as 1/32 or 0.05.",
            option="--length-scale",
        )
    return scale


def parse_speedup(text: str) -> float:
    """Parse ``20`` or ``20x``: how many times faster than recorded the requests arrive.

    Raises:
        UsageError: for anything that is not a positive number.
    """
    try:
        speedup = float(text.strip().removesuffix("x"))
    except ValueError:
        speedup = 0.0
    if not 0 < speedup < _MAX_SPEEDUP:
        raise UsageError(
            f"{text} is not a factor; write a number above 0, such as 20.", option="--speedup"
        )
    return speedup


def check_trace(options: TraceOptions | None) -> None:
    """Read the trace's first row.

    Raises:
        ConfigError: with file and line, if it cannot be read.
    """
    if options is not None:
        next(TraceFile(options.path, options.time_unit).rows())


def describe_trace(options: TraceOptions, profile: Profile) -> str:
    """Describe the trace's requests, duration, rate, lengths and reuse, as they will be replayed.

    Raises:
        ConfigError: with file and line, for what cannot be read.
    """
    file, context_len = TraceFile(options.path, options.time_unit), _context_len(profile)
    rows = later_turns = cut = prompts = answers = 0
    end_s, reuse = 0.0, _PrefixReuse()
    for row in file.rows():
        rows, later_turns, end_s = rows + 1, later_turns + row.is_later_turn, row.arrival_s
        prompt, answer = _lengths(row, options.length_scale)
        cut += _fitted(prompt, answer, context_len) != (prompt, answer)
        prompts, answers = prompts + prompt, answers + answer
        reuse.add(row)
    span_s = end_s / options.speedup
    rate = f", {rows / span_s:.3g} requests/s" if span_s else ""
    unit = "" if file.format is TraceFormat.AZURE else f", times read in {file.time_unit}"
    too_long = f", {cut:,} requests are cut to {context_len:,} tokens" if cut else ""
    turns = f", later turns without their history: {later_turns:,}" if later_turns else ""
    return (
        f"{rows:,} requests in {format_duration(span_s)}{rate}{unit}, on average "
        f"{prompts / rows:,.0f} tokens of prompt and {answers / rows:,.0f} of answer{too_long}, "
        f"{reuse.described()}{turns}"
    )


def note_on_length(options: TraceOptions, profile: Profile) -> str:
    """Return a note on how many of the first requests do not fit the context; empty if all do."""
    context_len = _context_len(profile)
    lengths: list[tuple[int, int]] = []
    # A row that cannot be read ends the replay at that row, and must not prevent its start.
    with suppress(ConfigError):
        rows = TraceFile(options.path, options.time_unit).rows()
        lengths.extend(_lengths(row, options.length_scale) for row in islice(rows, _LOOKED_AT))
    cut = sum(_fitted(*wanted, context_len=context_len) != wanted for wanted in lengths)
    if not cut:
        return ""
    return (
        f"of the first {len(lengths)} requests of the trace {cut} are cut to {context_len} tokens: "
        "set pools.max_context_len to the server's limit"
    )


def _lengths(row: TraceRow, scale: Fraction) -> tuple[int, int]:
    """Return the scaled lengths of a row's prompt and answer."""
    return scaled(row.input_length, scale), scaled(row.output_length, scale)


def scaled(length: int, scale: Fraction) -> int:
    """Scale a length exactly, rounded down, to at least one token."""
    return max(1, length * scale.numerator // scale.denominator)


def _context_len(profile: Profile) -> int:
    pools = profile.pools
    return min(pools.max_context_len, pools.kv_tokens - pools.page_size)


def _fitted(prompt: int, answer: int, context_len: int) -> tuple[int, int]:
    """Cut both lengths to a context: the answer to half of it, the prompt to the rest."""
    answer = min(answer, context_len // 2)
    return min(prompt, context_len - answer), answer


class _PrefixReuse:
    """The share of prompt tokens that would hit in a cache of unlimited size."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._rows = self._tokens = self._repeated = 0

    def add(self, row: TraceRow) -> None:
        """Count ``row``, unless the rows before it have reached the limit on stored prefixes."""
        if len(self._known) > _REUSE_BLOCKS_MAX:
            return
        name, repeated, is_known = 0, 0, True
        for blocks, hash_id in enumerate(row.hash_ids, start=1):
            # A block is shared only if all blocks before it are shared.
            name = hash((name, hash_id))
            is_known = is_known and name in self._known
            repeated = blocks * row.block_tokens if is_known else repeated
            self._known.add(name)
        self._rows += 1
        self._tokens += row.input_length
        self._repeated += min(repeated, row.input_length)

    def described(self) -> str:
        if not self._repeated:
            return "no shared prefixes"
        is_whole = len(self._known) <= _REUSE_BLOCKS_MAX
        first = "" if is_whole else f" of the first {self._rows:,} requests"
        return f"{self._repeated / self._tokens:.1%} of prompt tokens in shared prefixes{first}"


class TraceTokens:
    """Makes the prompts of scaled rows.  Nothing is stored: each block is drawn from its name."""

    def __init__(self, seed: int, vocab_size: int, length_scale: Fraction) -> None:
        """Tokens 0 to ``vocab_size - 1``; ``length_scale`` applies to every length."""
        self._seed = seed
        self._vocab_size = vocab_size
        self._scale = length_scale

    def prompt(self, row: TraceRow, lap: int, limit: int) -> list[int]:
        """Return the tokens of ``row`` in round ``lap`` through the trace, at most ``limit``."""
        length = min(scaled(row.input_length, self._scale), limit)
        if not row.hash_ids:
            return token_block(self._seed, self._vocab_size, length, "row", lap, row.line)
        tokens: list[int] = []
        name: list[int] = []
        for position, hash_id in enumerate(row.hash_ids):
            # A boundary depends only on the position, so that equal prefixes stay equal when a
            # scaled block is not a whole number of tokens.
            end = scaled((position + 1) * row.block_tokens, self._scale)
            size = end - len(tokens)
            # A block scaled to zero tokens is part of the next one's name; otherwise different
            # prompts could become equal.
            name.append(hash_id)
            if not size:
                continue
            tokens += token_block(self._seed, self._vocab_size, size, "block", lap, *name)
            name.clear()
            if len(tokens) >= length:
                break
        if len(tokens) < length:
            # The end of the prompt has no id, so it is not shared.
            rest = length - len(tokens)
            tokens += token_block(self._seed, self._vocab_size, rest, "row", lap, row.line)
        return tokens[:length]


class TraceReplay:
    """A ``Workload`` that replays a trace, open loop.

    While as many requests are unfinished as the profile's ``arrival.max_in_flight``, the next one
    is held back and delays all later ones: a machine that is too slow replays late (``held_back``,
    ``late_ms_max``) and loses nothing.  Memory holds requests in flight and ten minutes of rows.

    A row that cannot be read during the run ends the traffic (``failure``) without raising, so that
    the measurements up to then can be judged.
    """

    def __init__(
        self, profile: Profile, options: TraceOptions, vocab_size: int, seed: int | None = None
    ) -> None:
        """Open the trace; ``profile`` gives context length, sampling, seed and ``max_in_flight``.

        Raises:
            ConfigError: if the trace cannot be read, is of no known format, or its first row is
                malformed.
        """
        self._options = options
        self._file = TraceFile(options.path, options.time_unit)
        self._seed = profile.seed if seed is None else seed
        self._vocab_size = vocab_size
        self._max_in_flight = profile.arrival.max_in_flight
        self._context_len = _context_len(profile)
        self._tokens = TraceTokens(self._seed, vocab_size, options.length_scale)
        self._sampling = SamplingDraws(
            profile.sampling, vocab_size, stream(self._seed, "trace sampling")
        )
        self._clock = TrafficClock()
        # What each request in flight is made of: its row, its lap, and the length of its prompt.
        self._live: dict[str, tuple[TraceRow, int, int]] = {}
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._lap = 0
        self._lap_start_s = 0.0  # in recorded time, with all laps concatenated
        self._lag_s = 0.0  # traffic time by which held-back requests have delayed later ones
        self._failure = ""
        self.due_s = 0.0
        self._rows = self._file.rows()
        self._row = next(self._rows)

    @property
    def is_open_loop(self) -> bool:
        return True

    @property
    def in_flight(self) -> int:
        return len(self._live)

    @property
    def failure(self) -> str:
        return self._failure

    def next_action(self, now_s: float) -> Action:
        if self._clock.paused or self._failure:
            return WaitUntil(None)
        time_s = self._clock.at(now_s)
        due_s = self._due_s()
        if due_s > time_s:
            return WaitUntil(self._clock.wake_s(due_s, now_s))
        if len(self._live) >= self._max_in_flight:
            return WaitUntil(None)
        self.due_s = self._clock.moment_s(due_s)
        self._note_lateness(time_s - due_s)
        request = self._request(self._row)
        self._advance()
        return request

    def pause(self, now_s: float) -> None:
        self._clock.pause(now_s)

    def resume(self, now_s: float) -> None:
        self._clock.resume(now_s)

    def on_admitted(self, rid: str) -> None:
        self._known(rid)

    def on_first_token(self, rid: str, now_s: float) -> None:
        del now_s
        self._known(rid)

    def on_finished(self, rid: str, output_ids: Sequence[int], reason: str, now_s: float) -> None:
        del output_ids, reason, now_s
        if self._known(rid):
            self._end(rid)

    def prompt_of(self, rid: str) -> Sequence[int] | None:
        made_of = self._live.get(rid)
        return None if made_of is None else self._tokens.prompt(*made_of)

    def on_rejected(self, rid: str, reason: str) -> None:
        del reason
        if self._known(rid):
            self._counts["rejections"] += 1
            self._end(rid)

    @property
    def refusal(self) -> str:
        # A recorded request may be too long for this engine, so none counts as valid.
        return ""

    def counts(self) -> dict[str, int]:
        return {**self._counts, "laps": self._lap}

    def describe(self) -> dict[str, JsonValue]:
        return {
            "kind": "trace",
            "path": str(self._options.path),
            "format": self._file.format.value,
            "shares_prefixes": self._file.shares_prefixes,
            "length_scale": str(self._options.length_scale),
            "speedup": self._options.speedup,
            "at_the_end": "begins again with fresh tokens",
            "seed": self._seed,
            "vocab_size": self._vocab_size,
        }

    def _due_s(self) -> float:
        recorded_s = self._lap_start_s + self._row.arrival_s
        return recorded_s / self._options.speedup + self._lag_s

    def _note_lateness(self, late_s: float) -> None:
        # A poll is always a little late; only a held-back request delays all later ones.
        if late_s > _HELD_BACK_S:
            self._counts["held_back"] += 1
            self._lag_s += late_s
        self._counts["late_ms_max"] = max(self._counts["late_ms_max"], round(late_s * 1000))

    def _request(self, row: TraceRow) -> Submit:
        self._counts["submitted"] += 1
        rid = f"t{self._counts['submitted']}"
        wanted = _lengths(row, self._options.length_scale)
        length, output = _fitted(*wanted, self._context_len)
        self._counts["clipped_inputs"] += length < wanted[0]
        self._counts["clipped_outputs"] += output < wanted[1]
        self._live[rid] = row, self._lap, length
        prompt = self._tokens.prompt(row, self._lap, length)
        return Submit(rid, prompt, self._sampling.draw(output))

    def _advance(self) -> None:
        try:
            self._read_row()
        except ConfigError as error:
            self._failure = str(error)
        except OSError as error:
            self._failure = f"{self._file.path}: the trace cannot be read: {error.strerror}."

    def _read_row(self) -> None:
        row = next(self._rows, None)
        if row is None:
            # One second between the last row and the first of the next lap; any gap would do.
            self._lap_start_s += self._row.arrival_s + 1.0
            self._lap += 1
            self._rows = self._file.rows()
            row = next(self._rows)
        self._row = row

    def _known(self, rid: str) -> bool:
        if rid in self._live:
            return True
        self._counts["unknown_reports"] += 1
        return False

    def _end(self, rid: str) -> None:
        del self._live[rid]
        self._counts["ended"] += 1


_MAX_SPEEDUP: Final = 1e6
_LOOKED_AT: Final = 1000
# A few hundred MiB of block names.
_REUSE_BLOCKS_MAX: Final = 2_000_000
_HELD_BACK_S: Final = 0.25
_COUNTS: Final = (
    "submitted",
    "ended",
    "rejections",
    "clipped_inputs",
    "clipped_outputs",
    "held_back",
    "late_ms_max",
    "unknown_reports",
)
