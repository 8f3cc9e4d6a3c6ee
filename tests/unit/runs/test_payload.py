"""Payloads made in the worker: by size and seed alone, and on their way with a request."""

from __future__ import annotations

from hybridbench.engine.req import Req
from hybridbench.runs.payload import make_payload
from hybridbench.targets import messages as m
from tests.unit.runs.engines import in_process_worker, make_engine


def test_equal_seeds_are_equal_payloads_and_no_size_is_none() -> None:
    assert make_payload(1000, 7) == make_payload(1000, 7)
    assert make_payload(1000, 7) != make_payload(1000, 8)
    assert len(make_payload(1000, 7)) == 1000
    assert make_payload(0, 7) == b""


def test_a_request_over_the_wire_brings_the_payload_of_its_seed() -> None:
    engine = make_engine()
    seen: list[tuple[str, bytes]] = []
    add = engine.scheduler.add

    def look(req: Req) -> None:
        add(req)
        seen.append((req.rid, req.payload))

    engine.scheduler.add = look  # type: ignore[method-assign]
    sampling = m.Sampling(max_new_tokens=2)
    with in_process_worker(engine) as worker:
        worker.ask(
            m.Submit("plain", [5, 6, 7, 8, 9], sampling),
            m.Submit("rich", [5, 6, 7, 8, 9], sampling, payload_bytes=512, payload_seed=3),
            m.Drain(),
            until=m.Drained,
        )

    assert seen == [("plain", b""), ("rich", make_payload(512, 3))]
