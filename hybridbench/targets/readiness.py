"""Check that a server is ready: it has answered one real request.

A health page is not enough: servers say "healthy" there and die at their first request.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from typing import IO, Final
from urllib.parse import unquote, urlsplit

from hybridbench.foundation.network import network_fault

_POLL_S: Final = 0.5
_ANSWER_S: Final = 60.0
_BODY_MOST: Final = 1 << 20
# A one-token prompt crashes vLLM 0.32.0's AMX attention kernel with an illegal instruction.
_PROMPT: Final = "Hello, how are you today?"
_TOKENS: Final = 4
# Statuses for a URL outside this interface: the server has another interface.
_NOT_HERE: Final = (404, 405, 501)


class NotReadyError(Exception):
    """The server is not ready; the message has its answer."""


class NotReachedError(NotReadyError):
    """There was no connection to the server."""


class NoSuchPageError(NotReadyError):
    """The server answers, but has nothing at the address."""


class OtherServerError(Exception):
    """The server lacks the interface that was tried."""


class Asked:
    """One request to a server, made in its own thread so that the caller can continue.

    Attributes:
        failed: why there was no good answer; empty if there was one.
        reached: whether a server has accepted a connection; None while the first one is tried.
        is_elsewhere: whether the last answer was that there is nothing at the address.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failed = "it was not asked yet"
        self.reached: bool | None = None
        self.is_elsewhere = False
        self.done = False

    def start(self) -> None:
        """Start the request."""
        self._thread.start()

    def close(self) -> None:
        """Make no more requests; one in progress is not awaited."""
        self._over.set()

    def _run(self) -> None:
        self._try()
        self.done = True

    def _try(self) -> None:
        try:
            self._ask()
        except NotReachedError as error:
            self.failed, self.reached = str(error), bool(self.reached)
            self.is_elsewhere = False
        except NotReadyError as error:
            self.failed, self.reached = str(error), True
            self.is_elsewhere = isinstance(error, NoSuchPageError)
        else:
            self.failed, self.reached = "", True


class Readiness(Asked):
    """Repeats the request until the answer is good; then it is ``done``."""

    def _run(self) -> None:
        while not self._over.wait(_POLL_S):
            self._try()
            if not self.failed:
                self.done = True
                return


def completion_or_page(page: str, key: str = "", *, base: str = "", model: str = "") -> None:
    """Request a few tokens from a server, or its ``page`` if it is not OpenAI-compatible.

    Args:
        page: URL of its metrics.
        key: for the server's interface; empty for none.
        base: as for ``completion``; empty for the host of ``page``.
        model: as for ``completion``.

    Raises:
        NotReadyError: there was no good answer.
    """
    parts = urlsplit(page)
    try:
        completion(base or f"{parts.scheme}://{parts.netloc}", key, model)
    except OtherServerError as other:
        try:
            answers(page)
        except NotReadyError as error:
            raise type(error)(f"{other}; {error}") from error


def answers(url: str) -> None:
    """Request ``url``.

    Raises:
        NotReadyError: the answer does not have a 2xx status.
        NoSuchPageError: the server has no such page.
    """
    try:
        _fetch(url)
    except OtherServerError as error:
        raise NoSuchPageError(str(error)) from error


def post(url: str) -> None:
    """Send an empty POST to ``url``.

    Raises:
        NotReadyError: the answer does not have a 2xx status.
    """
    try:
        _fetch(url, {})
    except OtherServerError as error:
        raise NotReadyError(str(error)) from error


def completion(base: str, key: str = "", model: str = "") -> None:
    """Request a few tokens from an OpenAI-compatible server.

    Args:
        base: such as ``http://127.0.0.1:8000``; the interface is below its path.
        key: sent as a bearer token; empty for none.
        model: the model's name on the server; empty for the first one listed.

    Raises:
        NotReadyError: the server did not answer with a completion.
        OtherServerError: it lists no models, or has no completions.
    """
    if not model:
        models_url = f"{base}/v1/models"
        model = _first_model(_fetch(models_url, key=key), models_url)
    asked: dict[str, object] = {"model": model, "max_tokens": _TOKENS}
    try:
        answer = _fetch(f"{base}/v1/completions", {**asked, "prompt": _PROMPT}, key)
    except OtherServerError:
        chat = {**asked, "messages": [{"role": "user", "content": _PROMPT}]}
        answer = _fetch(f"{base}/v1/chat/completions", chat, key)
    if not isinstance(answer, dict) or not answer.get("choices"):
        raise NotReadyError(f"{_without_user(base)[0]} completes with an answer without choices")


def _first_model(answer: object, url: str) -> str:
    models = answer.get("data") if isinstance(answer, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    if not isinstance(first, dict) or not isinstance(first.get("id"), str):
        raise OtherServerError(f"{_without_user(url)[0]} lists no model")
    return str(first["id"])


def _fetch(url: str, body: object | None = None, key: str = "") -> object:
    """Return the JSON of the answer; None if it is not JSON."""
    url, authorization = _without_user(url)
    request = urllib.request.Request(url, method="GET" if body is None else "POST")  # noqa: S310 - http(s) alone, checked with the option
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    if authorization or key:
        request.add_header("Authorization", authorization or f"Bearer {key}")
    try:
        # As for metrics: the server is near, and a proxy from the environment may not reach it.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Redirects)
        with opener.open(request, timeout=_ANSWER_S) as answer:
            text = answer.read(_BODY_MOST)
    except urllib.error.HTTPError as error:
        with error:
            if error.code in _NOT_HERE:
                raise OtherServerError(f"{url}: HTTP status {error.code}") from error
            raise NotReadyError(f"{url}: HTTP status {error.code}") from error
    except http.client.HTTPException as error:
        # Its text may be what the server wrote.
        raise NotReadyError(f"{url}: its answer is not HTTP") from error
    except OSError as error:
        raise _unanswered(url, error) from error
    except ValueError as error:
        # Its text has the header, and so the key.
        raise NotReadyError(f"{url}: its address or the key cannot be sent") from error
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows the same redirects as the load client, and sends no key to another server."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        found: urllib.request.Request | None
        if code in (307, 308):
            # Other redirects turn a POST into a GET.
            found = urllib.request.Request(newurl, req.data, req.headers, method=req.get_method())  # noqa: S310 - http(s) alone, checked by the caller
        else:
            found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            found.remove_header("Authorization")
        return found


def _unanswered(url: str, error: OSError) -> NotReadyError:
    if isinstance(error, urllib.error.URLError):
        reason = error.reason
        said = network_fault(reason) if isinstance(reason, BaseException) else reason
        return NotReachedError(f"{url}: {said}")
    late = isinstance(error, TimeoutError)
    said = f"no whole answer in {_ANSWER_S:g} s" if late else network_fault(error)
    return NotReadyError(f"{url}: {said}")


def _without_user(url: str) -> tuple[str, str]:
    """Return ``url`` without its user, and the Authorization header for that user, if any."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    name, _, password = user.partition(":")
    told = f"{unquote(name)}:{unquote(password)}".encode()
    return parts._replace(netloc=host).geturl(), f"Basic {b64encode(told).decode()}"
