"""SGLang's streaming sessions on hybridbench's: requests built from lengths, aborts by reason."""

from __future__ import annotations

from typing import Any

import torch

from hybridbench.engine.cache.base import MatchPrefixParams
from hybridbench.engine.req import FinishKind, FinishReason, ReqKv, Session
from hybridbench.engine.req import Req as EngineReq
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.sessions import streaming_session
from tests.peers.shim import RadixKey

FINISH_ABORT = FinishReason(FinishKind.ABORT, "aborted")


class Req(EngineReq):
    """A turn defined by its committed and allocated lengths; its indices are in its row."""

    def __init__(self, session_id: str, input_ids: list[int], output_ids: list[int] | None = None):
        super().__init__(session_id, input_ids, SamplingParams(max_new_tokens=32))
        self.output_ids = list(output_ids or [])
        self.fill_ids = [*input_ids, *self.output_ids]
        self.session = Session(session_id, None, 0.0)

    def abort(self) -> None:
        """Do what ``req.finished_reason = FINISH_ABORT(...)`` does in SGLang."""
        self.to_abort = FINISH_ABORT


class StreamingSession(streaming_session.StreamingSession):
    def match(self, key: RadixKey, req: EngineReq) -> torch.Tensor:
        """Return the indices as a tensor; store them in the request, as admission does."""
        found = self.match_prefix(MatchPrefixParams(key=key, cow_mamba=True, req=req))
        req.kv.prefix_indices = found.device_indices
        return torch.from_numpy(found.device_indices)


def kv_info(**fields: Any) -> ReqKv:
    """Return a ``ReqKv``, which is SGLang's ``ReqKvInfo``."""
    return ReqKv(**fields)
