"""llama.cpp through ``xllamacpp``, a wheel that contains llama.cpp's own HTTP server."""

from __future__ import annotations

from hybridbench.targets.engines.engine import Engine

# llama-server's own prompt cache of 8 GiB fills for hours and looks like a leak; this one is full
# after one to three minutes.
_SERVE = """\
#!/bin/sh
# {about}; `--help` lists the options of `llama-server` that it takes.
exec {python} {scripts}/serve_llamacpp.py --model {checkpoints}/tiny.gguf --cache-ram 64 "$@"
"""

LLAMACPP = Engine(
    name="llamacpp",
    package="xllamacpp",
    example="2026.10.11549",
    note="xllamacpp is a build of llama.cpp by a third party ({author}), not by that project: "
    "reproduce a finding on llama-server before you report it there.",
    servers={"serve": _SERVE},
    models={"llama": "serve"},
    context_len=1024,
    make_checkpoints=("{scripts}/make_gguf.py", "{checkpoints}"),
    scripts=("make_gguf.py", "serve_llamacpp.py"),
    also=("gguf",),
)
