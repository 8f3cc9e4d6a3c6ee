"""Compare our caches with those of a released sglang on the same turns, block by block in one run.

Both run every block, and the order alternates from block to block, so that a busy machine slows
both.  A ratio is sglang's time for a block divided by ours for the same block.

    python -m benchmarks against-sglang PYTHON
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cache import TimedCache
from benchmarks.cache_pattern import Block, CacheKind, CachePattern, block_from
from hybridbench.foundation.errors import UsageError
from hybridbench.targets.own_process import SAFE_PATH, with_environment

KINDS = ("match", "insert", "evict", "lock")
_PATIENCE_S = 120.0
_NAME = 38


@dataclass(frozen=True)
class Case:
    """The caches to compare: the separate or the unified tree for one kind of contents."""

    kind: CacheKind
    page_size: int
    unified: bool = False
    roomy_windows: bool = False
    """The window pool is as large as the full KV pool, so that no window is evicted alone."""

    def pattern(self, usual: CachePattern) -> CachePattern:
        """``usual`` with the pools of this case."""
        return replace(usual, swa_tokens=usual.kv_tokens) if self.roomy_windows else usual


CASES = (
    *(
        Case(kind, page_size, unified)
        for unified in (False, True)
        for kind in ("states", "full", "windows")
        for page_size in (1, 16)
    ),
    *(Case("windows", page_size, unified=True, roomy_windows=True) for page_size in (1, 16)),
)


class AbsentTreeError(Exception):
    """The sglang release lacks the tree of a case."""


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum over blocks."""

    median: float
    least: float
    most: float


@dataclass(frozen=True)
class AgainstRow:
    """One of our caches compared with the same cache of sglang.

    Attributes:
        cache, case, version: the caches compared; ``cache`` and ``version`` are sglang's.
        ours_us, theirs_us: median microseconds per call by kind, over all blocks.
        ours_us_per_turn, theirs_us_per_turn: time inside cache calls in the median turn, per block.
        ratio: ``theirs_us_per_turn`` over ``ours_us_per_turn``, block by block.
        ours_hit_rate, theirs_hit_rate: equal if both did the same work.
    """

    cache: str
    case: Case
    version: str
    ours_us: Mapping[str, float]
    theirs_us: Mapping[str, float]
    ours_us_per_turn: Spread
    theirs_us_per_turn: Spread
    ratio: Spread
    ours_hit_rate: float
    theirs_hit_rate: float


