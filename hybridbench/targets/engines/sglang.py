"""SGLang on a CPU: the official wheel, with stubs for everything that needs a GPU."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from hybridbench.targets.engines.engine import Engine

_SERVE = """\
#!/bin/sh
# {about}; further options are those of `sglang.launch_server`.
unset PYTHONDONTWRITEBYTECODE
export HF_HUB_OFFLINE=1 SGLANG_USE_CPU_ENGINE=1
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"
export SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND="${{SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND:-python}}"
exec {python} -m sglang.launch_server --model-path {checkpoints}/CHECKPOINT --host 127.0.0.1 \\
  --served-model-name tiny --device cpu --dtype float32 --attention-backend torch_native \\
  --sampling-backend pytorch --grammar-backend none --disable-overlap-schedule \\
  --mem-fraction-static 0.1 --max-total-tokens 20000 --max-running-requests 8 \\
  --context-length 2048 --skip-server-warmup --enable-metrics --enable-cache-report \\
  "$@"
"""
# The weights of a hybrid model do not matter here (its operators are stubs); its pools do.  An idle
# session keeps its row (sglang#37583), so there must be one for each that a profile opens, and
# SGLang allows one row for three states.
_HYBRID = (
    "--load-format dummy --max-running-requests 32 --max-mamba-cache-size 96 "
    "--enable-streaming-session"
)
_STUBS = "sglang_cpu_stubs"
# By canonical name; SGLang's imports of these are stubbed.
_NEEDS_GPU = frozenset(
    {
        "av", "cuda-python", "cuda-tile", "decord2", "deepseek-recipe", "flash-attn-4",
        "flashinfer-python", "humming-kernels", "kernels", "nvidia-cutlass-dsl",
        "nvidia-mathdx", "nvshmem4py-cu13", "quack-kernels", "sgl-deep-ep", "sgl-deep-gemm",
        "sgl-flash-mla", "sglang-kernel", "smg-grpc-servicer", "tilelang", "tml-renderers",
        "tokenspeed-mla", "torch-memory-saver", "torchaudio", "torchcodec",
    }
)  # fmt: skip


def add_stubs(site: Path, release: str) -> None:
    """Install the stubs for all processes; a ``.pth`` file leaves ``sitecustomize`` free."""
    source = resources.files(__package__) / "inside" / f"{_STUBS}.py"
    (site / f"{_STUBS}.py").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    (site / f"{_STUBS}.pth").write_text(f"import {_STUBS}\n", encoding="utf-8")


SGLANG = Engine(
    name="sglang",
    package="sglang",
    example="0.5.23",
    note="SGLang runs on a CPU with stubs for its GPU kernels: scheduler, pools and trees are its "
    "own, answers of a hybrid model are not.",
    servers={
        "serve": _SERVE.replace("CHECKPOINT", "llama"),
        "serve-hybrid": _SERVE.replace("CHECKPOINT", "qwen3next").replace(
            '"$@"', f'{_HYBRID} "$@"'
        ),
    },
    models={"llama": "serve", "qwen3-next": "serve-hybrid"},
    context_len=2048,
    make_checkpoints=("{scripts}/make_checkpoints.py", "{checkpoints}"),
    scripts=("make_checkpoints.py",),
    left_out=_NEEDS_GPU,
    # A CPU build; the stubs declare the operators that its torchvision lacks.
    instead={"torch": "torch==2.13.0+cpu"},
    also=("triton",),
    complete=add_stubs,
)
