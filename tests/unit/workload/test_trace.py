from __future__ import annotations

import gzip
import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from hybridbench.foundation.errors import ConfigError
from hybridbench.workload.trace import TraceFile, TraceFormat, TraceRow

MOONCAKE = [
    {"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 1500, "input_length": 512, "output_length": 0, "hash_ids": [0]},
]
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.4799600,3180,8"
)


def mooncake(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_mooncake_rows_are_read_with_times_from_the_first(tmp_path: Path) -> None:
    trace = TraceFile(mooncake(tmp_path / "t.jsonl", *MOONCAKE))

    assert trace.format is TraceFormat.MOONCAKE
    assert list(trace.rows()) == [
        TraceRow(1, 0.0, 600, 5, (0, 1)),
        TraceRow(2, 0.5, 512, 0, (0,)),
    ]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_azure_rows_are_read_without_prefix_structure(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes((mark + AZURE).encode())

    trace = TraceFile(path)

    assert trace.format is TraceFormat.AZURE
    assert list(trace.rows()) == [
        TraceRow(2, 0.0, 4808, 10, ()),
        TraceRow(3, pytest.approx(0.5), 3180, 8, ()),  # type: ignore[arg-type]
    ]


BAILIAN = {
    "chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40,
    "output_length": 132, "type": "text", "turn": 1, "hash_ids": [7, 8, 9],
}  # fmt: skip


@pytest.mark.parametrize("ids", [[7, 8, 9], [7, 8]])
def test_bailian_rows_have_seconds_and_blocks_of_16_tokens(tmp_path: Path, ids: list[int]) -> None:
    later = {**BAILIAN, "chat_id": 160, "parent_chat_id": 159, "timestamp": 62.614, "turn": 2}
    rows = [{**row, "hash_ids": ids} for row in (BAILIAN, later)]

    trace = TraceFile(mooncake(tmp_path / "t.jsonl", *rows))

    assert trace.format is TraceFormat.BAILIAN
    assert trace.shares_prefixes
    assert list(trace.rows()) == [
        TraceRow(1, 0.0, 40, 132, tuple(ids), 16),
        TraceRow(2, pytest.approx(1.5), 40, 132, tuple(ids), 16),  # type: ignore[arg-type]
    ]


def test_a_chat_id_alone_does_not_make_a_bailian_trace(tmp_path: Path) -> None:
    rows = [{"chat_id": "a", **row} for row in MOONCAKE]

    trace = TraceFile(mooncake(tmp_path / "t", *rows))

    assert trace.format is TraceFormat.MOONCAKE
    assert [row.arrival_s for row in trace.rows()] == [0.0, 0.5]


def test_a_bailian_row_with_too_few_ids_is_refused(tmp_path: Path) -> None:
    trace = TraceFile(mooncake(tmp_path / "t.jsonl", {**BAILIAN, "hash_ids": [7]}))

    with pytest.raises(ConfigError, match="1 hash_ids for 40 tokens; one per 16 makes 3"):
        list(trace.rows())


def test_burstgpt_rows_are_read_and_requests_that_failed_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n5,1,2.5,ChatGPT,472,18,490,Conversation log\n"
        "6,,1,GPT-4,0,0,0,API log\n45.5,,1,GPT-4,1087,0,1087,API log\n"
    )

    trace = TraceFile(path)

    assert trace.format is TraceFormat.BURSTGPT
    assert not trace.shares_prefixes
    assert list(trace.rows()) == [TraceRow(2, 0.0, 472, 18, ()), TraceRow(4, 40.5, 1087, 0, ())]


@pytest.mark.parametrize(
    "text",
    [
        '{"timestamp": 0, "input_length": 0, "output_length": 0, "hash_ids": []}\n'
        '{"timestamp": 1000, "input_length": 5, "output_length": 2, "hash_ids": [7]}\n'
        '{"timestamp": 2000, "input_length": 0, "output_length": 3}\n',
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,0,0\n"
        "2023-11-16 18:17:04,5,2\n2023-11-16 18:17:05,0,3\n",
        "Timestamp,Request tokens,Response tokens\n0,0,0\n1,5,2\n2,0,3\n",
    ],
    ids=["mooncake", "azure", "burstgpt"],
)
def test_a_row_without_a_prompt_is_left_out_and_still_sets_the_start(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "t"
    path.write_text(text)

    [row] = TraceFile(path).rows()

    assert (row.arrival_s, row.input_length, row.output_length) == (1.0, 5, 2)


def test_a_burstgpt_time_that_is_no_number_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\nnoon,1,1\n")

    with pytest.raises(ConfigError, match=r"t\.csv:2: Timestamp is 'noon'; it must be a number"):
        list(TraceFile(path).rows())


@pytest.mark.parametrize("point", ".,")
@pytest.mark.parametrize("offset", ["", "+00:00", "+0530", "+05:30", "Z"])
def test_azure_times_may_have_a_zone_as_in_the_files_of_2024(
    tmp_path: Path, offset: str, point: str
) -> None:
    path = tmp_path / "t.csv"
    times = [
        f"2024-05-12 00:00:0{second}{offset}"
        for second in (f"0{point}001163", "1", f"2{point}501163")
    ]
    path.write_text(
        "TIMESTAMP;ContextTokens;GeneratedTokens\n" + "".join(f"{time};9;1\n" for time in times)
    )

    arrivals = [row.arrival_s for row in TraceFile(path).rows()]

    assert arrivals == pytest.approx([0.0, 0.998837, 2.5])


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("TIMESTAMP,GeneratedTokens,Model,ContextTokens", "2023-11-16T18:17:03+00:00,7,x,90"),
        (",TIMESTAMP,ContextTokens,GeneratedTokens", "0,2023-11-16 18:17:03,90.0,7.0"),
        ('"TIMESTAMP","ContextTokens","GeneratedTokens"', '"2023-11-16 18:17:03","90","7"'),
    ],
)
def test_columns_of_a_csv_may_be_as_other_programs_write_them(
    tmp_path: Path, header: str, row: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"\n{header}\n{row}\n")

    assert list(TraceFile(path).rows()) == [TraceRow(3, 0.0, 90, 7, ())]


