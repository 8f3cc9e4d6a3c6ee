from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable
from fractions import Fraction
from itertools import accumulate, islice, takewhile
from pathlib import Path

import pytest

from hybridbench.foundation.errors import ConfigError, UsageError
from hybridbench.records.messages import Submit
from hybridbench.workload.actions import WaitUntil
from hybridbench.workload.build import build_workload
from hybridbench.workload.profile import Profile
from hybridbench.workload.trace import TraceFile, TraceRow
from hybridbench.workload.trace_replay import (
    TraceOptions,
    TraceReplay,
    TraceTokens,
    describe_trace,
    parse_length_scale,
    parse_speedup,
    scaled,
)
from tests.unit.workload.profiles import base
from tests.unit.workload.server import Server
from tests.unit.workload.test_trace import mooncake

VOCAB = 4096
ROOT = Path(__file__).parents[3]
SYNTHETIC = ROOT / "profiles" / "traces" / "synthetic-mooncake.jsonl"
RECORDED = ROOT.parent / "shared" / "traces"


def replay(path: Path, scale: str = "1/32", speedup: float = 1.0, extra: str = "") -> TraceReplay:
    options = TraceOptions(path, parse_length_scale(scale), speedup)
    return TraceReplay(base(extra), options, VOCAB)


def described(path: Path, scale: Fraction = Fraction(1), speedup: float = 1.0) -> str:
    return describe_trace(TraceOptions(path, scale, speedup), base())


def row(time_ms: int, blocks: list[int], length: int, output: int = 64) -> dict[str, object]:
    return {
        "timestamp": time_ms,
        "input_length": length,
        "output_length": output,
        "hash_ids": blocks,
    }


def submits(workload: TraceReplay, now_s: float) -> list[Submit]:
    """Return all submissions that are due, answering each immediately."""
    found = []
    while isinstance(action := workload.next_action(now_s), Submit):
        found.append(action)
        workload.on_finished(action.rid, [1], "length", now_s)
    return found


def common(a: list[int], b: list[int]) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def test_equal_hash_ids_at_equal_positions_are_equal_tokens(tmp_path: Path) -> None:
    rows = [
        row(0, [0, 1, 2], 1536),
        row(0, [0, 1, 3], 1400),
        row(0, [1, 0, 2], 1536),
        row(0, [0, 1, 2], 1536),
    ]

    a, b, c, d = (s.input_ids for s in submits(replay(mooncake(tmp_path / "t", *rows)), 0.0))

    assert [len(prompt) for prompt in (a, b, c, d)] == [48, 43, 48, 48]
    assert common(a, b) == 32
    assert common(a, c) == 0
    assert a == d


@pytest.mark.parametrize("scale", ["1", "1/32", "1/30", "0.013", "1/700"])
def test_prompts_have_the_scaled_length_and_share_whole_prefixes_at_any_scale(scale: str) -> None:
    tokens = TraceTokens(1, VOCAB, parse_length_scale(scale))
    rows = [
        TraceRow(1, 0.0, 2600, 1, (0, 1, 2, 3, 4, 50)),
        TraceRow(2, 0.0, 2100, 1, (0, 1, 2, 3, 51)),
        TraceRow(3, 0.0, 1, 1, (52,)),
    ]

    first, second, last = (tokens.prompt(r, 0, 10_000) for r in rows)

    factor = Fraction(scale)
    assert len(first) == max(1, int(2600 * factor))
    assert len(second) == max(1, int(2100 * factor))
    assert len(last) == 1
    assert common(first, second) == min(len(second), int(4 * 512 * factor))


def test_arrivals_keep_their_times_divided_by_the_speedup(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "t", row(0, [0], 512), row(10_000, [1], 512), row(10_000, [2], 512))
    workload = replay(path, speedup=20.0)

    assert isinstance(workload.next_action(100.0), Submit)
    assert workload.next_action(100.0) == WaitUntil(100.5)
    assert workload.next_action(100.4) == WaitUntil(100.5)
    assert isinstance(workload.next_action(100.5), Submit)
    assert isinstance(workload.next_action(100.5), Submit)
    assert workload.in_flight == 3


def test_the_next_lap_has_the_same_lengths_and_other_tokens(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "t", row(0, [0, 1], 1024), row(1000, [0, 2], 800))
    workload = replay(path)

    first = submits(workload, 0.0) + submits(workload, 1.0)
    second = submits(workload, 2.0) + submits(workload, 3.0)

    assert [len(s.input_ids) for s in first] == [len(s.input_ids) for s in second] == [32, 25]
    assert common(first[0].input_ids, first[1].input_ids) == 16
    assert common(second[0].input_ids, second[1].input_ids) == 16
    assert common(first[0].input_ids, second[0].input_ids) < 3
    assert workload.counts()["laps"] == 2
    assert len({s.rid for s in first + second}) == 4


