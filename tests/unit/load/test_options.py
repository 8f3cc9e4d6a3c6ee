"""The table of options."""

from __future__ import annotations

import json
from collections import Counter
from typing import get_args

import pytest

from hybridbench.load.http_request import HttpRequest, Values
from hybridbench.load.interfaces import Interface
from hybridbench.load.options import OPTIONS, Option, add_options
from hybridbench.records.load import Api
from hybridbench.records.messages import Sampling, Submit
from hybridbench.workload.actions import ServerSubmit

APIS: tuple[Api, ...] = get_args(Api)
ROWS = [(option, api) for option in OPTIONS for api in sorted(option.apis)]
SAMPLING = Sampling(7, 0.5)


def plain(api: Api) -> HttpRequest:
    return Interface(api, "m", stream=True).request(Submit("r1", [1, 2], SAMPLING))


def with_options(api: Api, count: int, draw: int) -> HttpRequest:
    request = ServerSubmit("r1", [1, 2], SAMPLING, options=count, draw=draw)
    return Interface(api, "m", stream=True).request(request)


@pytest.mark.parametrize(("option", "api"), ROWS, ids=[f"{row.name}-{api}" for row, api in ROWS])
def test_a_row_changes_a_request_and_leaves_it_one(option: Option, api: Api) -> None:
    before = plain(api)
    drawn = []
    for seed in range(40):
        request = plain(api)
        fields = option.draw(Values(seed, 7))
        (request.set_sampling if option.is_sampling else request.set)(fields)
        drawn.append(json.loads(request.body))

    assert any(body != json.loads(before.body) for body in drawn)
    for body in drawn:
        # The question itself stays the same.
        for name in ("prompt", "messages", "input", "input_ids", "model"):
            assert body.get(name) == before.fields.get(name)


def test_an_interface_has_each_name_once() -> None:
    for api in APIS:
        names = [option.name for option in OPTIONS if api in option.apis]
        assert len(names) == len(set(names)) > 10


@pytest.mark.parametrize("api", APIS)
def test_every_option_of_an_interface_is_drawn_and_named(api: Api) -> None:
    having = {option.name for option in OPTIONS if api in option.apis}
    named: Counter[str] = Counter()
    for draw in range(600):
        marks = with_options(api, 3, draw).marks
        assert len(marks) == 3
        named.update(marks)

    assert set(named) == having
    assert with_options(api, 3, 5).body == with_options(api, 3, 5).body
    assert with_options(api, 3, 5).body != with_options(api, 3, 6).body


def test_whether_the_answer_is_a_stream_may_be_an_option() -> None:
    asked = [with_options("completions", 2, draw) for draw in range(400)]

    whole = [request for request in asked if not request.streams]
    assert 0 < len(whole) < 100
    for request in asked:
        body = json.loads(request.body)
        assert body["stream"] is request.streams
        assert request.streams or "stream_options" not in body


def test_more_options_than_there_are_are_all() -> None:
    request = plain("responses")
    add_options(request, Values(1, 7), 1000)

    assert len(request.marks) == sum("responses" in option.apis for option in OPTIONS)


def test_an_option_that_is_left_out_is_never_drawn() -> None:
    interface = Interface("chat", "m", stream=True, without=("seed", "n"))
    marks = {
        mark
        for draw in range(600)
        for mark in interface.request(
            ServerSubmit("r1", [1, 2], SAMPLING, options=3, draw=draw)
        ).marks
    }

    assert marks == {o.name for o in OPTIONS if "chat" in o.apis} - {"seed", "n"}
