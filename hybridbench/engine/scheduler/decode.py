"""Room for one more token of every running request, and who is pushed back when there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.pools import Pools
from hybridbench.foundation.engine_config import NewTokenRatio

# After a retract the ratio assumes that each remaining request still decodes this many steps.
# Source: SGLang's retract_decode_steps.
RETRACT_DECODE_STEPS = 20


class NewTokenRatioTracker:
    """The share of outstanding output that admission keeps free: decays, and jumps on a retract."""

    def __init__(self, config: NewTokenRatio) -> None:
        self._config = config
        self.value = config.init

    def decay(self) -> None:
        """A decode step went by without a retract: dare a little more."""
        self.value = max(self.value - self._config.decay, self._config.min)

    def reestimate(self, remaining: Sequence[Req]) -> None:
        """Requests were retracted: expect of the others what they have shown so far."""
        decoded = sum(len(req.output_ids) for req in remaining)
        promised = sum(req.sampling_params.max_new_tokens for req in remaining)
        if promised:
            estimate = (decoded + RETRACT_DECODE_STEPS * len(remaining)) / promised
            self.value = min(1.0, max(estimate, self._config.min))


def decode_room_needed(running: Sequence[Req], page_size: int) -> int:
    """KV tokens the next decode step takes: a page for each request at a page border."""
    if page_size == 1:
        return len(running)
    return page_size * sum(req.kv.kv_allocated_len % page_size == 0 for req in running)


def retract_order(running: Sequence[Req], rank: Callable[[Req], int] = lambda _: 0) -> list[Req]:
    """First to go first: fewest outputs, and of those the longest prompt.

    The least work is lost that way.  Source: SGLang's retract_decode.  Whoever matters less (a
    larger ``rank``) goes before all of that, or the one sent back would at once send back another.
    Turns of sessions go last: their KV stays with the session, so that it makes no room to push one
    back.
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
    """Decides whom the next decode step cannot carry; it releases nobody itself."""

    def __init__(self, pools: Pools, page_size: int) -> None:
        self._pools = pools
        self._page_size = page_size

    def fits(self, running: Sequence[Req]) -> bool:
        """Evict if need be; whether each of ``running`` can then get room for one more token."""
        return self._pools.make_kv_room(decode_room_needed(running, self._page_size))
