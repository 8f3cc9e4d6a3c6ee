"""Check room for one more token per running request, and order retracts when there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.foundation.engine_config import NewTokenRatio

# After a retract the ratio assumes that each remaining request still decodes this many steps.
# Source: SGLang's retract_decode_steps.
RETRACT_DECODE_STEPS = 20


class NewTokenRatioTracker:
    """The share of outstanding output that admission reserves; decays, and jumps on a retract."""

    def __init__(self, config: NewTokenRatio) -> None:
        self._config = config
        self.value = config.init

    def decay(self) -> None:
        """Lower the ratio by one decay step, after a decode step without a retract."""
        self.value = max(self.value - self._config.decay, self._config.min)

    def reestimate(self, remaining: Sequence[Req]) -> None:
        """Re-estimate the ratio after a retract, from the outputs of the remaining requests."""
        decoded = sum(len(req.output_ids) for req in remaining)
        promised = sum(req.sampling_params.max_new_tokens for req in remaining)
        if promised:
            estimate = (decoded + RETRACT_DECODE_STEPS * len(remaining)) / promised
            self.value = min(1.0, max(estimate, self._config.min))


def decode_room_needed(running: Sequence[Req], page_size: int) -> int:
    """Return the KV tokens that the next decode step takes: a page per request at a page border."""
    if page_size == 1:
        return len(running)
    return page_size * sum(req.kv.kv_allocated_len % page_size == 0 for req in running)


def retract_order(running: Sequence[Req], rank: Callable[[Req], int] = lambda _: 0) -> list[Req]:
    """Return ``running`` in retract order: fewest outputs first, then the longest prompt.

    This loses the least work (source: SGLang's retract_decode).  Lower priority, a larger ``rank``,
    comes before that; otherwise a retracted request could immediately preempt another.  Session
    turns come last: their KV stays with the session, so retracting one makes no room.
    """
    return sorted(
        running,
        key=lambda req: (
            req.session is not None,
            -rank(req),
            len(req.output_ids),
            -len(req.origin_input_ids),
        ),
    )


class DecodeRoom:
    """Determines whether the next decode step fits; releases no request itself."""

    def __init__(self, pools: Pools, page_size: int) -> None:
        self._pools = pools
        self._page_size = page_size

    def fits(self, running: Sequence[Req]) -> bool:
        """Evict if necessary; return whether each of ``running`` has room for one more token."""
        return self._pools.make_kv_room(decode_room_needed(running, self._page_size))
