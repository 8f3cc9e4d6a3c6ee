"""Sessions on small engines, for tests of defects in sessions."""

from __future__ import annotations

from typing import Any

from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import make_attention_engine, make_engine, run_to_idle

LONG = SamplingParams(max_new_tokens=8, ignore_eos=True)
FIRST = list(range(1, 21))


def hybrid_engine(**changes: Any) -> Engine:
    return make_engine(check_fatal=False, **changes)


def paged_engine(page_size: int, **changes: Any) -> Engine:
    return make_attention_engine(page_size, check_fatal=False, **changes)


def open_with_turn(engine: Engine, session_id: str) -> None:
    """Open a session that has had one turn and is idle."""
    engine.open_session(session_id)
    engine.submit(f"{session_id}-first", FIRST, LONG, session_id=session_id)
    run_to_idle(engine)


def begin_turn(engine: Engine, session_id: str, steps: int = 3) -> str:
    """Start a turn and run it until it has output some tokens; return its id."""
    rid = f"{session_id}-{engine.counters.requests_submitted}"
    engine.submit(rid, [30, 31, 32], LONG, session_id=session_id)
    for _ in range(steps):
        engine.step()
    return rid


def open_and_close(engine: Engine, count: int) -> None:
    """Open and close ``count`` short sessions."""
    for index in range(count):
        open_with_turn(engine, f"s{index}")
        engine.close_session(f"s{index}")


def retract_turn(engine: Engine, session_id: str, steps: int = 3) -> None:
    """Run a turn that is retracted once, resumes and ends."""
    begin_turn(engine, session_id, steps)
    engine.scheduler._retract_one()
    run_to_idle(engine)
