"""What a run concludes from the reports of its load client."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hybridbench.foundation.latency import ITL, LatencyCounts
from hybridbench.records.load import COUNTED, LoadReport
from hybridbench.runs.http_load import Reach, Silence


def report(
    submitted: int,
    refused: int,
    in_flight: int = 0,
    *,
    paused: bool = False,
    latencies: LatencyCounts | None = None,
) -> LoadReport:
    counts = dict.fromkeys(COUNTED, 0)
    counts |= {"requests_submitted": submitted, "requests_failed.connect": refused}
    return LoadReport(
        counts=counts,
        in_flight=in_flight,
        connections=in_flight,
        lost={},
        latencies={name: dict(counts) for name, counts in (latencies or {}).items()},
        cpu_s=0.0,
        private_bytes=0,
        paused=paused,
        orders=1,
    )


@pytest.mark.parametrize(
    ("reports", "lost_for_s"),
    [
        # Nothing but refused connections, with a request in flight now and then.
        ([(100, 0, 4), (104, 4, 4), (105, 5, 4), (107, 6, 5), (108, 8, 4)], 40.0),
        # One request was answered.
        ([(100, 0, 4), (104, 4, 4), (105, 5, 4), (106, 5, 4), (107, 6, 4)], 10.0),
        # A slow server that refuses nothing; a server that gets no requests.
        ([(100, 0, 4), (100, 0, 4), (100, 0, 4), (100, 0, 4)], 0.0),
        ([(100, 3, 0), (100, 3, 0), (100, 3, 0), (100, 3, 0), (100, 3, 0)], 0.0),
    ],
)
def test_a_server_is_lost_while_requests_end_for_want_of_a_connection_alone(
    reports: Sequence[tuple[int, int, int]], lost_for_s: float
) -> None:
    reach = Reach()
    for index, ends in enumerate(reports):
        reach.see(report(*ends), 100.0 + 10.0 * index)

    assert reach.lost_for_s == lost_for_s


WAITS = report(120, 0, 16)
ANSWERED = report(121, 0, 16)
TOKEN = report(120, 0, 16, latencies={ITL: {5: 1}})


@pytest.mark.parametrize(
    ("later", "for_s", "is_hang"),
    [
        ([WAITS] * 13, 130.0, True),
        # Slow servers: one sends a token, one answers, one has been silent for as long before.
        ([*[WAITS] * 6, TOKEN, *[WAITS] * 6], 60.0, False),
        ([*[WAITS] * 6, ANSWERED, *[ANSWERED] * 6], 60.0, False),
        ([*[WAITS] * 6, TOKEN, *[WAITS] * 20], 200.0, False),
        # It may be too slow to answer even the first request.
        ([report(16, 0, 16)] * 21, 200.0, False),
        # Nothing waits, or the client has paused.
        ([report(136, 0)] * 13, 0.0, False),
        ([report(120, 0, 16, paused=True)] * 13, 0.0, False),
        # Requests that the client gave up, and new ones in their place.
        ([*[WAITS] * 6, report(124, 4, 16), *[report(124, 4, 16)] * 6], 130.0, True),
    ],
)
def test_a_server_hangs_that_is_silent_far_longer_than_ever_before(
    later: Sequence[LoadReport], for_s: float, is_hang: bool
) -> None:
    silence = Silence()
    for index, one in enumerate([WAITS, *later]):
        silence.see(one, 100.0 + 10.0 * index)

    assert (silence.for_s, silence.is_hang) == (for_s, is_hang)
