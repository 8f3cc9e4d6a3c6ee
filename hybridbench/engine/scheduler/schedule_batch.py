"""The requests of one step, and what they held when the step was formed."""

from __future__ import annotations

from dataclasses import dataclass

from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.req import Req, ReqKv


@dataclass(frozen=True, slots=True)
class ScheduleBatch:
    """The requests of one step, in the order of the forward batch's rows.

    ``records`` are what the requests held when the batch was formed.  A request that was released
    since then has another record, even if it has been admitted again; this distinguishes late
    results from expected ones.

    ``chunked_req``, if any, is among ``reqs`` and is between chunks after this step, so its logits
    are meaningless.

    ``drafts``, if not None, holds each request's draft tokens, which may be empty; the step
    verifies them after the request's last token.
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
        """Build the batch of ``reqs`` with their current records; keeps the list, not a copy."""
        return cls(reqs, [req.kv for req in reqs], forward, chunked_req, drafts)


@dataclass(frozen=True, slots=True)
class ChainsToCome:
    """A step with room for chains that depend on the results of the previous step.

    ``guesses`` is the maximum number of draft tokens in a chain; KV is allocated for that many.
    """

    reqs: list[Req]
    guesses: int
