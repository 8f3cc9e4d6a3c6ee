"""The requests of one step, and what they held when it was formed."""

from __future__ import annotations

from dataclasses import dataclass

from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.req import Req, ReqKv


@dataclass(frozen=True, slots=True)
class ScheduleBatch:
    """The requests of one step, in the order of the forward batch's rows.

    ``records`` are what the requests held when the batch was formed.  A request that was released
    since then has another record, even if it has been admitted again: this distinguishes
    a late result from one that is waited for.

    ``chunked_req``, if any, is among ``reqs`` and stays between chunks after this step: its logits
    are meaningless.

    ``drafts``, if not None, are each request's draft tokens, which the step verifies after its last
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
        """The batch of ``reqs`` in their present state; keeps the list, without a copy."""
        return cls(reqs, [req.kv for req in reqs], forward, chunked_req, drafts)


@dataclass(frozen=True, slots=True)
class ChainsToCome:
    """A step with room for chains that depend on the results of the previous step.

    ``guesses`` is the maximum of draft tokens in a chain; the requests have KV for as many.
    """

    reqs: list[Req]
    guesses: int