def test_rows_of_jsonl_without_hash_ids_share_nothing(tmp_path: Path) -> None:
    bare = {key: value for key, value in MOONCAKE[0].items() if key != "hash_ids"}
    rows = [{**bare, "input_length": 600.0}, {**bare, "hash_ids": None}, {**bare, "hash_ids": []}]
    path = mooncake(tmp_path / "t", *rows)

    trace = TraceFile(path)

    assert TraceFile(mooncake(tmp_path / "later", bare, *MOONCAKE)).shares_prefixes
    assert not trace.shares_prefixes
    assert list(trace.rows()) == [TraceRow(i, 0.0, 600, 5, ()) for i in (1, 2, 3)]


@pytest.mark.parametrize("late_ms", [601_001, 3_600_000])
def test_rows_that_are_not_in_the_order_of_their_times_are_refused(
    tmp_path: Path, late_ms: int
) -> None:
    rows = [{**MOONCAKE[1], "timestamp": time} for time in (late_ms, 1000, 0)]

    with pytest.raises(
        ConfigError, match=r"a time \d+ s before that of a row above; sort the rows"
    ):
        list(TraceFile(mooncake(tmp_path / "t", *rows)).rows())


def test_rows_a_little_out_of_order_are_sorted(tmp_path: Path) -> None:
    times = [5000, 7000, 6500, 4000, 9000]
    rows = [{**MOONCAKE[1], "timestamp": time} for time in times]

    read = list(TraceFile(mooncake(tmp_path / "t", *rows)).rows())

    assert [row.arrival_s for row in read] == [0.0, 1.0, 2.5, 3.0, 5.0]
    assert [row.line for row in read] == [4, 1, 3, 2, 5]


