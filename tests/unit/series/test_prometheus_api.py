"""A Prometheus server is queried over HTTP, and each kind of failure is one sentence."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.foundation.errors import ConfigError, UsageError
from hybridbench.series.prometheus_api import RangeQuery, read_prometheus


class Server(BaseHTTPRequestHandler):
    """Two pods, one of which leaks; other queries are refused as Prometheus refuses them."""

    asked: ClassVar[list[dict[str, list[str]]]] = []

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        self.asked.append(asked)
        query = asked["query"][0]
        start, end, step = (float(asked[key][0]) for key in ("start", "end", "step"))
        times = [start + i * step for i in range(int((end - start) / step))]
        pods = {"a": 0.0, "b": 300 * 2**20 / 3600}
        result = [
            {
                "metric": {"__name__": query, "pod": pod, "job": "vllm"},
                "values": [[t, str(8e9 + rate * (t - start))] for t in times],
            }
            for pod, rate in pods.items()
        ]
        answers = {
            "rss_bytes": (
                200,
                {"status": "success", "data": {"resultType": "matrix", "result": result}},
            ),
            "nothing": (200, {"status": "success", "data": {"resultType": "matrix", "result": []}}),
            "rss{": (400, {"status": "error", "error": "parse error: unexpected end"}),
        }
        code, document = answers.get(query, (502, "no JSON"))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_set_of_labels_is_a_row_of_the_verdict(url: str) -> None:
    command = ["judge", "--prometheus", url, "--query", "rss_bytes", "--last", "6h"]

    result = CliRunner().invoke(app, [*command, "--format", "json"])

    assert result.exit_code == 10, result.output
    [file] = json.loads(result.output)["files"]
    assert {row["metric"]: row["verdict"] for row in file["metrics"]} == {
        'rss_bytes{pod="a"}': "CLEAN",
        'rss_bytes{pod="b"}': "LEAK",
    }
    (asked,) = Server.asked
    assert float(asked["end"][0]) - float(asked["start"][0]) == pytest.approx(6 * 3600)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("rss{", "answered 400: parse error: unexpected end"),
        ("other", "answered 502: Bad Gateway"),
        ("nothing", "holds no series"),
    ],
)
def test_a_query_that_finds_nothing_or_is_refused_is_one_sentence(
    url: str, query: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read_prometheus(RangeQuery(url, query, 3600.0, 1.8e9))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1]:1/prom/api/v1/"])
def test_a_server_that_is_not_there_is_one_sentence(url: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be queried: .*(refused|assign|reachable)"):
        read_prometheus(RangeQuery(url, "rss_bytes", 3600.0, 1.8e9))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "prometheus:9090", "http://", "http://["])
def test_what_is_not_an_address_of_http_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        read_prometheus(RangeQuery(url, "rss_bytes", 3600.0, 1.8e9))


@pytest.mark.parametrize(("last_s", "step_s"), [(3600.0, 10.0), (86400.0, 29.0), (2.6e6, 867.0)])
def test_the_step_keeps_below_what_prometheus_answers(last_s: float, step_s: float) -> None:
    assert RangeQuery("http://x", "q", last_s, 1.8e9).step_s == step_s


@pytest.mark.parametrize(
    "words", [[], ["--query", "x"], ["--prometheus", "http://x"], ["a.csv", "--only"]]
)
def test_files_or_a_server_with_a_query_are_needed(words: list[str]) -> None:
    assert isinstance(CliRunner().invoke(app, ["judge", *words]).exception, UsageError)
