"""The search for the requests that bring down a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridbench.load.culprits import Culprits, Suspect
from hybridbench.load.http_request import HttpRequest
from hybridbench.records.json_value import JsonValue
from hybridbench.records.load import CrashSearch
from hybridbench.records.messages import Sampling, Submit


def suspect(name: str, text: str = "what nobody may read") -> Suspect:
    fields: dict[str, JsonValue] = {
        "prompt": text,
        "seed": 3,
        "stop": ["a", "b"],
        "messages": [{"content": text}],
    }
    http = HttpRequest("completions", "/v1/completions", fields)
    return Suspect(Submit(name, [1], Sampling(4)), http, name, is_usual="usual" in name)


def searched(
    names: Sequence[str], ends: Callable[[frozenset[str]], bool]
) -> tuple[CrashSearch, list[list[str]]]:
    """Return the search of a server that ``ends`` for some requests, and each set that it sent."""
    culprits, sent = Culprits(), []
    for name in names:
        culprits.keep(suspect(name))

    async def try_(suspects: Sequence[Suspect]) -> bool:
        sent.append([one.kind for one in suspects])
        return ends(frozenset(sent[-1]))

    async def search() -> None:
        await culprits.search(try_)
        while culprits.so_far().waits:
            await culprits.search(try_)

    asyncio.run(search())
    return culprits.so_far(), sent


def test_one_request_is_enough_and_what_is_unusual_is_sent_first() -> None:
    found, sent = searched(["usual 1", "usual 2", "a", "b"], lambda kinds: "b" in kinds)

    assert [one.kind for one in found.smallest] == ["b"]
    assert sent == [["a", "b", "usual 1", "usual 2"], ["a"], ["b"]]
    assert (found.suspects, found.sent, found.ended, found.over) == (4, 3, 2, True)


def test_a_server_that_survives_them_all_is_not_said_to_end_of_any() -> None:
    found, sent = searched(["a", "b", "c"], lambda _: False)

    assert not found.smallest
    assert sent == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert (found.ended, found.over, found.waits) == (0, True, False)


@given(
    many=st.integers(3, 12),
    first=st.integers(0, 11),
    second=st.integers(0, 11),
)
def test_what_is_found_has_ended_the_server_and_each_of_it_alone_has_not(
    many: int, first: int, second: int
) -> None:
    needed = frozenset({str(first % many), str(second % many)})
    found, sent = searched([str(index) for index in range(many)], needed.issubset)

    kinds = [one.kind for one in found.smallest]
    assert needed <= set(kinds)
    assert kinds in sent
    assert len(needed) > 1 or len(kinds) == 1
    assert found.ended >= 1


def test_no_text_of_a_request_is_shown() -> None:
    found, _ = searched(["a"], lambda _: True)

    assert found.smallest[0].body == {
        "prompt": "<20 characters>",
        "seed": 3,
        "stop": "<2 values>",
        "messages": [{"content": "<20 characters>"}],
    }


def test_requests_before_an_answer_are_no_suspects_and_the_others_are_bounded() -> None:
    culprits = Culprits()
    culprits.keep(suspect("answered after"))
    culprits.forget()
    for index in range(100):
        culprits.keep(suspect(str(index), "x" * (1 << 20)))

    async def survives(suspects: Sequence[Suspect]) -> bool:
        assert all(one.kind != "answered after" for one in suspects)
        return False

    asyncio.run(culprits.search(survives))
    assert culprits.so_far().suspects == pytest.approx(15, abs=1)  # of 2 MiB each
