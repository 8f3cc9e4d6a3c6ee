"""JSON responses, mainly for refused requests.

Source: OpenAI's error object, which clients parse.  No message quotes a prompt.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from hybridbench.records.json_value import JsonValue

_KINDS: Final = {429: "rate_limit_error"}
_CODES: Final = {
    400: "invalid_request",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    429: "too_many_requests",
    500: "internal_error",
    503: "unavailable",
}


class ApiError(Exception):
    """An error response to a request.

    Args:
        status: HTTP status.
        message: one sentence for the client's developer.
        param: the invalid field, if any.
        code: kind of error, for programs; by default, it follows from the status.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code or _CODES.get(status, "error")

    @property
    def body(self) -> dict[str, dict[str, str | None]]:
        """The error object for the client."""
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _KINDS.get(self.status, usual)
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def body_bytes(self) -> bytes:
        """The error object as JSON."""
        return msgspec.json.encode(self.body)


def json_response(body: JsonValue, status: int = 200) -> Response:
    """A response with ``body`` as JSON."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """The response to a refused request."""
    headers = {"retry-after": "1"} if error.status in (429, 503) else None
    return Response(error.body_bytes, error.status, headers=headers, media_type="application/json")
