"""Malformed requests, on every interface."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from hybridbench.load.http_request import HttpRequest
from hybridbench.load.interfaces import Interface
from hybridbench.records.load import Api
from hybridbench.records.messages import Sampling, Submit
from hybridbench.workload.actions import Malformed, ServerSubmit

APIS: tuple[Api, ...] = get_args(Api)
# These have no wrong value in the body: what is around it is wrong, or the body is always large.
WITHOUT_VALUE = {
    Malformed.UNKNOWN_METHOD,
    Malformed.UNKNOWN_PATH,
    Malformed.CONTENT_TYPE,
    Malformed.LONG_PROMPT,
}
SAMPLING = Sampling(7, 0.5)


def malformed(api: Api, kind: Malformed, draw: int, *, large: bool = False) -> HttpRequest:
    request = ServerSubmit("r1", [1, 2], SAMPLING, malformed=kind, large=large, draw=draw)
    return Interface(api, "m", stream=True).request(request)


def sent(request: HttpRequest) -> tuple[str, str, str, bytes]:
    return request.method, request.path, request.content_type, request.body


def read_and_write(body: bytes) -> None:
    json.dumps(json.loads(body), ensure_ascii=False).encode()


@pytest.mark.parametrize("kind", Malformed)
@pytest.mark.parametrize("api", APIS)
def test_a_malformed_request_is_new_each_time_and_the_same_for_the_same_draw(
    api: Api, kind: Malformed
) -> None:
    plain = Interface(api, "m", stream=True).request(Submit("r1", [1, 2], SAMPLING))
    drawn = {sent(malformed(api, kind, draw)) for draw in range(40)}

    assert len(drawn) == 40
    assert sent(plain) not in drawn
    assert sent(malformed(api, kind, 3)) == sent(malformed(api, kind, 3))
    assert malformed(api, kind, 3).marks == (kind.value,)


@pytest.mark.parametrize("kind", [kind for kind in Malformed if kind not in WITHOUT_VALUE])
@pytest.mark.parametrize("api", APIS)
def test_a_large_value_is_10_kb_to_1_mb_and_a_body_below_what_is_sent_in_parts(
    api: Api, kind: Malformed
) -> None:
    small = max(len(malformed(api, kind, draw).body) for draw in range(40))
    large = [len(malformed(api, kind, draw, large=True).body) for draw in range(15)]

    assert small < 4_000
    assert max(large) < 2**20
    # Kinds with a wrong number have no large value.
    if kind not in (Malformed.EMPTY_PROMPT, Malformed.LONG_OUTPUT):
        assert max(large) > 10_000


@pytest.mark.parametrize("api", APIS)
def test_each_kind_is_wrong_in_its_own_way(api: Api) -> None:
    for draw in range(20):
        assert malformed(api, Malformed.UNKNOWN_METHOD, draw).method != "POST"
        assert malformed(api, Malformed.UNKNOWN_PATH, draw).path.count("/x") == 1
        assert "json" not in malformed(api, Malformed.CONTENT_TYPE, draw).content_type
        assert malformed(api, Malformed.CUT_BODY, draw).is_cut_off
        with pytest.raises(ValueError, match=":"):
            json.loads(malformed(api, Malformed.BAD_JSON, draw).body)
        deep = malformed(api, Malformed.DEEP_JSON, draw).body
        # Deeper than Python 3.11 reads; later versions read ten times as deep.
        assert deep.count(b"[") >= 1_000
        with pytest.raises(UnicodeError):
            read_and_write(malformed(api, Malformed.BAD_UNICODE, draw).body)
        assert len(malformed(api, Malformed.LONG_PROMPT, draw).body) > 9_000
        for kind in list(Malformed)[list(Malformed).index(Malformed.WRONG_TYPE) :]:
            assert isinstance(json.loads(malformed(api, kind, draw).body), dict)
