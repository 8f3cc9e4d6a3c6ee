"""Preparing an engine from a folder of tiny wheels: every step, and each kind of refusal."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

import msgspec
import pytest

from hybridbench.foundation.errors import (
    ConfigError,
    ErrorCode,
    RunDirectoryError,
    WorkerFailedError,
)
from hybridbench.targets import prepare as preparing
from hybridbench.targets.linked_packages import site_packages
from hybridbench.targets.pip import Pip, _Found, _package
from hybridbench.targets.prepare import _Steps, prepare, releases_of
from hybridbench.targets.prepared import (
    disk_bytes,
    entries,
    entry_of,
    locked,
    prepared_target,
    remove,
)
from tests.unit.targets.tiny_index import OTHER, TINY, make_index, make_wheel, offline

# For a distribution whose METADATA is made by a program that wants to download the real wheel.
PLACEHOLDER = """\
WARNING: pip is using lazily downloaded wheels
  error: subprocess-exited-with-error
  \N{MULTIPLICATION SIGN} python setup.py egg_info did not run successfully.
  │ exit code: 1
  ╰─> [30 lines of output]
      no placeholder
      [end of output]
error: metadata-generation-failed
\N{MULTIPLICATION SIGN} Encountered error while generating package metadata.
╰─> cuda-tile

note: This is an issue with the package mentioned above, not pip.
"""


class Prepared:
    """One prepared target, for all tests that do not change it."""

    def __init__(self, root: Path, index: Path) -> None:
        self.root, self.index, self.lines = root, index, list[str]()
        self.environment: Mapping[str, str] = offline(index)
        self.home, self.empty = root / "tiny-1.0", root.parent / "empty"
        self.found: dict[str, object] = {}
        renew, call = Pip.renew, _Steps._call

        def renew_and_copy(pip: Pip) -> bool:
            renewed = renew(pip)
            shutil.copytree(self.home / "env", self.empty, symlinks=True)
            return renewed

        def copy_pip(steps: _Steps, command: Sequence[str]) -> None:
            """Copy this environment's pip, because installing one takes seconds of CPU time."""
            if "venv" not in command:
                call(steps, command)
                return
            call(steps, [*command[:-1], "--without-pip", command[-1]])
            for part in distribution("pip").files or ():
                target = site_packages(Path(command[-1])) / part
                if ".." not in part.parts:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(part.locate(), target)

        def remembered(name: str) -> Callable[..., object]:
            method = vars(Pip)[name]

            def remember(*arguments: object, **named: object) -> object:
                self.found[name] = method(*arguments, **named)
                return self.found[name]

            return remember

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_Steps, "_call", copy_pip)
            patch.setattr(Pip, "renew", renew_and_copy)
            for name in ("release", "plan"):
                patch.setattr(Pip, name, remembered(name))
            # To be ignored: bytecode in another folder than the package could not be shared.
            elsewhere = {"PYTHONPYCACHEPREFIX": str(root.parent / "bytecode")}
            environment = {**self.environment, **elsewhere}
            self.target = prepare(TINY, "1.0", root, environment, self.lines.append)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("targets")
    return Prepared(folder / "root", make_index(folder / "index"))


