"""What a run concludes from the reports of its load client."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hybridbench.records.load import COUNTED, LoadReport
from hybridbench.runs.http_load import Reach


def report(submitted: int, refused: int, in_flight: int = 0) -> LoadReport:
    counts = dict.fromkeys(COUNTED, 0)
    counts |= {"requests_submitted": submitted, "requests_failed.connect": refused}
    return LoadReport(
        counts=counts,
        in_flight=in_flight,
        connections=in_flight,
        lost={},
        latencies={},
        cpu_s=0.0,
        private_bytes=0,
        paused=False,
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
