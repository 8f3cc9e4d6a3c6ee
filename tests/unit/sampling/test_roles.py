"""The roles of processes, from their command lines."""

from __future__ import annotations

import pytest

from hybridbench.sampling.roles import role_of_command

SPAWN = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=7, pipe_handle=16)"
TRACKER = "from multiprocessing.resource_tracker import main;main(6)"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("VLLM::EngineCore", ""), "VLLM::EngineCore"),
        (("VLLM::Worker_TP0",), "VLLM::Worker_TP0"),
        (("sglang::scheduler",), "sglang::scheduler"),
        (("ray::RolloutWorker.train()",), "ray::RolloutWorker.train"),
        (("gunicorn: worker [app:main]",), "gunicorn: worker"),
        (("nginx: master process /usr/sbin/nginx -g daemon off;",), "nginx: master"),
        (("/usr/bin/python3.11", "-u", "/srv/serve.py", "--port", "1"), "serve"),
        (("python3", "-W", "error", "-X", "dev", "serve.py"), "serve"),
        (("python", "-m", "sglang.launch_server", "--port", "1"), "sglang.launch_server"),
        (("python", "-Im", "http.server"), "http.server"),
        (("python", "-mhttp.server"), "http.server"),
        (("python3.13t", "-c", SPAWN, "--multiprocessing-fork"), "multiprocessing.spawn"),
        (("python", "-B", "-c", TRACKER), "multiprocessing.resource_tracker"),
        (("python", "-c", "key = 'hf_abcdefghijk'"), "python"),
        (("python", "/env/bin/vllm", "serve", "m", "--api-key", "x"), "vllm"),
        (("/usr/bin/python3",), "python3"),
        (("/opt/llama-server", "--port", "1"), "llama-server"),
        (("-bash",), "-bash"),
        (("",), "unnamed"),
        ((), "unnamed"),
        (("\x1b[31m",), "[31m"),
        (("worker: hf_abcdefghijk",), "worker: [redacted]"),
        (("a" * 300,), "a" * 60),
    ],
)
def test_a_role_is_what_a_process_calls_itself_or_else_its_program(
    command: tuple[str, ...], expected: str
) -> None:
    assert role_of_command(command) == expected
