"""The side-by-side benchmark, with a stand-in for the interpreter that has sglang."""

from __future__ import annotations

import stat
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import against_sglang
from benchmarks.against_sglang import KINDS, AgainstRow, Case, bench_against
from benchmarks.cache import TimedCache
from benchmarks.cache_pattern import Block, Conversations, block_from
from hybridbench.foundation.errors import UsageError
from tests.unit.benchmarks.test_cache import SMALL

# Answers like the sglang process, but from our own cache and with tenfold times.
STAND_IN = """\
#!{python}
import json, sys
from dataclasses import asdict
assert sys.argv[1:] == ["-m", "benchmarks.sglang_cache"], sys.argv
for line in sys.stdin:
    asked = json.loads(line)
    if "pattern" in asked:
        if not asked["case"]["unified"] and asked["case"]["kind"] == "states":
            print(json.dumps({{"absent": "MambaRadixCache", "version": "1.2.3"}}), flush=True)
            continue
        # Not earlier: these imports load PyTorch.
        from benchmarks.cache import TimedCache
        from benchmarks.cache_pattern import CachePattern
        cache = TimedCache(CachePattern(**asked["pattern"]), **asked["case"])
        print(json.dumps({{"cache": type(cache.cache).__name__, "version": "1.2.3"}}), flush=True)
        continue
    block = asdict(cache.run(asked["turns"]))
    block["turn_ns"] = [10 * ns for ns in block["turn_ns"]]
    block["calls_ns"] = {{k: [10 * ns for ns in v] for k, v in block["calls_ns"].items()}}
    print(json.dumps(block), flush=True)
"""


def _program(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(text.format(python=sys.executable), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "cache"),
    [
        (Case("states", 1, unified=True), "UnifiedRadixCache"),
        (Case("full", 16), "RadixCache"),
        (Case("windows", 16), "SWARadixCache"),
        (Case("windows", 1, unified=True), "UnifiedRadixCache"),
    ],
    ids=str,
)
def test_both_sides_see_the_same_turns_and_the_ratio_is_theirs_over_ours(
    tmp_path: Path, case: Case, cache: str
) -> None:
    python = _program(tmp_path, STAND_IN)

    row = bench_against(python, case, turns=200, blocks=4, warm_up_turns=40, pattern=SMALL)

    assert (row.cache, row.case, row.version) == (cache, case, "1.2.3")
    assert_fair(row)


def assert_fair(row: AgainstRow) -> None:
    """Check that both sides had the same hits, and that theirs takes ten times as long."""
    assert row.ours_hit_rate == row.theirs_hit_rate > 0.2
    assert set(row.ours_us) == set(row.theirs_us) == set(KINDS)
    assert row.ratio.least <= row.ratio.median <= row.ratio.most
    # Ten by construction, but other work on the machine changes it.
    assert 4 < row.ratio.median < 25


@pytest.mark.slow
def test_a_tree_that_the_release_lacks_is_named_and_the_others_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = _program(tmp_path, STAND_IN)
    there = Case("states", 1, unified=True)
    monkeypatch.setattr(against_sglang, "CASES", (Case("states", 16), there))
    quick = partial(bench_against, warm_up_turns=40, pattern=SMALL)
    rows: list[AgainstRow] = []

    def bench(*given: Any) -> AgainstRow:
        rows.append(quick(*given))
        return rows[-1]

    monkeypatch.setattr(against_sglang, "bench_against", bench)

    against_sglang.main(python, turns=200, blocks=4)

    said = capsys.readouterr().out.splitlines()
    assert said[2] == "tree of states, 16: skipped, sglang 1.2.3 has no MambaRadixCache"
    assert said[3].startswith("UnifiedRadixCache, states, 1 ")
    assert [row.case for row in rows] == [there]
    assert_fair(rows[0])


def test_a_process_that_falls_is_one_sentence(tmp_path: Path) -> None:
    python = _program(tmp_path, "#!{python}\nraise SystemExit('no sglang here')\n")

    with pytest.raises(UsageError, match="its sglang process has ended"):
        bench_against(python, Case("full", 1), turns=10, blocks=1, warm_up_turns=0, pattern=SMALL)


def test_a_program_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"./none: there is no such program"):
        bench_against("./none", Case("full", 1))


def test_a_block_survives_the_wire_between_the_two() -> None:
    block = TimedCache(SMALL, 1, "states").run(20)

    again = block_from({name: getattr(block, name) for name in Block.__dataclass_fields__})

    assert again == block
    assert len(again.turn_ns) == 20
    # Calls are timed one by one; a turn takes the sum of its calls.
    assert sum(again.turn_ns) == again.in_cache_ns < again.wall_ns


def test_keys_are_the_same_for_everybody_and_grow_turn_by_turn() -> None:
    first, second = Conversations(SMALL), Conversations(SMALL)

    keys = [first.next_key() for _ in range(30)]

    assert keys == [second.next_key() for _ in range(30)]
    assert {len(key) % SMALL.turn_tokens for key in keys} == {0}