def test_the_prompt_of_a_request_is_known_until_it_ends(tmp_path: Path) -> None:
    workload = replay(mooncake(tmp_path / "t", row(0, [7, 8], 1024)))
    for lap in range(2):
        sent = workload.next_action(float(lap))
        assert isinstance(sent, Submit)

        known = workload.prompt_of(sent.rid)
        workload.on_finished(sent.rid, [1], "length", float(lap))

        assert known == sent.input_ids
        assert workload.prompt_of(sent.rid) is None


def test_lengths_beyond_the_context_are_clipped_and_counted(tmp_path: Path) -> None:
    rows = [row(0, list(range(200)), 200 * 512, 100), row(0, [0], 512, 90_000), row(0, [0], 512, 0)]
    workload = replay(mooncake(tmp_path / "t", *rows), extra="pools: {max_context_len: 500}\n")

    long, talkative, silent = submits(workload, 0.0)

    assert len(long.input_ids) == 500 - 3
    assert long.sampling.max_new_tokens == 3
    assert talkative.sampling.max_new_tokens == 250
    assert silent.sampling.max_new_tokens == 1
    assert workload.counts()["clipped_inputs"] == 1
    assert workload.counts()["clipped_outputs"] == 1


def test_a_machine_that_is_too_slow_replays_late_and_loses_nothing(tmp_path: Path) -> None:
    rows = [row(1000 * i, [i], 512) for i in range(6)]
    path = mooncake(tmp_path / "t", *rows)
    profile = base().with_overrides({"arrival.max_in_flight": "2"})
    workload = TraceReplay(profile, TraceOptions(path, Fraction(1, 32)), VOCAB)
    a, b = workload.next_action(0.0), workload.next_action(1.0)
    assert isinstance(a, Submit)
    assert isinstance(b, Submit)
    assert workload.next_action(9.0) == WaitUntil(None)

    workload.on_finished(a.rid, [1], "length", 10.0)
    third = workload.next_action(10.0)

    assert isinstance(third, Submit)
    # The third and the fourth request stay one second apart.
    workload.on_finished(b.rid, [1], "length", 10.0)
    assert workload.next_action(10.0) == WaitUntil(11.0)
    assert workload.counts()["held_back"] == 1
    assert workload.counts()["late_ms_max"] == 8000


def test_a_pause_stops_the_trace_and_owes_nothing(tmp_path: Path) -> None:
    workload = replay(mooncake(tmp_path / "t", row(0, [0], 512), row(5000, [1], 512)))
    assert len(submits(workload, 10.0)) == 1

    workload.pause(11.0)
    assert workload.next_action(500.0) == WaitUntil(None)
    workload.resume(1000.0)

    assert workload.next_action(1000.0) == WaitUntil(1004.0)


def test_reports_end_requests_and_unknown_ones_are_counted(tmp_path: Path) -> None:
    workload = replay(mooncake(tmp_path / "t", row(0, [0], 512), row(0, [1], 512), row(9, [1], 9)))
    a, b = workload.next_action(0.0), workload.next_action(0.0)
    assert isinstance(a, Submit)
    assert isinstance(b, Submit)

    workload.on_admitted(a.rid)
    workload.on_first_token(a.rid, 0.1)
    workload.on_finished(a.rid, [1], "length", 0.2)
    workload.on_rejected(b.rid, "too long")
    workload.on_finished(a.rid, [1], "length", 0.3)

    assert workload.in_flight == 0
    counts = workload.counts()
    assert (counts["ended"], counts["rejections"], counts["unknown_reports"]) == (2, 1, 1)


def test_the_same_seed_replays_the_same_tokens() -> None:
    def prompts(seed: int) -> list[list[int]]:
        options = TraceOptions(SYNTHETIC, Fraction(1, 32))
        workload = TraceReplay(base(), options, VOCAB, seed)
        workload.next_action(0.0)
        return [s.input_ids for s in submits(workload, 30.0)]

    assert prompts(1) == prompts(1)
    assert prompts(1) != prompts(2)


def test_a_csv_without_sharing_gives_prompts_without_sharing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.0,640,10\n2023-11-16 18:17:03.0,640,10\n"
    )
    workload = replay(path)

    a, b = submits(workload, 0.0)

    assert len(a.input_ids) == len(b.input_ids) == 20
    assert common(a.input_ids, b.input_ids) < 3
    assert workload.describe()["shares_prefixes"] is False


