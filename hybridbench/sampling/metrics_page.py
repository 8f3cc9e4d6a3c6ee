"""Request a metrics page, within limits of time and size."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import suppress
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

from hybridbench.foundation.errors import UsageError
from hybridbench.foundation.foreign import MIB, is_http_address
from hybridbench.foundation.safe_output import visible
from hybridbench.sampling.scraped_page import NoMetricsError

PAGE_BYTES_MAX: Final = 8 * MIB
_REDIRECTS_MAX: Final = 3
_ACCEPT: Final = "text/plain; version=0.0.4"


class MetricsPage:
    """Reads one address within limits of time and size, and never through a proxy."""

    def __init__(self, url: str, patience_s: float) -> None:
        """Only remember the address.

        Raises:
            UsageError: ``url`` is not an HTTP address.
        """
        if not is_http_address(url):
            raise UsageError(
                "is not an HTTP URL; write http://HOST:PORT/metrics.", option="--metrics"
            )
        self._parts = urlsplit(url)
        self._patience_s = patience_s
        self._socket: socket.socket | None = None
        self._given_up = False
        self._one_at_a_time = threading.Lock()

    @property
    def address(self) -> str:
        """The address without user name and password."""
        host = self._parts.netloc.rpartition("@")[2]
        return visible(f"{self._parts.scheme}://{host}{self._parts.path}")

    def read(self) -> tuple[str, str]:
        """Return the text and its content type.

        Raises:
            OSError, http.client.HTTPException, NoMetricsError: there is no such page.
        """
        with self._one_at_a_time:
            self._given_up = False
            # A socket's timeout restarts with every byte; this one does not.
            alarm = threading.Timer(self._patience_s, self.give_up)
            alarm.daemon = True
            alarm.start()
            try:
                found = self._follow()
            except (OSError, http.client.HTTPException, ValueError) as error:
                if self._given_up or isinstance(error, TimeoutError):
                    raise self._too_late() from error
                if isinstance(error, ValueError):
                    raise NoMetricsError("its answer is not HTTP") from error
                raise
            finally:
                alarm.cancel()
            if self._given_up:  # a truncated answer may look like a whole one
                raise self._too_late()
            return found

    def give_up(self) -> None:
        """Cancel the pending request, from another thread."""
        self._given_up = True
        waiting = self._socket
        if waiting is not None:
            with suppress(OSError):
                waiting.shutdown(socket.SHUT_RDWR)

    def _too_late(self) -> TimeoutError:
        return TimeoutError(f"no whole answer in {self._patience_s:g} s")

    def _follow(self) -> tuple[str, str]:
        parts = self._parts
        for _ in range(_REDIRECTS_MAX):
            answer = self._ask(parts)
            if not isinstance(answer, str):
                return answer
            parts = urlsplit(urljoin(parts.geturl(), answer))
            if parts.hostname != self._parts.hostname:
                raise NoMetricsError("it redirects to another host")
        raise NoMetricsError("too many redirects")

    def _ask(self, parts: SplitResult) -> tuple[str, str] | str:
        """Return the text and its content type, or the address that it redirects to."""
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection = kind(parts.hostname or "", parts.port, timeout=self._patience_s)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.connect()
            self._socket = connection.sock
            if self._given_up:  # cancelled before there was a socket to shut down
                raise self._too_late()
            connection.request("GET", path, headers={"Accept": _ACCEPT, "Connection": "close"})
            response = connection.getresponse()
            if response.status in (301, 302, 303, 307, 308):
                return response.getheader("Location") or ""
            if response.status != http.client.OK:
                raise NoMetricsError(f"it answered {response.status}")
            content = response.read(PAGE_BYTES_MAX + 1)
            content_type = response.getheader("Content-Type") or ""
        finally:
            self._socket = None
            connection.close()
        if len(content) > PAGE_BYTES_MAX:
            raise NoMetricsError(f"it is longer than {PAGE_BYTES_MAX // MIB} MiB")
        if response.length:
            # A read of limited size does not raise this, and half a number still parses as one.
            raise http.client.IncompleteRead(content, response.length)
        if "html" in content_type or content.lstrip()[:1] == b"<":
            raise NoMetricsError("it is an HTML page")
        return content.decode("utf-8", "replace"), content_type


def reason_of(error: Exception) -> str:
    """Return why there is no page, in a few words."""
    if isinstance(error, http.client.IncompleteRead):
        return "its answer was cut off"
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        # Its text may be what the server wrote.
        return "its answer is not HTTP"
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(visible(words or type(error).__name__).split())[:160].rstrip(".")
