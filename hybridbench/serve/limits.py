"""What a client may cost: who may ask, how much it may send and how long it may take for that."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from starlette.requests import Request

from hybridbench.foundation.foreign import MIB
from hybridbench.serve.errors import ApiError


@dataclass(frozen=True)
class Limits:
    """Beyond these a request is refused, or its connection closed.

    Args:
        body_bytes: of one request.
        read_s: for a whole request to arrive, from its first byte or from the connection.
        write_s: without a byte taken by a client whose buffers are full.
        idle_s: of a connection between two requests.
        connections: open at a time.
        generations: prompts that run or wait in the engine.
    """

    body_bytes: int = 2 * MIB
    read_s: float = 20.0
    write_s: float = 60.0
    idle_s: float = 30.0
    connections: int = 2000
    generations: int = 2000


def is_loopback(host: str) -> bool:
    """Whether an address or a name belongs to this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_origin(request: Request) -> None:
    """Refuse what a web page from elsewhere may have sent to a server on the loopback interface.

    A name that resolves to this machine must not let such a page read answers (DNS rebinding), and
    a page may post without reading.

    Raises:
        ApiError: the Host header or the origin is not on this machine.
    """
    host = request.headers.get("host")
    # Only clients of HTTP/1.0 may leave it out, and no browser is one.
    if host is not None and not is_loopback(_host_of(host)):
        raise ApiError(403, "the Host header must name this machine, such as localhost.")
    origin = request.headers.get("origin")
    if origin is not None and not is_loopback(_host_of(origin)):
        raise ApiError(403, "this server takes no requests from pages of other hosts.")


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of ``request``.

    Raises:
        ApiError: it is longer than it may be.
    """
    too_long = ApiError(
        413, f"the body is longer than {limits.body_bytes // MIB} MiB; send less at a time."
    )
    announced = request.headers.get("content-length", "")
    is_too_long = announced.isdecimal() and int(announced) > limits.body_bytes
    if is_too_long and "expect" in request.headers:
        # Such a client waits for a word before it sends.
        raise too_long
    body = bytearray()
    async for part in request.stream():
        # What is too long is read to its end: a client that still sends when its connection is
        # closed never sees the answer.
        is_too_long = is_too_long or len(body) + len(part) > limits.body_bytes
        if not is_too_long:
            body += part
    if is_too_long:
        raise too_long
    return bytes(body)


def _host_of(place: str) -> str:
    """The host in a Host or Origin header, without scheme and port; empty for none."""
    host = place.rpartition("://")[2]
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