def test_hours_of_replay_keep_no_more_than_minutes() -> None:
    workload = replay(SYNTHETIC, speedup=200.0)
    server = Server(running=64, chunk=512, context=2048)
    server.drive(workload, steps=700)
    server.log.clear()
    gc.collect()
    objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()

    server.drive(workload, steps=3000)
    server.log.clear()

    assert workload.counts()["laps"] >= 4
    gc.collect()
    assert len(gc.get_objects()) - objects < 500
    assert sys.getallocatedblocks() - blocks < 64 * 2048


def shared_by_ids(rows: Iterable[TraceRow], length_scale: Fraction) -> tuple[int, int]:
    """Return the scaled prompt tokens in repeated prefixes, and all of them, using hash ids."""
    seen: set[int] = set()
    shared = total = 0
    for row in rows:
        length = scaled(row.input_length, length_scale)
        # Each key identifies a block and all blocks before it.
        keys = list(accumulate(row.hash_ids, lambda key, hash_id: hash((key, hash_id)), initial=0))
        known = sum(1 for _ in takewhile(seen.__contains__, keys[1:]))
        seen.update(keys[1:])
        shared += min(length, int(known * row.block_tokens * length_scale))
        total += length
    return shared, total


def token_share(prompts: list[list[int]]) -> tuple[int, int]:
    """Return the tokens in repeated prefixes, and all of them, by comparing tokens."""
    seen: set[int] = set()
    shared = total = 0
    for prompt in prompts:
        key, known, all_known = 0, 0, True
        for token in prompt:
            key = hash((key, token))
            all_known = all_known and key in seen
            known += all_known
            seen.add(key)
        shared += known
        total += len(prompt)
    return shared, total


def assert_sharing_survives_scaling(path: Path, rows: int) -> None:
    scale = Fraction(1, 32)
    # With a small vocabulary, a new block would often begin like one of a thousand others.
    tokens = TraceTokens(1, 2**40, scale)
    trace = TraceFile(path)

    by_ids = shared_by_ids(islice(trace.rows(), rows), scale)
    measured = token_share([tokens.prompt(r, 0, 10**6) for r in islice(trace.rows(), rows)])

    assert measured == by_ids
    assert by_ids[0] > 0.2 * by_ids[1]


def test_the_synthetic_trace_keeps_its_sharing_when_scaled() -> None:
    assert_sharing_survives_scaling(SYNTHETIC, 400)


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded traces are not beside the checkout")
def test_a_recorded_trace_keeps_its_sharing_when_scaled() -> None:
    assert_sharing_survives_scaling(RECORDED / "mooncake_conversation.jsonl", 1200)


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded traces are not beside the checkout")
def test_recorded_traces_are_read_to_their_end() -> None:
    conversation = TraceFile(RECORDED / "mooncake_conversation.jsonl")
    code = TraceFile(RECORDED / "azure_2023_code.csv")

    assert sum(1 for _ in conversation.rows()) == 12_031
    assert sum(1 for _ in code.rows()) == 8_819


def test_a_description_has_the_share_of_tokens_in_prefixes_of_earlier_rows(tmp_path: Path) -> None:
    rows = [
        row(0, [0, 1], 1024),
        row(100, [0, 2], 1024),  # 512 tokens again
        row(200, [9, 1], 1024),  # block 1, but after a different prefix
        row(1000, [0, 1, 3], 1200),  # 1,024 tokens again
    ]

    said = described(mooncake(tmp_path / "t", *rows), speedup=0.5)
    fresh = described(mooncake(tmp_path / "u", rows[0], rows[2]))

    assert said == (
        "4 requests in 2s, 2 requests/s, times read in ms, on average 1,068 tokens of prompt and "
        "64 of answer, 36.0% of prompt tokens in shared prefixes"
    )
    assert fresh.endswith(", no shared prefixes")