@pytest.fixture
def copied_environments(tiny: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Link the files of the first environment, because making one takes seconds of CPU time."""
    call = _Steps._call

    def link(steps: _Steps, command: Sequence[str]) -> None:
        if "venv" not in command:
            call(steps, command)
            return
        shutil.copytree(tiny.empty, command[-1], symlinks=True, copy_function=os.link)

    monkeypatch.setattr(_Steps, "_call", link)
    monkeypatch.setattr(Pip, "renew", lambda _: True)


@pytest.fixture
def known_plan(tiny: Prepared, copied_environments: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip find and plan what it did for the first target."""
    for name, found in tiny.found.items():
        monkeypatch.setattr(Pip, name, lambda *_, found=found, **__: found)


@pytest.fixture
def known_packages(tiny: Prepared, tmp_path: Path, known_plan: None) -> None:
    """Beside the first target, whose packages are needed again: pip has nothing to do."""
    (tmp_path / "tiny-1.0").symlink_to(tiny.home)


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


@pytest.mark.parametrize("info", [{"hashes": {"sha256": "ab12"}}, {"hash": "sha256=ab12"}])
def test_a_hash_is_read_as_every_pip_reports_it(info: dict[str, object]) -> None:
    one = {
        "download_info": {"url": "file:///tiny.whl", "archive_info": info},
        "metadata": {"name": "tiny", "version": "1.0"},
    }

    assert _package(msgspec.convert(one, _Found)).sha256 == "ab12"


def test_its_start_script_takes_the_options_of_the_server(tiny: Prepared) -> None:
    assert tiny.target.servers == ("serve",)

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


@pytest.fixture
def pip(tiny: Prepared, tmp_path: Path) -> Pip:
    # With a user's constraint, pip reports a missing build as a conflict.
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("tensors<=3\n")
    environment = {**tiny.environment, "PIP_CONSTRAINT": str(constraints)}
    return Pip(tiny.home / "env" / "bin" / "python", tmp_path, environment)


@pytest.mark.parametrize(
    ("requirements", "code", "words"),
    [
        (
            ["json-part", "tensors==1.9+cpu"],
            ErrorCode.NOT_FOUND,
            "tiny 1 needs tensors==1.9+cpu, and pip finds only 2.0+cpu: give pip an index",
        ),
        (["no-such-part"], ErrorCode.NOT_FOUND, "needs no-such-part, and pip finds none of its"),
        (["json-part>=1", "json-part<1"], ErrorCode.MISMATCH, "tiny 1 cannot be installed here"),
    ],
)
def test_requirements_that_cannot_be_met_are_named_in_a_sentence(
    pip: Pip, requirements: list[str], code: ErrorCode, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        pip.plan(requirements, needed_by="tiny 1")

    assert refused.value.code == code
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            PLACEHOLDER,
            "Encountered error while generating package metadata: cuda-tile",
        ),
        (
            "WARNING: is ignored\nERROR: No space left on device.\nhint: x",
            "No space left on device",
        ),
        ("WARNING: is ignored\nTraceback\nRuntimeError: no network\n", "RuntimeError: no network"),
        ("", "it printed nothing"),
    ],
)
def test_a_failure_of_pip_is_told_by_the_line_that_says_why(
    pip: Pip, output: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess[str]([], 1, "", output)
    monkeypatch.setattr(Pip, "_run", lambda *_, **__: failed)

    with pytest.raises(ConfigError) as refused:
        pip.plan(["tiny"], needed_by="tiny 1")

    assert str(refused.value) == f"pip failed: {reason}."


def test_the_releases_that_pip_finds_are_listed_from_the_oldest(tiny: Prepared) -> None:
    assert releases_of(TINY, "1.0", tiny.root, tiny.environment) == ["1.0", "2.0", "3.0"]


def test_a_release_that_is_not_there_is_refused_with_those_that_are(pip: Pip) -> None:
    with pytest.raises(ConfigError, match=r"no tiny-serve==9.9 .* but only 1.0, 2.0") as refused:
        pip.release("tiny-serve", "9.9")

    assert refused.value.code == ErrorCode.UNKNOWN_NAME


@pytest.mark.usefixtures("copied_environments")
def test_a_release_that_cannot_be_had_leaves_nothing_behind(tiny: Prepared, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tiny-serve 2.0 needs tensors==1.9\+cpu"):
        prepare(TINY, "2.0", tmp_path, tiny.environment, ignore)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("known_plan")
def test_preparing_goes_on_where_it_was_stopped(
    tiny: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "_BATCH", 1)
    index, home = tmp_path / "index", tmp_path / "root" / "tiny-1.0"
    shutil.copytree(tiny.index, index)
    planned = (index / "json_part-1.1-py3-none-any.whl").read_bytes()

    def change_json_part(line: str) -> None:
        if "packages to install" in line:
            make_wheel(index, "json-part", "1.1", module="changed = True\n")

    # Two packages are installed when the third turns out to differ from the plan.
    with pytest.raises(ConfigError, match="run the same command again to go on"):
        prepare(TINY, "1.0", home.parent, offline(index), change_json_part)
    begun = entry_of(home)
    assert begun is not None
    assert begun.ready is None
    assert begun.partial is not None
    assert len(begun.partial.planned) == 3
    assert set(begun.partial.installed) == {"tiny-serve", "tensors"}
    site = site_packages(home / "env")
    assert not (site / "json_part.py").exists()
    # A process may also end in the middle of a package, leaving its METADATA and little else.
    half = site / "json_part-1.1.dist-info"
    half.mkdir()
    (half / "METADATA").write_text("Metadata-Version: 2.1\nName: json-part\nVersion: 1.1\n")
    (index / "json_part-1.1-py3-none-any.whl").write_bytes(planned)

    lines: list[str] = []
    ready = prepare(TINY, "1.0", home.parent, offline(index), lines.append)

    assert not any("making an environment" in line for line in lines)
    assert "tiny==1.0: 1 of 3 packages to install" in lines
    assert (site / "json_part.py").is_file()
    assert ready.seconds > begun.partial.seconds
    (entry,) = entries(home.parent)
    assert entry.ready == ready
    assert entry.partial is None


@pytest.mark.usefixtures("known_packages")
def test_two_targets_share_what_both_need_and_can_be_removed_alone(
    tiny: Prepared, tmp_path: Path
) -> None:
    lines: list[str] = []

    prepare(OTHER, "1.0", tmp_path, tiny.environment, lines.append)

    assert "other==1.0: 3 of 3 packages shared with tiny-1.0" in lines
    assert not any("installed after" in line for line in lines)
    first, second = tiny.home / "env", tmp_path / "other-1.0" / "env"
    one, other = (site_packages(at) / "tensors.py" for at in (first, second))
    assert one.samefile(other)
    assert one.stat().st_nlink == 2
    total, shared = disk_bytes(tmp_path / "other-1.0")
    assert 0 < shared < total
    # The commands of the second environment run its own interpreter.
    script = second / "bin" / "tensors"
    assert str(second) in script.read_text().splitlines()[0]
    assert subprocess.run([script], capture_output=True, check=True).stdout == b"works\n"
    made = entry_of(tmp_path / "other-1.0")
    assert made is not None
    remove(made)
    assert not second.exists()
    assert one.stat().st_nlink == 1


def test_a_folder_that_is_none_of_ours_is_left_alone(tiny: Prepared, tmp_path: Path) -> None:
    (tmp_path / "tiny-1.0").mkdir()
    (tmp_path / "tiny-1.0" / "thesis.txt").write_text("mine")

    with pytest.raises(RunDirectoryError, match="contains other files"):
        prepare(TINY, "1.0", tmp_path, tiny.environment, ignore)

    assert entries(tmp_path) == []
    assert (tmp_path / "tiny-1.0" / "thesis.txt").read_text() == "mine"


def test_two_processes_do_not_prepare_one_target(tmp_path: Path) -> None:
    home = tmp_path / "tiny-1.0"
    home.mkdir()

    with locked(home), pytest.raises(RunDirectoryError, match="by another process"):
        prepare(TINY, "1.0", tmp_path, {}, ignore)


@pytest.mark.usefixtures("known_packages")
def test_a_checkpoint_that_a_release_cannot_serve_is_left_out_and_the_others_are_ready(
    tiny: Prepared, tmp_path: Path
) -> None:
    hybrid = "#!/bin/sh\necho 'worker: KeyError: no such kernel' >&2\nexit 3\n"
    two = replace(OTHER, servers={**TINY.servers, "serve-hybrid": hybrid})
    one = replace(TINY, name="third", servers={"serve-hybrid": hybrid})
    lines: list[str] = []

    ready = prepare(two, "1.0", tmp_path, tiny.environment, lines.append)

    assert ready.servers == ("serve",)
    assert [path.name for path in (tmp_path / "other-1.0" / "bin").iterdir()] == ["serve"]
    assert "KeyError: no such kernel" in lines[-1]
    with pytest.raises(WorkerFailedError, match="serve-hybrid ended with exit code 3"):
        prepare(one, "1.0", tmp_path, tiny.environment, ignore)


@pytest.mark.usefixtures("copied_environments")
def test_without_a_server_its_own_requirements_are_installed_and_its_modules_imported(
    tmp_path: Path,
) -> None:
    index = make_index(tmp_path / "index")
    driven = replace(
        TINY, name="driven", servers={}, make_checkpoints=(), requirements=("json-part<1",),
        imports=("tiny_serve", "json_part"),
    )  # fmt: skip
    lines: list[str] = []

    # Its METADATA requires json-part>=1 and json-part<1, which no version satisfies.
    ready = prepare(driven, "3.0", tmp_path / "root", offline(index), lines.append)

    assert {(one.name, one.version) for one in ready.packages} == {
        ("tiny-serve", "3.0"),
        ("json-part", "0.9"),
    }
    assert ready.servers == ()
    assert "driven==3.0: importing tiny_serve" in lines
    assert "driven==3.0: importing json_part" in lines


@pytest.mark.slow
def test_a_release_whose_modules_cannot_be_imported_is_not_ready(tmp_path: Path) -> None:
    """Its environment is a real one, with a pip of its own."""
    index = make_index(tmp_path / "index")
    driven = replace(
        TINY, name="driven", servers={}, make_checkpoints=(), requirements=("json-part",),
        imports=("no_such_module",),
    )  # fmt: skip

    with pytest.raises(WorkerFailedError, match="no_such_module"):
        prepare(driven, "1.0", tmp_path / "root", offline(index), ignore)
