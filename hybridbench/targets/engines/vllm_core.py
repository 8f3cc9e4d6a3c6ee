"""Install vLLM's scheduler and KV-cache manager without its server.

``released/vllm/`` drives them.  One set of pins serves all releases.

Releases require the torch of their time, which a machine without a GPU may not have.  The Python
files of their scheduler need less: one CPU torch and one transformers version work for all.
"""

from __future__ import annotations

from pathlib import Path

from hybridbench.targets.engines.engine import Engine
from hybridbench.targets.engines.vllm import add_metadata


def _complete(site: Path, release: str) -> None:
    """Call it a CPU build, which vLLM requires here, and remove the kernels: none runs, and they
    need CUDA and the release's torch.
    """
    add_metadata(site, release)
    for library in (site / "vllm").rglob("*.so"):
        library.unlink()


VLLM_CORE = Engine(
    name="vllm-core",
    package="vllm",
    example="0.33.0",
    note="vLLM's own scheduler, KV-cache manager and block pool without its model: tokens are "
    "drawn, and torch and transformers are not the versions that the release names.",
    servers={},
    make_checkpoints=(),
    scripts=(),
    requirements=(
        "torch==2.13.0+cpu", "transformers==5.19.0",
        # Imports of the modules; the METADATA pins versions that conflict with those above.
        "aiohttp", "apache-tvm-ffi", "blake3", "cachetools", "cbor2", "cloudpickle",
        "compressed-tensors", "depyf", "diskcache", "einops", "fastapi", "filelock", "gguf",
        "ijson", "lark", "llguidance", "mistral_common[image]", "msgspec", "numba", "numpy",
        "openai", "openai-harmony", "opencv-python-headless", "oss-harmony", "outlines_core",
        "packaging", "partial-json-parser", "pillow", "prometheus-client",
        "prometheus-fastapi-instrumentator", "protobuf", "psutil", "py-cpuinfo", "pybase64",
        "pydantic", "pydantic-extra-types", "python-json-logger", "python-multipart", "pyyaml",
        "pyzmq", "regex", "requests", "scipy", "sentencepiece", "setproctitle", "six", "tiktoken",
        "tokenizers", "tqdm", "typing_extensions", "uvloop", "watchfiles", "xgrammar",
    ),
    complete=_complete,
    releases=(
        "0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0",
        "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0",
        "0.33.0",
    ),
    settings={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
    imports=("vllm.v1.core.sched.scheduler",),
)  # fmt: skip