@pytest.mark.parametrize(("scale", "cut"), [("1", 4), ("1/2", 2)])
def test_a_description_counts_the_requests_that_the_replay_cuts(
    tmp_path: Path, scale: str, cut: int
) -> None:
    lengths = [(1984, 64), (1985, 64), (10, 1025), (4000, 2048), (5000, 10)]
    path = mooncake(tmp_path / "t", *(row(0, [*range(-(-n // 512))], n, m) for n, m in lengths))

    said = described(path, parse_length_scale(scale))

    assert f", {cut} requests are cut to 2,048 tokens, " in said


def test_a_description_says_that_later_turns_have_no_history(tmp_path: Path) -> None:
    first = {"session_id": "a", **row(0, [0], 512)}
    later = {"session_id": "a", "delay": 1000, "input_length": 9, "output_length": 1}

    said = described(mooncake(tmp_path / "t", first, later))

    assert said.endswith(", no shared prefixes, later turns without their history: 1")


def test_a_malformed_first_row_is_told_before_the_run_begins(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("{}\n")

    with pytest.raises(ConfigError, match=r"t:1: timestamp is missing"):
        build_workload(base(), VOCAB, TraceOptions(path))


BAD_ROWS = {
    "{bad row": "is not JSON",
    json.dumps(row(3, [1, 2], 2000)): "2 hash_ids for 2000 tokens",
    "[1]": "not an object",
}


@pytest.mark.parametrize("bad", BAD_ROWS, ids=range(len(BAD_ROWS)))
def test_a_bad_row_in_the_middle_ends_the_traffic_and_is_named(tmp_path: Path, bad: str) -> None:
    path = mooncake(tmp_path / "t.jsonl", row(0, [1], 512), row(10, [2], 512))
    path.write_text(path.read_text().rstrip("\n") + f"\n{bad}\n")
    workload = replay(path)

    sent = submits(workload, 0.0) + submits(workload, 100.0)

    assert len(sent) == 2
    assert workload.failure.startswith(f"{path}:3: {BAD_ROWS[bad]}")
    assert workload.next_action(200.0) == WaitUntil(None)
    assert workload.counts()["submitted"] == 2


def test_a_trace_that_is_gone_before_its_second_lap_ends_the_traffic(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "t.jsonl", row(0, [1], 512), row(10, [2], 512))
    workload = replay(path)
    path.unlink()

    sent = submits(workload, 0.0) + submits(workload, 100.0)

    assert len(sent) == 2
    assert workload.failure == f"{path}: the trace cannot be read: No such file or directory."


def test_the_manifest_says_how_the_trace_was_changed() -> None:
    profile: Profile = base()
    options = TraceOptions(SYNTHETIC, parse_length_scale("1/32"), 20.0)

    described = build_workload(profile, VOCAB, options).describe()

    assert described["length_scale"] == "1/32"
    assert described["speedup"] == 20.0
    assert described["format"] == "mooncake-jsonl"
    assert described["at_the_end"] == "begins again with fresh tokens"


@pytest.mark.parametrize("text", ["0", "2", "-1/32", "1/0", "x", "", "nan", "1/32/2"])
def test_a_length_scale_that_cannot_be_says_what_would_be_right(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_length_scale(text)

    assert str(caught.value) == (
        f"--length-scale {text} is not a factor; write a number of at most 1, such as 1/32 or 0.05."
    )


@pytest.mark.parametrize("text", ["0", "-1", "fast", "nan", "inf", ""])
def test_a_speedup_that_cannot_be_says_what_would_be_right(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a factor; write a number above 0, such as 20\.$"):
        parse_speedup(text)


def test_scales_and_speedups_are_read_as_people_write_them() -> None:
    assert parse_length_scale("1/32") == Fraction(1, 32)
    assert parse_length_scale(" 0.05 ") == Fraction(1, 20)
    assert parse_speedup("20") == parse_speedup("20x") == 20.0


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(1, 3)])
def test_small_blocks_are_shared_and_an_end_without_an_id_is_not(scale: Fraction) -> None:
    tokens = TraceTokens(3, 10**6, scale)
    rows = [TraceRow(line, 0.0, 40, 1, (7, 8), block_tokens=16) for line in (1, 2)]

    first, second = (tokens.prompt(row, 0, 1000) for row in rows)

    shared = int(32 * scale)
    assert len(first) == len(second) == int(40 * scale)
    assert first[:shared] == second[:shared]
    assert all(a != b for a, b in zip(first[shared:], second[shared:], strict=True))
    assert shared_by_ids(iter(rows), scale) == (shared, 2 * int(40 * scale))


def test_prompts_that_differ_in_a_block_scaled_to_no_token_differ() -> None:
    tokens = TraceTokens(1, 2**40, Fraction(1, 64))
    alike, other = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), (0, 1, 2, 3, 4, 9, 6, 7, 8, 9, 10, 11)
    rows = [TraceRow(line, 0.0, 192, 1, ids, 16) for line, ids in ((1, alike), (2, other))]

    first, second = (tokens.prompt(row, 0, 1000) for row in rows)

    # Each four blocks scale to one token; the sixth block belongs to the second token.
    assert len(first) == len(second) == 3
    assert common(first, second) == 1


def test_a_length_is_scaled_without_rounding_errors_to_at_least_one_token() -> None:
    assert scaled(100, Fraction("0.29")) == 29
    assert scaled(1, Fraction("0.29")) == 1