def test_the_rows_above_a_malformed_one_are_read_first(tmp_path: Path) -> None:
    trace = TraceFile(mooncake(tmp_path / "t", *MOONCAKE, "x"))
    rows = trace.rows()

    assert [next(rows).line, next(rows).line] == [1, 2]
    with pytest.raises(ConfigError, match="t:3: not an object"):
        next(rows)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_table_may_have_another_delimiter(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(AZURE.replace(",", delimiter))

    assert [row.input_length for row in TraceFile(path).rows()] == [4808, 3180]


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"PAR1\x15\xff", "a Parquet file; write its rows as CSV or JSONL"),
        (b"\x28\xb5\x2f\xfd\x00", "compressed with zstd; unpack it, or use gzip"),
        (b"PK\x03\x04\x14", "a ZIP archive or a spreadsheet; give the CSV or JSONL in it"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer; fetch the trace"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, start: bytes, what: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(start)

    with pytest.raises(ConfigError, match=f"t: the trace is {what}"):
        TraceFile(path)


BURSTGPT = "Timestamp,Request tokens,Response tokens\n"


def test_a_time_unit_is_accepted_for_numbers_and_refused_for_dates(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(BURSTGPT + "1000,5,2\n4000,5,2\n")
    assert [row.arrival_s for row in TraceFile(path, "ms").rows()] == [0.0, 3.0]

    path.write_text(AZURE)
    with pytest.raises(ConfigError, match="its times are dates; --trace-time-unit is for"):
        TraceFile(path, "ms")


@pytest.mark.parametrize(
    ("step", "of_recorder", "asks"),
    [
        (1.5, True, True),
        (5, True, True),
        (20, True, True),
        (150, True, False),
        (150, False, True),  # a request in 150 s, from a script of one's own
    ],
)
def test_times_that_may_be_seconds_need_a_unit(
    tmp_path: Path, step: float, of_recorder: bool, asks: bool
) -> None:
    row = MOONCAKE[1] if of_recorder else {"input_length": 9, "output_length": 5}
    path = mooncake(tmp_path / "t", *({**row, "timestamp": step * i} for i in range(20)))

    with pytest.raises(ConfigError, match="pass --trace-time-unit s") if asks else nullcontext():
        assert TraceFile(path).time_unit == "ms"
    assert [row.arrival_s for row in TraceFile(path, "s").rows()][-1] == 19 * step


def test_a_time_since_1970_is_not_read_in_the_wrong_unit(tmp_path: Path) -> None:
    rows = [{**MOONCAKE[1], "timestamp": 1_700_000_000 + 30 * i} for i in range(3)]
    with pytest.raises(ConfigError, match="pass --trace-time-unit s or ms"):
        TraceFile(mooncake(tmp_path / "s", *rows))

    in_us = mooncake(tmp_path / "us", {**MOONCAKE[1], "timestamp": 1_700_000_000_000_000})
    with pytest.raises(
        ConfigError, match=r"us:1: timestamp is \d+, thousands of years in ms; write"
    ):
        list(TraceFile(in_us).rows())

    path = tmp_path / "ms.csv"
    path.write_text(BURSTGPT + "1700000000000,5,2\n")
    with pytest.raises(ConfigError, match=r"years in s; pass --trace-time-unit ms\."):
        list(TraceFile(path).rows())
    assert len(list(TraceFile(path, "ms").rows())) == 1


def test_blank_lines_are_skipped_and_keep_the_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(json.dumps(MOONCAKE[0]) + "\n\n" + json.dumps(MOONCAKE[1]) + "\n")

    assert [row.line for row in TraceFile(path).rows()] == [1, 3]


GOOD = MOONCAKE[0]
MALFORMED = {
    "no JSON": ("{oops", "is not JSON: Expecting property name enclosed in double quotes"),
    "no object": ("[1]", "not an object with timestamp, input_length, output_length."),
    "a missing field": (
        json.dumps({k: v for k, v in GOOD.items() if k != "output_length"}),
        "output_length is missing; a row has timestamp, input_length, output_length.",
    ),
    "a length of null": (
        json.dumps({**GOOD, "input_length": None}),
        "input_length is missing; a row has timestamp, input_length, output_length.",
    ),
    "a negative length": (
        json.dumps({**GOOD, "output_length": -3}),
        "output_length is -3; it must be a whole number, 0 or more.",
    ),
    "a length in words": (
        json.dumps({**GOOD, "input_length": "many"}),
        "input_length is 'many'; it must be a whole number, 0 or more.",
    ),
    "a true length": (
        json.dumps({**GOOD, "output_length": True}),
        "output_length is True; it must be a whole number, 0 or more.",
    ),
    "a negative time": (
        json.dumps({**GOOD, "timestamp": -1}),
        "timestamp is -1; it must be a number, 0 or more.",
    ),
    "no time at all": (
        '{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": [0]}',
        "timestamp is nan; it must be a number, 0 or more.",
    ),
    "too few hash ids": (
        json.dumps({**GOOD, "input_length": 1100, "hash_ids": [0]}),
        "1 hash_ids for 1100 tokens; one per 512 makes 3; blocks of 16, 32, 64, 128, "
        "256, 512 tokens are read, and rows without hash_ids share no prefix.",
    ),
    "hash ids of another kind": (
        json.dumps({**GOOD, "hash_ids": [0, "a"]}),
        "hash_ids must be a list of whole numbers below 2**63; number the different blocks 0, 1, ",
    ),
    "hashes of 64 bits": (
        json.dumps({**GOOD, "hash_ids": [0, 2**64 - 1]}),
        "hash_ids must be a list of whole numbers below 2**63; number the different blocks 0, 1, ",
    ),
    "a session that is no name": (
        json.dumps({**GOOD, "session_id": ["a"]}),
        "session_id must be a string or a number.",
    ),
}


@pytest.mark.parametrize(("line", "complaint"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_line_is_one_sentence_with_its_number(
    tmp_path: Path, line: str, complaint: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + line + "\n")

    with pytest.raises(ConfigError) as caught:
        list(TraceFile(path).rows())

    assert str(caught.value).startswith(f"{path}:2: {complaint}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("time", ["NaN", "Infinity"])
def test_a_first_time_that_is_no_number_is_not_one_of_unknown_unit(
    tmp_path: Path, time: str
) -> None:
    (path := tmp_path / "t").write_text(
        f'{{"timestamp": {time}, "input_length": 1, "output_length": 1}}\n'
    )

    with pytest.raises(ConfigError, match=r"t:1: timestamp is .*; it must be a number"):
        list(TraceFile(path).rows())


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("2023-11-16 18:17:04,12", "2 cells; a row has TIMESTAMP, ContextTokens, GeneratedTokens."),
        ("yesterday,12,3", "TIMESTAMP is 'yesterday'; write 2023-11-16 18:17:03.9799600."),
        # Milliseconds since 1970, not the date 1712-11-15 without hyphens.
        ("1712111511234,12,3", "TIMESTAMP is '1712111511234'; write 2023-11-16 18:17:03.9799600."),
        ("2023-11-16 18:17:04,x,3", "ContextTokens is 'x'; it must be a whole number, 0 or more."),
        (
            "2023-11-16 18:17:04,5,-3",
            "GeneratedTokens is -3; it must be a whole number, 0 or more.",
        ),
    ],
)
def test_a_malformed_row_of_a_csv_is_one_sentence_with_its_number(
    tmp_path: Path, row: str, complaint: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(AZURE + "\n" + row + "\n")

    with pytest.raises(ConfigError) as caught:
        list(TraceFile(path).rows())

    assert str(caught.value) == f"{path}:4: {complaint}"


def test_a_csv_of_other_columns_names_the_missing_one(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens\n")

    with pytest.raises(ConfigError, match=r"t.csv:1: column GeneratedTokens is missing; write "):
        list(TraceFile(path).rows())


def test_a_trace_of_no_known_format_is_one_sentence(tmp_path: Path) -> None:
    formats = (
        "write JSONL of Mooncake or Qwen-Bailian (one object a line), Azure CSV "
        "(TIMESTAMP,ContextTokens,GeneratedTokens) or BurstGPT CSV "
        "(Timestamp,Request tokens,Response tokens)."
    )
    for content, complaint in (
        (b"", f": the trace is empty; {formats}"),
        (b"\n \n", f": the trace is empty; {formats}"),
        (b"hello\n", f": unknown trace format; {formats}"),
        (
            b"\x1f\x8b\x08\x00",
            ": the compressed trace is damaged or cut short (Compressed file ended before the "
            "end-of-stream marker was reached); unpack what there is with `gzip -dc`.",
        ),
        (
            b'[\n{"timestamp": 1}]',
            ": a JSON array; write one request per line (jq -c '.[]' does, for an array), each "
            "with timestamp, input_length, output_length.",
        ),
        (
            b'{\n"requests": []}',
            ": one JSON object; write one request per line (jq -c '.[]' does, for an array), "
            "each with timestamp, input_length, output_length.",
        ),
    ):
        path = tmp_path / "t"
        path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            TraceFile(path)
        assert str(caught.value) == f"{path}{complaint}"


def test_a_missing_trace_is_one_sentence(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "none.jsonl", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(ConfigError) as caught:
            TraceFile(path)
        assert str(caught.value) == f"{path}: the trace cannot be read: {reason}."


def test_a_header_without_rows_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")

    with pytest.raises(ConfigError) as caught:
        list(TraceFile(path).rows())

    assert str(caught.value) == f"{path}: the trace has no rows."


def test_text_in_another_encoding_is_told_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes((json.dumps(GOOD) + "\n").encode() * 3000 + b"\xff\n")

    with pytest.raises(ConfigError, match=r"t.jsonl:\d+: not text in UTF-8"):
        list(TraceFile(path).rows())


def test_a_compressed_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(json.dumps(r).encode() + b"\n" for r in MOONCAKE)))

    assert [row.arrival_s for row in TraceFile(path).rows()] == [0.0, 0.5]


@pytest.mark.parametrize("partly_filled", [0, 1])
@pytest.mark.parametrize("block", [16, 64, 256, 512])
def test_the_size_of_a_block_is_what_the_ids_of_most_rows_stand_for(
    tmp_path: Path, block: int, partly_filled: int
) -> None:
    lengths = [2526, 700, 1290]
    ids = [list(range(length // block + partly_filled)) for length in lengths]
    rows = [
        {**GOOD, "timestamp": 1000 * i, "input_length": lengths[i], "hash_ids": ids[i]}
        for i in range(3)
    ]

    found = [row.block_tokens for row in TraceFile(mooncake(tmp_path / "t", *rows)).rows()]

    assert found == [block] * len(lengths)


def test_later_turns_of_a_session_arrive_after_their_delay_among_the_others(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 9, "output_length": 1},
        {"session_id": "a", "delay": 2500, "input_length": 3, "output_length": 1},
        {"session_id": "a", "timestamp": None, "delay": 400, "input_length": 4, "output_length": 1},
        {"session_id": "b", "timestamp": 900, "delay": None, "input_length": 7, "output_length": 1},
        {"session_id": "c", "timestamp": 2700, "input_length": 8, "output_length": 1},
    ]

    read = [
        (row.arrival_s, row.input_length)
        for row in TraceFile(mooncake(tmp_path / "t", *rows)).rows()
    ]

    assert read == [(0.0, 9), (0.9, 7), (2.5, 3), (2.7, 8), (2.9, 4)]
    with pytest.raises(ConfigError, match="t2:1: timestamp is missing; only a later turn"):
        list(TraceFile(mooncake(tmp_path / "t2", rows[1])).rows())


@pytest.mark.parametrize("times", [[0.0, 0.5, 1.0], [*range(12)], [0, 60.5, 121]])
def test_times_that_may_be_seconds_are_asked_for(tmp_path: Path, times: list[float]) -> None:
    rows = [{**GOOD, "timestamp": time} for time in times]
    path = mooncake(tmp_path / "t", *rows)

    with pytest.raises(ConfigError, match="pass --trace-time-unit s or ms"):
        TraceFile(path)

    assert [row.arrival_s for row in TraceFile(path, "s").rows()] == times
    assert [row.arrival_s for row in TraceFile(path, "ms").rows()] == [t / 1000 for t in times]


@pytest.mark.parametrize(
    ("row", "per_second"),
    [(GOOD, 1_000_000), (GOOD, 10**9), (BAILIAN, 1000)],
    ids=["Mooncake in us", "Mooncake in ns", "Qwen-Bailian in ms"],
)
def test_times_of_a_smaller_unit_are_not_read_as_rare_requests(
    tmp_path: Path, row: dict[str, object], per_second: int
) -> None:
    path = mooncake(tmp_path / "t", *({**row, "timestamp": 2 * per_second * i} for i in range(10)))

    with pytest.raises(ConfigError, match=r"in ms these are .*; pass --trace-time-unit s or ms"):
        TraceFile(path)

    assert len(list(TraceFile(path, "ms").rows())) == 10


@pytest.mark.parametrize(("spacing", "asked"), [(2000, True), (60, False)])
def test_a_table_in_ms_is_not_read_as_rare_requests(
    tmp_path: Path, spacing: int, asked: bool
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(BURSTGPT + "".join(f"{spacing * i},5,2\n" for i in range(10)) + "late,5,2\n")

    with pytest.raises(ConfigError, match="in ms these are 0.556 " if asked else "t.csv:12"):
        list(TraceFile(path).rows())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[{"id": "a", "conversations": [{"from": "human", "value": "x"}]}]', "(ShareGPT)"),
        ('[\n  {\n    "id": "a",\n    "conversations": []\n  }\n]', "(ShareGPT)"),
        ('{\r\n  "conversation_id": "a",\r\n  "conversation": []\r\n}', "(LMSYS, WildChat)"),
        ('{"conversation_id": "a", "conversation": []}', "(LMSYS, WildChat)"),
        ('{"text_input": "What?", "output_length": 20}', "(AIPerf)"),
        ('{"prompt": "What?", "output_tokens": 20}', "prompts"),
    ],
)
def test_text_without_times_is_named_with_what_makes_such_traffic(
    tmp_path: Path, text: str, what: str
) -> None:
    path = tmp_path / "t"
    path.write_text(text + "\n")

    with pytest.raises(ConfigError) as refused:
        TraceFile(path)

    assert what in str(refused.value)
    assert "chat-churn" in str(refused.value)
    assert "jq" not in str(refused.value)
