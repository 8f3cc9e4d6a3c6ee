"""Query series that a Prometheus server recorded, over its HTTP API."""

from __future__ import annotations

import http.client
import math
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import BinaryIO, cast
from urllib.parse import urlencode

from hybridbench.foundation.errors import ConfigError, ErrorCode, UsageError
from hybridbench.foundation.foreign import (
    GIB,
    ForeignDataError,
    is_http_address,
    json_value,
    read_stream,
)
from hybridbench.foundation.network import network_fault
from hybridbench.series.files import SeriesFile, series_of
from hybridbench.series.source import Source

_TIMEOUT_S = 30.0
_BYTES_MAX = GIB // 2
# Prometheus refuses more than 11,000 points per series; an estimate needs fewer.
_POINTS_MAX = 3000
_STEP_S_MIN = 10.0


@dataclass(frozen=True)
class RangeQuery:
    """A query over the last ``last_s`` seconds before ``now_s`` (epoch seconds).

    Raises:
        UsageError: ``url`` is not an HTTP address.
    """

    url: str
    query: str
    last_s: float
    now_s: float

    def __post_init__(self) -> None:
        if not is_http_address(self.url):
            raise UsageError(
                f"{self.url}: is not an address; write http://HOST:9090.", option="--prometheus"
            )

    @property
    def step_s(self) -> float:
        """The time between two points of a series."""
        return max(_STEP_S_MIN, float(math.ceil(self.last_s / _POINTS_MAX)))

    @property
    def request_url(self) -> str:
        """The URL to request."""
        base = self.url.rstrip("/").removesuffix("/api/v1")
        start_s = self.now_s - self.last_s
        wanted = {"query": self.query, "start": start_s, "end": self.now_s, "step": self.step_s}
        return f"{base}/api/v1/query_range?{urlencode(wanted)}"


def read_prometheus(query: RangeQuery) -> SeriesFile:
    """Run ``query`` and return one column per set of labels.

    Raises:
        ConfigError: the server cannot be reached, refuses the query, or returns no series.
    """
    request = urllib.request.Request(query.request_url)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            text = read_stream(cast("BinaryIO", answer), _BYTES_MAX).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        raise _failed(query, f"answered {error.code}: {_reason(error)}") from error
    except (OSError, http.client.HTTPException, ForeignDataError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        said = network_fault(reason) if isinstance(reason, BaseException) else reason
        raise _failed(query, f"cannot be queried: {said}") from error
    return series_of(Source(f"{query.query} of {query.url}"), text)


def _failed(query: RangeQuery, what: str) -> ConfigError:
    return ConfigError(f"--prometheus {query.url} {what}.", code=ErrorCode.NOT_READABLE)


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the reason that Prometheus gave for refusing the query, else the HTTP reason."""
    try:
        said = json_value(error.read(10_000).decode("utf-8", "replace"))
    except (ForeignDataError, OSError):
        said = None
    text = str(said.get("error", "")) if isinstance(said, dict) else ""
    return (text or str(error.reason)).rstrip(".")
