"""Find requests that live too long or have no client; O(requests), so only done per sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridbench.engine.front_end import FrontEnd
from hybridbench.engine.req import Req


@dataclass(frozen=True, slots=True)
class Liveness:
    """The health of an engine's requests at one moment, between two steps.

    Args:
        requests_without_client: queued or admitted requests that no client waits for and that
            are not being aborted.
        oldest_request_s: age of the oldest request since submission; 0 without any.
        oldest_silence_s: the longest that an admitted request has gone without a token, counted
            from its admission if it has none yet; 0 without any.
    """

    requests_without_client: int
    oldest_request_s: float
    oldest_silence_s: float


def liveness_of(
    admitted: Sequence[Req], waiting: Sequence[Req], front_end: FrontEnd, now_s: float
) -> Liveness:
    """Measure ``admitted`` and ``waiting``, which are all requests; ``now_s`` is engine time."""
    everyone = [*admitted, *waiting]
    alone = sum(1 for req in everyone if req.to_abort is None and not front_end.awaits(req))
    return Liveness(
        requests_without_client=alone,
        oldest_request_s=max((now_s - req.submitted_s for req in everyone), default=0.0),
        oldest_silence_s=max((now_s - req.last_heard_s for req in admitted), default=0.0),
    )
