"""The places where events are counted, as findings name them."""

from __future__ import annotations

from typing import cast

import pytest

from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.counters import COUNTER_NAMES, COUNTER_SITES
from hybridbench.engine.engine import Engine
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.release import RequestRelease
from hybridbench.engine.scheduler.scheduler import Scheduler
from hybridbench.engine.scheduler.verify import DraftVerifier
from hybridbench.engine.sessions.session_controller import SessionController
from hybridbench.engine.sessions.streaming_session import StreamingSession

COUNTING = (
    MambaRadixCache,
    Scheduler,
    Engine,
    DraftVerifier,
    RequestRelease,
    SessionController,
    StreamingSession,
)
CLASSES = {kind.__name__: kind for kind in COUNTING}
REMOVED = {kind.__name__ for kind in (TreeNode, Req)}


@pytest.mark.parametrize("counter", COUNTER_SITES)
def test_every_call_behind_a_counter_exists(counter: str) -> None:
    site = COUNTER_SITES[counter]

    assert counter in COUNTER_NAMES
    assert site.removes in {"", *REMOVED}
    for call in site.calls:
        owner, _, method = call.partition(".")
        assert callable(cast("dict[str, object]", dict(_members(CLASSES[owner])))[method])


def _members(kind: type) -> dict[str, object]:
    return {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
