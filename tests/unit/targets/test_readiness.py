"""Whether a server is ready: tried on servers that are, that become so, and that never do."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hybridbench.targets.readiness import (
    Asked,
    NotReadyError,
    OtherServerError,
    Readiness,
    answers,
    completion,
    completion_or_page,
    post,
)

Page = tuple[int, object]
MODELS: Page = (200, {"data": [{"id": "tiny"}]})
CHOICE: Page = (200, {"choices": [{"text": "a"}]})


class Server(ThreadingHTTPServer):
    daemon_threads = True
    pages: Mapping[str, Page]
    asked: list[tuple[str, object]]
    keys: list[str | None]
    moved: str = ""  # the server that answers everything instead

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def _answer(self, body: object) -> None:
        self.server.asked.append((self.path, body))
        self.server.keys.append(self.headers["Authorization"])
        if self.server.moved and not self.path.startswith("/moved"):
            self.send_response(307)
            self.send_header("Location", f"{self.server.moved}/moved{self.path}")
            self.end_headers()
            return
        status, page = self.server.pages.get(self.path, (404, {}))
        text = page if isinstance(page, str) else json.dumps(page)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def serving(pages: Mapping[str, Page]) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.pages, server.asked, server.keys = pages, [], []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


def test_a_few_tokens_of_the_first_model_are_asked_for() -> None:
    with serving({"/v1/models": MODELS, "/v1/completions": CHOICE}) as server:
        completion(server.url)
        path, body = server.asked[-1]
    assert path == "/v1/completions"
    assert isinstance(body, dict)
    assert (body["model"], body["max_tokens"]) == ("tiny", 4)
    # A check must not end a user's server, and very short prompts are edge cases for kernels.
    assert len(body["prompt"].split()) > 3


def test_a_server_of_chats_alone_is_asked_for_one() -> None:
    with serving({"/v1/models": MODELS, "/v1/chat/completions": CHOICE}) as server:
        completion(server.url)
        assert server.asked[-1][0] == "/v1/chat/completions"


@pytest.mark.parametrize("answer", [(500, {}), (503, {}), (200, {}), (200, "no JSON"), (200, [])])
def test_a_health_page_does_not_make_a_server_ready(answer: Page) -> None:
    healthy: Page = (200, "ok")
    pages = {"/health": healthy, "/v1/models": MODELS, "/v1/completions": answer}
    with serving(pages) as server, pytest.raises(NotReadyError):
        completion(server.url)


@pytest.mark.parametrize("models", [(404, {}), (200, {"data": []}), (200, "<html>"), (200, [1])])
def test_a_server_of_another_kind_is_told_apart(models: Page) -> None:
    pages = {"/v1/models": models, "/metrics": (200, "up 1")}
    with serving(pages) as server:
        with pytest.raises(OtherServerError):
            completion(server.url)
        completion_or_page(f"{server.url}/metrics")
        assert server.asked[-1][0] == "/metrics"


def test_a_server_below_a_path_with_its_metrics_elsewhere_is_asked_where_it_serves() -> None:
    pages = {"/openai/v1/completions": CHOICE}
    with serving(pages) as server, serving({"/metrics": (200, "up 1")}) as other:
        page = f"{other.url}/metrics"
        completion_or_page(page, base=f"{server.url}/openai", model="tiny")

        assert [path for path, _ in server.asked] == ["/openai/v1/completions"]
        assert not other.asked


def test_a_server_without_an_interface_and_a_page_is_told_of_by_both() -> None:
    with serving({}) as server, pytest.raises(NotReadyError) as raised:
        completion_or_page(f"{server.url}/metrics", base=f"{server.url}/openai")

    assert "/openai/v1/models: HTTP status 404; " in str(raised.value)
    assert "/metrics: HTTP status 404" in str(raised.value)


def test_a_page_that_is_not_there_is_no_answer() -> None:
    with serving({}) as server:
        with pytest.raises(NotReadyError, match="404"):
            answers(f"{server.url}/ready")
        with pytest.raises(NotReadyError, match="404"):
            post(f"{server.url}/flush_cache")


def test_nobody_there_is_not_ready() -> None:
    with serving({}) as server:
        url = server.url
    with pytest.raises(NotReadyError, match="refused"):
        completion(url)


@pytest.mark.parametrize(
    ("user", "sent"), [("", "Bearer sk-something"), ("me:se%40cret@", "Basic bWU6c2VAY3JldA==")]
)
def test_the_key_is_sent_or_the_user_of_the_address(user: str, sent: str) -> None:
    seen = []

    class Keyed(Handler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            super().do_GET()

    with Server(("127.0.0.1", 0), Keyed) as server:
        server.pages, server.asked = {"/v1/models": (500, {})}, []
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(NotReadyError) as raised:
            completion(server.url.replace("//", f"//{user}"), "sk-something")
    assert seen == [sent]
    assert "cret" not in str(raised.value)


def until(done: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + 20.0
    while not done():
        assert time.monotonic() < limit_s
        threading.Event().wait(0.01)


def test_it_is_asked_until_it_answers() -> None:
    left = [3]

    def ask() -> None:
        left[0] -= 1
        if left[0]:
            raise NotReadyError("still loading")

    ready = Readiness(ask)
    ready.start()
    until(lambda: ready.done)
    assert not ready.failed
    assert left == [0]


def test_a_server_that_does_not_speak_http_yet_is_asked_again() -> None:
    replies = [b"still loading\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]

    def answer(listening: socket.socket) -> None:
        for reply in replies:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, args=(listening,), daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/health"
        ready = Readiness(lambda: answers(url))
        ready.start()
        until(lambda: ready.done)

    assert not ready.failed


def test_one_question_that_fails_says_why() -> None:
    def ask() -> None:
        raise NotReadyError("HTTP status 500")

    asked = Asked(ask)
    asked.start()
    until(lambda: asked.done)
    assert asked.failed == "HTTP status 500"


def test_a_server_is_asked_without_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving({"/health": (200, {})}) as server:
        answers(f"{server.url}/health")

        assert server.asked == [("/health", None)]


def test_a_key_that_cannot_be_sent_is_in_no_message() -> None:
    with pytest.raises(NotReadyError, match="the key cannot be sent") as refused:
        completion("http://127.0.0.1:1", "sk-canary\n")

    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(("pages", "is_elsewhere"), [({}, True), ({"/metrics": (503, {})}, False)])
def test_a_server_without_the_pages_is_told_from_one_that_is_not_ready(
    pages: Mapping[str, tuple[int, object]], is_elsewhere: bool
) -> None:
    with serving(pages) as server:
        asked = Asked(lambda: completion_or_page(f"{server.url}/metrics"))
        asked.start()
        asked._thread.join()

    assert (asked.reached, asked.is_elsewhere) == (True, is_elsewhere)


def test_a_server_that_accepts_and_does_not_answer_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hybridbench.targets.readiness._ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asked = Asked(lambda: completion(f"http://127.0.0.1:{listening.getsockname()[1]}"))
        before = asked.reached
        asked.start()
        asked._thread.join()

    assert (before, asked.reached, asked.done) == (None, True, True)
    assert asked.failed.endswith("no whole answer in 0.05 s")


def test_json_that_is_too_deep_is_no_list_of_models() -> None:
    with (
        serving({"/v1/models": (200, "[" * 10**5)}) as server,
        pytest.raises(OtherServerError, match="lists no model"),
    ):
        completion(server.url)


def test_a_request_that_is_sent_elsewhere_takes_its_body_there_but_no_key_to_another_server() -> (
    None
):
    pages = {"/moved/v1/models": MODELS, "/moved/v1/completions": CHOICE}
    with serving(pages) as server, serving(pages) as other:
        server.moved = server.url
        completion(server.url, "sk-canary")
        own, server.keys = server.keys, []
        server.moved = other.url
        completion(server.url, "sk-canary")

    assert [path for path, body in other.asked if body] == ["/moved/v1/completions"]
    assert set(own) == set(server.keys) == {"Bearer sk-canary"}
    assert set(other.keys) == {None}