def bench_against(
    python: str,
    case: Case,
    turns: int = 8_000,
    blocks: int = 10,
    warm_up_turns: int = 2_000,
    pattern: CachePattern | None = None,
) -> AgainstRow:
    """Run ``blocks`` blocks of ``turns / blocks`` turns on both caches.

    Args:
        python: an interpreter that can import sglang.
        case: the caches to compare.

    Raises:
        UsageError: ``python`` cannot be run, or its sglang cannot be used.
        AbsentTreeError: its sglang lacks the tree.
    """
    chosen = case.pattern(CachePattern() if pattern is None else pattern)
    ours = TimedCache(chosen, case.page_size, case.kind, case.unified)
    with _other(python) as theirs:
        built = theirs.build(chosen, case)
        if "absent" in built:
            raise AbsentTreeError(f"sglang {built['version']} has no {built['absent']}")
        pairs: list[tuple[Block, Block]] = []
        ours.run(warm_up_turns)
        theirs.run(warm_up_turns)
        for index in range(blocks):
            if index % 2:
                second = theirs.run(turns // blocks)
                pairs.append((ours.run(turns // blocks), second))
            else:
                first = ours.run(turns // blocks)
                pairs.append((first, theirs.run(turns // blocks)))
    own, other = zip(*pairs, strict=True)
    return AgainstRow(
        cache=built["cache"],
        case=case,
        version=built["version"],
        ours_us=_by_kind(own),
        theirs_us=_by_kind(other),
        ours_us_per_turn=_spread([_turn_us(block) for block in own]),
        theirs_us_per_turn=_spread([_turn_us(block) for block in other]),
        ratio=_spread([_turn_us(b) / _turn_us(a) for a, b in pairs]),
        ours_hit_rate=_hit_rate(own),
        theirs_hit_rate=_hit_rate(other),
    )


class _OtherProcess:
    """The process that runs sglang; it serves one request at a time."""

    def __init__(self, process: subprocess.Popen[str], python: str) -> None:
        self._process = process
        self._python = python

    def build(self, pattern: CachePattern, case: Case) -> dict[str, str]:
        """Build a cache for ``pattern``; return its class, or the absent tree, and the version."""
        asked = asdict(case)
        # The pool sizes in ``pattern`` already include it.
        del asked["roomy_windows"]
        built = self._ask(pattern=asdict(pattern), case=asked)
        return {name: str(value) for name, value in built.items()}

    def run(self, turns: int) -> Block:
        """Run the next ``turns`` turns in that process."""
        return block_from(self._ask(turns=turns))

    def _ask(self, **question: object) -> dict[str, object]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            raise UsageError(
                f"{self._python}: its sglang process has ended; its last output is "
                "above. docs/explanation/benchmarks.md says what it must be able to import."
            )
        answer: dict[str, object] = json.loads(line)
        return answer


@contextmanager
def _other(python: str) -> Iterator[_OtherProcess]:
    settings = {
        # Only this repository; everything else must come from the other interpreter's environment.
        "PYTHONPATH": str(Path(__file__).parents[1]),
        **SAFE_PATH,
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = with_environment(settings, [python, "-m", "benchmarks.sglang_cache"])
    if shutil.which(python) is None:
        raise UsageError(f"{python}: there is no such program.")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        yield _OtherProcess(process, python)
    finally:
        # It exits when its stdin closes.
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _turn_us(block: Block) -> float:
    return statistics.median(block.turn_ns) / 1000


def _spread(values: list[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def _by_kind(blocks: tuple[Block, ...]) -> dict[str, float]:
    medians = {}
    for kind in KINDS:
        calls = [ns for block in blocks for ns in block.calls_ns.get(kind, [])]
        medians[kind] = statistics.median(calls) / 1000 if calls else 0.0
    return medians


def _hit_rate(blocks: tuple[Block, ...]) -> float:
    return sum(block.hit_tokens for block in blocks) / sum(block.key_tokens for block in blocks)


def main(
    python: Annotated[str, typer.Argument(help="An interpreter that can import sglang.")],
    turns: Annotated[int, typer.Option(min=100, help="Measured turns of each row.")] = 8000,
    blocks: Annotated[int, typer.Option(min=1, help="Number of blocks per cache.")] = 10,
) -> None:
    """Our prefix caches compared with those of a released sglang, on the same conversations."""
    typer.echo(
        f"microseconds inside cache calls, medians; {turns} turns in {blocks} blocks on each side, "
        "alternating; one thread each"
    )
    head = "".join(f"{kind:>8}" for kind in KINDS)
    typer.echo(f"{'cache, page size':{_NAME}} {'':14}{head}  a turn (least to most block)")
    try:
        for case in CASES:
            try:
                typer.echo("\n".join(_lines(bench_against(python, case, turns, blocks))))
            except AbsentTreeError as absent:
                typer.echo(f"{_what(case)}, {case.page_size}: skipped, {absent}")
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error


def _what(case: Case) -> str:
    return f"{'unified tree' if case.unified else 'tree'} of {case.kind}"


def _lines(row: AgainstRow) -> tuple[str, ...]:
    ours = "".join(f"{row.ours_us[kind]:8.1f}" for kind in KINDS)
    theirs = "".join(f"{row.theirs_us[kind]:8.1f}" for kind in KINDS)
    kept = f", {row.case.kind}" if row.case.unified else ""
    kept += ", roomy" * row.case.roomy_windows
    name = f"{row.cache}{kept}, {row.case.page_size}"
    return (
        f"{name:{_NAME}} {'ours':14}{ours}  {_range(row.ours_us_per_turn)}",
        f"{'':{_NAME}} {'sglang ' + row.version:14}{theirs}  {_range(row.theirs_us_per_turn)}",
        f"{'':{_NAME}} {'theirs / ours':14}{'':32}  {row.ratio.median:6.2f} "
        f"({row.ratio.least:.2f} to {row.ratio.most:.2f}); hit rate "
        f"{row.ours_hit_rate:.1%} and {row.theirs_hit_rate:.1%}",
    )


def _range(figure: Spread) -> str:
    return f"{figure.median:6.1f} ({figure.least:.1f} to {figure.most:.1f})"
