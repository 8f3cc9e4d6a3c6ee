"""A folder of tiny wheels that replaces a package index, and an engine served by one of them."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hybridbench.targets.engines.engine import Engine

# Answers completions as an OpenAI server does.
SERVER = """
import argparse, http.server, pathlib

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b'{"data": [{"id": "tiny"}]}')

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(b'{"choices": [{"text": "x"}]}')

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--make")
    parser.add_argument("--model")
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    if options.make:
        pathlib.Path(options.make, "tiny.bin").write_text("weights")
        return
    assert pathlib.Path(options.model).read_text() == "weights"
    import tensors
    http.server.HTTPServer(("127.0.0.1", options.port), Handler).serve_forever()

if __name__ == "__main__":
    main()
"""

SERVE = '#!/bin/sh\n# {about}\nexec {python} -m tiny_serve --model {checkpoints}/tiny.bin "$@"\n'

TINY = Engine(
    name="tiny",
    package="tiny-serve",
    example="1.0",
    note="tiny-serve is built by {author}.",
    servers={"serve": SERVE},
    make_checkpoints=("-m", "tiny_serve", "--make", "{checkpoints}"),
    scripts=(),
    left_out=frozenset({"needs-gpu"}),
)
# Another engine with the same packages, as real engines share torch.
OTHER = replace(TINY, name="other")


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    module: str = "",
    script: bool = False,
) -> Path:
    """Write a wheel with one module; with a ``script``, also with a command of the same name."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nAuthor: Somebody"]
    metadata += [f"Requires-Dist: {one}" for one in requires]
    files = {
        f"{name.replace('-', '_')}.py": module or "def main():\n    print('works')\n",
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        entry = f"[console_scripts]\n{name} = {name.replace('-', '_')}:main\n"
        files[f"{info}/entry_points.txt"] = entry
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={digest.decode()},{len(text.encode())}\n")
    files[f"{info}/RECORD"] = "".join(rows) + f"{info}/RECORD,,\n"
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def make_index(folder: Path) -> Path:
    """Write ``tiny-serve`` 1.0, which is installable, and 2.0, which pins an unavailable build."""
    folder.mkdir()
    make_wheel(folder, "tensors", "2.0+cpu", script=True)
    make_wheel(folder, "json-part", "1.1")
    make_wheel(folder, "json-part", "0.9")
    make_wheel(folder, "needs-gpu", "1.0", requires=["drivers"])
    make_wheel(
        folder, "tiny-serve", "1.0", module=SERVER,
        requires=["tensors==2.0+cpu", "json-part>=1", "needs-gpu", 'extra-part; extra == "all"'],
    )  # fmt: skip
    make_wheel(folder, "tiny-serve", "2.0", module=SERVER, requires=["tensors==1.9+cpu"])
    make_wheel(folder, "tiny-serve", "3.0", module=SERVER, requires=["json-part>=1", "json-part<1"])
    return folder


def offline(index: Path) -> Mapping[str, str]:
    """Return the environment of a pip that uses only ``index``."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    return {
        **inherited,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
    }
