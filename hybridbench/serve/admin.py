"""Administrative endpoints: drain the server, resume, and account for the slots it holds.

Only clients on the same machine may use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hybridbench.records.json_value import JsonValue
from hybridbench.records.messages import Checkpoint, CheckpointReply, Drain, Drained, Resume
from hybridbench.serve.engine_link import EngineGoneError, EngineLink
from hybridbench.serve.errors import ApiError, json_response
from hybridbench.serve.limits import check_origin, is_loopback

_DRAIN_PATIENCE_S: Final = 120.0
_CHECKPOINT_PATIENCE_S: Final = 60.0


@dataclass
class Admin:
    """The endpoints, and whether the server accepts requests.

    Args:
        link: the engine.
        draining: whether generations are refused.
    """

    link: EngineLink
    draining: bool = False

    def __post_init__(self) -> None:
        self._numbers = count()

    def routes(self) -> list[Route]:
        """Routes of all endpoints, for POST only, since each has an effect."""
        endpoints = {"drain": self.drain, "resume": self.resume, "checkpoint": self.checkpoint}
        return [Route(f"/admin/{name}", one, methods=["POST"]) for name, one in endpoints.items()]

    async def drain(self, request: Request) -> Response:
        """Accept no more generations; answer when the engine is idle."""
        check_client(request)
        self.draining = True
        try:
            await self.link.ask(Drain(), Drained, _DRAIN_PATIENCE_S)
        except EngineGoneError as error:
            if self.link.lost:
                raise
            waited = f"requests are still running after {_DRAIN_PATIENCE_S:.0f} s; retry."
            raise ApiError(503, waited) from error
        return json_response({"status": "drained"})

    async def resume(self, request: Request) -> Response:
        """Accept generations again."""
        check_client(request)
        self.draining = False
        self.link.post(Resume())
        return json_response({"status": "ok"})

    async def checkpoint(self, request: Request) -> Response:
        """Account for the engine's slots between two steps, one by one, with a heap scan."""
        check_client(request)
        probe_id = self.link.new_probe_id()
        asked = Checkpoint(probe_id, next(self._numbers), audit=True)
        reply = await self.link.ask(asked, CheckpointReply, _CHECKPOINT_PATIENCE_S, probe_id)
        return json_response(_named(reply))


def check_client(request: Request) -> None:
    """Refuse clients on other machines, and web pages of other hosts.

    Raises:
        ApiError: the client is one of these.
    """
    if request.client is None or not is_loopback(request.client.host):
        raise ApiError(403, "only clients on the server's machine may do that.")
    check_origin(request)


def _named(value: object) -> JsonValue:
    """Convert a wire record, which is encoded as an array, to a JSON object with field names."""
    if isinstance(value, msgspec.Struct):
        return {name: _named(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): _named(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_named(item) for item in value]
    assert value is None or isinstance(value, bool | int | float | str)
    return value
