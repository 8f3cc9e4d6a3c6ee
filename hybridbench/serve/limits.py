"""Limits on clients: who may connect, how much they may send, and how long that may take."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from starlette.requests import Request

from hybridbench.foundation.foreign import MIB
from hybridbench.serve.errors import ApiError


@dataclass(frozen=True)
class Limits:
    """Limits beyond which a request is refused or its connection closed.

    Args:
        body_bytes: size of a request's body.
        read_s: time for a whole request to arrive, from its first byte or from the connection.
        write_s: time for which a client with full buffers may read nothing.
        idle_s: time between two requests on a connection.
        connections: number of open connections.
        generations: number of prompts that run or wait in the engine.
    """

    body_bytes: int = 2 * MIB
    read_s: float = 20.0
    write_s: float = 60.0
    idle_s: float = 30.0
    connections: int = 2000
    generations: int = 2000


def is_loopback(host: str) -> bool:
    """Whether an address or a name is this machine's loopback."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    # A server on ``::`` sees IPv4 clients at addresses mapped into IPv6.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def check_origin(request: Request) -> None:
    """Refuse requests that a foreign web page may have sent to a server on the loopback interface.

    Such a page must not read answers through a name that resolves to this machine (DNS rebinding).
    It must not post either, which it could do without reading the answer.

    Raises:
        ApiError: the Host header or the origin is not on this machine.
    """
    host = request.headers.get("host")
    # Only HTTP/1.0 clients may omit it, and browsers do not use HTTP/1.0.
    if host is not None and not is_loopback(_host_of(host)):
        raise ApiError(403, "the Host header must name this machine, such as localhost.")
    origin = request.headers.get("origin")
    if origin is not None and not is_loopback(_host_of(origin)):
        raise ApiError(403, "this server takes no requests from pages of other hosts.")


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of ``request``.

    Raises:
        ApiError: it is too long.
    """
    too_long = ApiError(
        413, f"the body is longer than {limits.body_bytes // MIB} MiB; send less at a time."
    )
    announced = request.headers.get("content-length", "")
    is_too_long = announced.isdecimal() and int(announced) > limits.body_bytes
    if is_too_long and "expect" in request.headers:
        # Such a client waits for a response before it sends the body.
        raise too_long
    body = bytearray()
    async for part in request.stream():
        # Read a body that is too long to its end: a client whose connection is closed while it
        # sends never sees the answer.
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
