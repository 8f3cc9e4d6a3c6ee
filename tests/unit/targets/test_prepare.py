"""Preparing an engine from a folder of tiny wheels: every step, and each kind of refusal."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hybridbench.errors import ConfigError, ErrorCode, RunDirectoryError, WorkerFailedError
from hybridbench.targets import prepare as preparing
from hybridbench.targets.linked_packages import site_packages
from hybridbench.targets.prepare import prepare
from hybridbench.targets.prepared import entries, entry_of, locked, prepared_target, remove
from tests.unit.targets.tiny_index import OTHER, TINY, make_index, make_wheel, offline


class StoppedError(Exception):
    """Stands for whatever ends a process in the middle."""


class Prepared:
    """One target that was prepared, for all tests that leave it as it is."""

    def __init__(self, root: Path, index: Path) -> None:
        self.root, self.index, self.lines = root, index, list[str]()
        self.environment: Mapping[str, str] = offline(index)
        self.target = prepare(TINY, "1.0", root, self.environment, self.lines.append)
        self.home = root / "tiny-1.0"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("targets")
    return Prepared(folder / "root", make_index(folder / "index"))


def ignore(line: str) -> None:
    del line


def test_versions_and_hashes_of_all_packages_are_stored_with_who_built_it(tiny: Prepared) -> None:
    assert tiny.target.name == "tiny==1.0"
    assert tiny.target.note == "tiny-serve is built by Somebody."
    assert {(one.name, one.version) for one in tiny.target.packages} == {
        ("tiny-serve", "1.0"),
        ("tensors", "2.0+cpu"),
        ("json-part", "1.1"),
    }
    hashes = {hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in tiny.index.iterdir()}
    assert {one.sha256 for one in tiny.target.packages} <= hashes

    (entry,) = entries(tiny.root)
    assert entry.ready == tiny.target
    assert entry.partial is None


def test_its_start_script_takes_the_options_of_the_server(tiny: Prepared) -> None:
    assert tiny.target.servers == ["serve"]

    shown = subprocess.run(
        [tiny.home / "bin" / "serve", "--help"], capture_output=True, text=True, check=True
    )

    assert "--port" in shown.stdout


def test_a_target_that_is_ready_is_found_and_not_made_again(tiny: Prepared) -> None:
    lines: list[str] = []

    again = prepare(TINY, "1.0", tiny.root, {}, lines.append)

    assert again == tiny.target
    assert lines == []


@pytest.mark.parametrize(
    "command",
    [
        ["{home}/bin/serve", "--port", "8101"],
        ["env", "A=1", "{home}/bin/serve"],
        ["taskset", "-c", "1", "{home}/env/bin/python", "-m", "tiny_serve"],
        ["{root}/../link"],
    ],
)
def test_a_command_of_a_prepared_target_is_recognised(tiny: Prepared, command: list[str]) -> None:
    link = tiny.root.parent / "link"
    link.unlink(missing_ok=True)
    link.symlink_to(tiny.home / "bin" / "serve")

    found = prepared_target([word.format(home=tiny.home, root=tiny.root) for word in command])

    assert found == tiny.target


def test_another_command_belongs_to_no_target(tiny: Prepared, tmp_path: Path) -> None:
    damaged = tmp_path / "target.json"
    damaged.write_text("{")

    assert prepared_target(["python", "-m", "tiny_serve"]) is None
    assert prepared_target(["/bin/sh", "-c", "true"]) is None
    assert prepared_target([str(tmp_path / "serve")]) is None
    assert prepared_target([]) is None


@pytest.mark.parametrize(
    ("release", "code", "words"),
    [
        (
            "2.0",
            ErrorCode.NOT_FOUND,
            "tiny-serve 2.0 needs tensors==1.9+cpu, and pip finds only 2.0+cpu",
        ),
        ("9.9", ErrorCode.UNKNOWN_NAME, "pip finds no tiny-serve==9.9"),
        ("3.0", ErrorCode.MISMATCH, "tiny-serve 3.0 cannot be installed here"),
    ],
)
def test_what_cannot_be_had_is_refused_in_a_sentence_and_leaves_nothing(
    tiny: Prepared, tmp_path: Path, release: str, code: ErrorCode, words: str
) -> None:
    # A constraint of the user makes pip call a missing build a conflict.
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("tensors<=3\n")
    environment = {**tiny.environment, "PIP_CONSTRAINT": str(constraints)}

    with pytest.raises(ConfigError) as refused:
        prepare(TINY, release, tmp_path / "root", environment, ignore)

    assert refused.value.code == code
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list((tmp_path / "root").iterdir()) == []


def test_preparing_goes_on_where_it_was_stopped(
    tiny: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "_BATCH", 1)
    home = tmp_path / "tiny-1.0"
    lines: list[str] = []

    def stop_after_one(line: str) -> None:
        if "1 of 3 packages installed" in line:
            raise StoppedError

    with pytest.raises(StoppedError):
        prepare(TINY, "1.0", tmp_path, tiny.environment, stop_after_one)
    begun = entry_of(home)
    assert begun is not None
    assert begun.ready is None
    assert begun.partial is not None
    assert len(begun.partial.planned) == 3
    (installed,) = begun.partial.installed
    site = site_packages(home / "env")
    before = {path.name for path in site.iterdir()}
    assert not any(name.startswith("json_part") for name in before)
    # Another process may end in the middle of a package, whose METADATA is there and little else.
    half = site / "json_part-1.1.dist-info"
    half.mkdir()
    (half / "METADATA").write_text("Metadata-Version: 2.1\nName: json-part\nVersion: 1.1\n")

    ready = prepare(TINY, "1.0", tmp_path, tiny.environment, lines.append)

    assert installed == "tiny-serve"
    assert not any("making an environment" in line for line in lines)
    assert any("2 of 3 packages to install" in line for line in lines)
    assert (site / "json_part.py").is_file()
    assert ready.seconds > begun.partial.seconds
    assert entry_of(home).partial is None  # type: ignore[union-attr]


def test_a_wheel_that_changed_since_it_was_planned_is_not_installed(
    tiny: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = make_index(tmp_path / "index")
    environment = offline(index)

    def change(line: str) -> None:
        if "packages to install" in line:
            make_wheel(index, "json-part", "1.1", module="changed = True\n")

    with pytest.raises(ConfigError, match="run the same command again to go on"):
        prepare(TINY, "1.0", tmp_path / "root", environment, change)

    site = site_packages(tmp_path / "root" / "tiny-1.0" / "env")
    assert not (site / "json_part.py").exists()


def test_a_server_that_dies_is_named_and_tried_again_and_two_targets_share_their_packages(
    tiny: Prepared, tmp_path: Path
) -> None:
    with pytest.raises(WorkerFailedError, match=r"exit code 1 .* no such kernel"):
        prepare(TINY, "1.0", tmp_path, {**tiny.environment, "DYING": "1"}, ignore)
    (entry,) = entries(tmp_path)
    assert entry.ready is None
    assert prepare(TINY, "1.0", tmp_path, tiny.environment, ignore).servers == ["serve"]

    lines: list[str] = []
    prepare(OTHER, "1.0", tmp_path, tiny.environment, lines.append)

    assert "other==1.0: 3 packages shared with tiny-1.0" in lines
    assert not any("installed after" in line for line in lines)
    first, second = tmp_path / "tiny-1.0" / "env", tmp_path / "other-1.0" / "env"
    one, other = (site_packages(at) / "tensors.py" for at in (first, second))
    assert one.samefile(other)
    assert str(second) in (second / "bin" / "tensors").read_text().splitlines()[0]
    # Neither needs the other afterwards.
    remove(entry)
    assert not first.exists()
    printed = subprocess.run([second / "bin" / "tensors"], capture_output=True, check=True)
    assert printed.stdout == b"works\n"


def test_a_folder_that_is_none_of_ours_is_left_alone(tiny: Prepared, tmp_path: Path) -> None:
    (tmp_path / "tiny-1.0").mkdir()
    (tmp_path / "tiny-1.0" / "thesis.txt").write_text("mine")

    with pytest.raises(RunDirectoryError, match="holds something else"):
        prepare(TINY, "1.0", tmp_path, tiny.environment, ignore)

    assert entries(tmp_path) == []
    assert (tmp_path / "tiny-1.0" / "thesis.txt").read_text() == "mine"


def test_two_processes_do_not_prepare_one_target(tmp_path: Path) -> None:
    home = tmp_path / "tiny-1.0"
    home.mkdir()

    with locked(home), pytest.raises(RunDirectoryError, match="by another process"):
        prepare(TINY, "1.0", tmp_path, {}, ignore)
