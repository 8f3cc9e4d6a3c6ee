"""The live report: what each address returns, to whom, and how often the run is judged for it."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.records.manifest import manifest_from_json
from hybridbench.records.processes import ProcessSample
from hybridbench.report import live_server
from hybridbench.report.live_server import HOST, LiveRun, last_values, make_server
from hybridbench.rundir.writer import RunWriter
from tests.unit.report.synthetic import manifest


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    with RunWriter(tmp_path / "run", manifest_from_json(manifest()), FakeClock()) as writer:
        writer.sample(1.0, "load", {"rss_anon_swap_bytes": 1e8, "pool.kv.available": 7.0})
        writer.sample(2.0, "load", {"rss_anon_swap_bytes": 2e8, "events.finishes": 3.0})
    return tmp_path / "run"


@contextmanager
def served(run: LiveRun) -> Iterator[int]:
    listening = socket.create_server((HOST, 0))
    port = int(listening.getsockname()[1])
    server = make_server(run, listening)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asked(port: int, path: str, host: str | None = None) -> tuple[int, dict[str, str], str]:
    with closing(http.client.HTTPConnection(HOST, port, timeout=60)) as connection:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


def test_the_page_says_that_it_is_not_the_last_word_and_renews_itself(run_dir: Path) -> None:
    with served(LiveRun(run_dir)) as port:
        status, headers, text = asked(port, "/")

    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert int(headers["Refresh"]) >= 10
    assert "so far; run in progress" in text
    assert "exit code" not in text


def test_the_verdict_so_far_is_json(run_dir: Path) -> None:
    with served(LiveRun(run_dir)) as port:
        _, headers, text = asked(port, "/verdict.json")

    assert headers["Content-Type"].startswith("application/json")
    assert json.loads(text)["schema"] == "hybridbench.verdict/1"


def test_metrics_are_the_newest_values_with_families_by_label(run_dir: Path) -> None:
    with served(LiveRun(run_dir)) as port:
        status, _, text = asked(port, "/metrics?x=1")

    assert status == 200
    lines = text.splitlines()
    assert "hybridbench_rss_anon_swap_bytes 200000000" in lines
    assert 'hybridbench_pool_available_slots{pool="kv"} 7' in lines
    assert 'hybridbench_events_total{event="finishes"} 3' in lines
    assert "# TYPE hybridbench_events_total counter" in lines
    assert "hybridbench_run_seconds 2" in lines


def test_metrics_has_the_values_of_every_process_of_a_watched_server(tmp_path: Path) -> None:
    engine = ProcessSample("EngineCore", 7, 0.0, m={"rss_anon_swap_bytes": 3e8})
    with RunWriter(tmp_path / "run", manifest_from_json(manifest()), FakeClock()) as writer:
        writer.sample(1.0, "load", {"rss_anon_swap_bytes": 1e8}, processes=[engine])

    with served(LiveRun(tmp_path / "run")) as port:
        text = asked(port, "/metrics")[2]

    assert "hybridbench_rss_anon_swap_bytes 100000000" in text.splitlines()
    assert 'hybridbench_rss_anon_swap_bytes{role="EngineCore"} 300000000' in text.splitlines()


def test_a_torn_line_does_not_hide_the_samples_before_it(run_dir: Path) -> None:
    with (run_dir / "samples.jsonl").open("a") as file:
        file.write('{"t": 3.0, "m": {"rss_an')

    assert last_values(run_dir / "samples.jsonl")[0] == 2.0


def test_only_the_loopback_names_are_answered_and_only_known_addresses(run_dir: Path) -> None:
    with served(LiveRun(run_dir)) as port:
        stranger = asked(port, "/metrics", host=f"elsewhere.example:{port}")[0]
        local = asked(port, "/metrics", host=f"localhost:{port}")[0]
        unknown = asked(port, "/samples.jsonl")[0]

    assert (stranger, local, unknown) == (403, 200, 404)


def test_nothing_stored_yet_is_told_and_the_server_goes_on(tmp_path: Path) -> None:
    with served(LiveRun(tmp_path)) as port:
        first = asked(port, "/")
        second = asked(port, "/metrics")

    assert first[0] == second[0] == 503
    assert first[2].startswith("Nothing to see yet: ")
    assert "Refresh" in first[1]


def test_a_run_is_judged_once_for_all_who_look_and_again_when_it_has_aged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = FakeClock()
    judged: list[Path] = []

    def slow(run_dir: Path) -> tuple[str, str]:
        judged.append(run_dir)
        clock.advance(3.0)
        return f"page {len(judged)}", "{}"

    monkeypatch.setattr(live_server, "_judged", slow)
    page = LiveRun(tmp_path, clock.monotonic_s).answers()["/"]

    first, second = page().text, page().text
    clock.advance(59.0)
    third = page().text
    clock.advance(2.0)
    fourth = page().text

    # After three seconds of judging, the page is reused for a minute.
    assert [first, second, third, fourth] == ["page 1", "page 1", "page 1", "page 2"]


def test_the_server_ends_with_its_parent(run_dir: Path) -> None:
    listening = socket.create_server((HOST, 0))
    number = listening.fileno()
    serve_it = [sys.executable, "-m", "hybridbench.report.live_server", str(run_dir), str(number)]
    # The parent of the server is a shell that ends once its own input does.
    shell = subprocess.Popen(
        ["sh", "-c", '"$@" & echo $!; read -r _', "sh", *serve_it],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(number,),
    )
    assert shell.stdout is not None
    ending = os.pidfd_open(int(shell.stdout.readline()))
    port = int(listening.getsockname()[1])
    assert asked(port, "/metrics")[0] == 200
    listening.close()

    shell.communicate(b"\n", timeout=60)

    ended, _, _ = select.select([ending], [], [], 60)
    os.close(ending)
    assert ended
