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
    """A turn by what it has committed and allocated; its indices are the row's."""

    def __init__(self, session_id: str, input_ids: list[int], output_ids: list[int] | None = None):
        super().__init__(session_id, input_ids, SamplingParams(max_new_tokens=32))
        self.output_ids = list(output_ids or [])
        self.fill_ids = [*input_ids, *self.output_ids]
        self.session = Session(session_id, None, 0.0)

    def abort(self) -> None:
        """What SGLang calls ``req.finished_reason = FINISH_ABORT(...)``."""
        self.to_abort = FINISH_ABORT


class StreamingSession(streaming_session.StreamingSession):
    def match(self, key: RadixKey, req: EngineReq) -> torch.Tensor:
        """Indices as a tensor; the request keeps them, as admission would have it."""
        found = self.match_prefix(MatchPrefixParams(key=key, cow_mamba=True, req=req))
        req.kv.prefix_indices = found.device_indices
        return torch.from_numpy(found.device_indices)


def kv_info(**fields: Any) -> ReqKv:
    """SGLang's ``ReqKvInfo``."""
    return ReqKv(**fields)
