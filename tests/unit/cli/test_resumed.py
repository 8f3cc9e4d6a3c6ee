"""Options that may accompany ``--resume``."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.cli.resumed import check_agrees
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.errors import UsageError
from hybridbench.records.events import Phase
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import manifest_from_json
from hybridbench.rundir.writer import RunWriter
from tests.unit.cli.conftest import CommandLine
from tests.unit.cli.test_cli import one_sentence

pytestmark = pytest.mark.usefixtures("catalog_in_this_process")

MANIFEST: dict[str, JsonValue] = {
    "run_id": "r1",
    "started_wall_s": 1_700_000_000.0,
    "planned_duration_s": 7200.0,
    "model": {"name": "qwen3-next", "device": "cpu", "dtype": "float32"},
    "profile": {"name": "chat-churn", "source": "chat-churn", "resolved": {}},
    "seed": 1,
    "defects": ["lru-reference-cycle"],
    "versions": {"hybridbench": "0.1.0"},
    "options": {"watchdog_s": 30.0},
    "engine_hash": "abc",
}


def test_options_that_say_what_the_manifest_says_may_stay() -> None:
    check_agrees(
        manifest_from_json(MANIFEST),
        {
            "resume": Path("r1"),
            "ui": "plain",
            "stop": "never",
            "model": "qwen3-next",
            "profile": ["chat-churn"],
            "duration": "2h",
            "watchdog": "30s",
            "defect": ["lru-reference-cycle"],
            "seed": 1,
        },
    )


def test_a_defect_that_is_a_file_may_be_named_without_the_slugs() -> None:
    manifest: dict[str, JsonValue] = {**MANIFEST, "defects": ["lru-reference-cycle", "mine.py"]}

    check_agrees(manifest_from_json(manifest), {"defect": ["mine.py"]})
    check_agrees(manifest_from_json(manifest), {"defect": ["moved/mine.py", "lru-reference-cycle"]})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memray": "2m"}, "--memray 2m"),
        (
            {"model": "qwen3-moe"},
            r"--model qwen3-moe: cannot be changed on --resume \(this run: qwen3-next",
        ),
        ({"duration": "3h"}, r"--duration 3h: cannot be changed on --resume \(this run: 2h"),
        ({"duration": "1x"}, "--duration: "),
        ({"seed": 2}, r"--seed 2: cannot be changed on --resume \(this run: 1"),
        (
            {"defect": ["slow-step", "mine.py"]},
            r"--defect slow-step, mine.py: cannot be changed on --resume \(this run: lru",
        ),
        (
            {"defect": []},
            r"--defect none: cannot be changed on --resume \(this run: lru-reference-cycle",
        ),
        ({"set_": ["pools.mamba_slots=8"]}, "--set cannot be combined with --resume"),
        ({"length_scale": "1/2"}, "--length-scale cannot be combined with --resume"),
    ],
)
def test_what_would_make_it_another_run_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_agrees(manifest_from_json(MANIFEST), given)


def test_on_the_command_line_each_refusal_is_one_sentence(
    hybridbench: CommandLine, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with RunWriter(run, manifest_from_json(MANIFEST), FakeClock()) as writer:
        writer.event(Phase(name="done", t_s=5.0))
    before = sorted(path.name for path in run.iterdir())

    finished = one_sentence(hybridbench("soak", "--resume", str(run)))
    other = one_sentence(hybridbench("soak", "--resume", str(run), "--seed", "7"))
    absent = one_sentence(hybridbench("soak", "--resume", str(tmp_path / "absent")))

    assert "ended as planned and has nothing left to resume" in finished
    assert "--seed 7: cannot be changed on --resume (this run: 1)" in other
    assert absent.rstrip(".").endswith("absent does not exist")
    assert sorted(path.name for path in run.iterdir()) == before
