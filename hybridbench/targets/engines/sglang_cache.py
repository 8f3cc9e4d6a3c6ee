"""Install SGLang's scheduler, pools, trees and sessions without its server.

``released/sglang/`` drives them.  One set of pins serves all releases.

Releases require the torch and kernels of their time, which a machine without a GPU cannot have.
Their Python files need less: one CPU torch and one transformers version work for all.
"""

from __future__ import annotations

from hybridbench.targets.engines.engine import Engine
from hybridbench.targets.engines.sglang import add_stubs

SGLANG_CACHE = Engine(
    name="sglang-cache",
    package="sglang",
    example="0.5.23",
    note="SGLang's own scheduler, pools, prefix caches and sessions without its model: tokens are "
    "drawn, and torch and transformers are not the versions that the release names.",
    servers={},
    make_checkpoints=(),
    scripts=(),
    requirements=(
        "torch==2.13.0+cpu", "transformers==5.6.0", "torchvision==0.28.0", "triton",
        # Imports of the modules; the METADATA pins versions that conflict with those above.
        "IPython", "aiohttp", "anthropic", "apache-tvm-ffi", "blobfile", "cloudpickle",
        "compressed-tensors", "datasets", "dill", "einops", "fastapi", "gguf", "interegular",
        "llguidance", "modelscope", "msgspec", "numba", "numpy", "nvidia-ml-py", "openai",
        "orjson", "outlines==0.1.11", "packaging", "partial_json_parser", "pillow",
        "prometheus-client", "psutil", "py-spy", "pybase64", "pydantic", "python-multipart",
        "pyzmq", "requests", "scipy", "sentencepiece", "setproctitle", "soundfile", "tiktoken",
        "timm", "tqdm", "uvicorn", "uvloop", "watchfiles", "xgrammar", "xxhash", "zstandard",
    ),
    complete=add_stubs,
    releases=(
        "0.5.9", "0.5.10", "0.5.10.post1", "0.5.11", "0.5.12", "0.5.12.post1", "0.5.13",
        "0.5.13.post1", "0.5.14", "0.5.15", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19",
        "0.5.20", "0.5.21", "0.5.22", "0.5.23",
    ),
    settings={"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"},
    imports=("sglang.srt.managers.scheduler",),
)  # fmt: skip
