"""The requests of one step, and what they held when it was formed."""

from __future__ import annotations

from dataclasses import dataclass

from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.req import Req, ReqKv


@dataclass(frozen=True, slots=True)
class ScheduleBatch:
    """The requests of one step, in the order of the forward batch's rows.

    ``records`` are what the requests held when the batch was formed.  A request that has let go of
    everything since then has another record, even if it was admitted again meanwhile: that is how
    a late result is told from one that is waited for.

    ``chunked_req``, if any, is among ``reqs`` and stays between chunks after this step: its logits
    mean nothing.

    ``drafts``, if not None, are the guesses of each request that the step verifies behind its last
    token; some may be empty.
    """

    reqs: list[Req]
    records: list[ReqKv]
    forward: ForwardBatch
    chunked_req: Req | None = None
    drafts: list[list[int]] | None = None

    @classmethod
    def of(
        cls,
        reqs: list[Req],
        forward: ForwardBatch,
        chunked_req: Req | None = None,
        drafts: list[list[int]] | None = None,
    ) -> ScheduleBatch:
        """The batch of ``reqs`` as they are now; the list is kept, not copied."""
        return cls(reqs, [req.kv for req in reqs], forward, chunked_req, drafts)


@dataclass(frozen=True, slots=True)
class ChainsToCome:
    """A step with room for chains that are not known before the results of the step before it.

    ``guesses`` is how many a chain may have; the requests have KV for as many.
    """

    reqs: list[Req]
    guesses: int
