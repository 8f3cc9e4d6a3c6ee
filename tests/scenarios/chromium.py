"""Drive a real headless browser over a pipe with the DevTools protocol.

This opens no port and needs no library: messages are NUL-terminated JSON on the browser's file
descriptors 3 and 4.

``python -m tests.scenarios.chromium PAGE.html OUT.png [dark] [SELECTOR]`` takes a picture.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
HOW = "there is no chromium here: `apt-get install chromium`, then `make test-browser`"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_PATIENCE_S = 60.0
_ABOVE_STANDARD = 10  # from here on, a descriptor cannot be 3 or 4, to which it is duplicated


def chromium() -> str | None:
    """Return this machine's browser; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page in its own browser; a context manager that cleans up everything."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        program = chromium()
        assert program is not None, HOW
        self._profile = tempfile.mkdtemp(prefix="hybridbench-chromium-")
        self._reader, theirs_out = _pipe()
        theirs_in, self._writer = _pipe()
        flags = [*_FLAGS, f"--user-data-dir={self._profile}", f"--window-size={width},{height}"]
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *flags],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []  # console errors, exceptions, policy violations
        self.requests: list[str] = []  # every requested address
        self._loaded = False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def __enter__(self) -> Tab:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(_PATIENCE_S)
        os.close(self._reader)
        os.close(self._writer)
        shutil.rmtree(self._profile, ignore_errors=True)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result; record the events that arrive meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, page: Path) -> None:
        """Load ``page`` and wait until it is drawn."""
        self._loaded = False
        self.send("Page.navigate", url=page.resolve().as_uri())
        while not self._loaded:
            self._note(self._next())
        self.settle()

    def settle(self) -> None:
        """Wait until two more frames have been drawn."""
        self.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; await it if it is a promise."""
        answer = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the left button at ``start``, move, and release it at ``end``."""
        steps = [start, ((start[0] + end[0]) / 2, start[1]), end]
        self._mouse("mouseMoved", start, "none", 0)
        self._mouse("mousePressed", start, "left", 1)
        for at in steps:
            self._mouse("mouseMoved", at, "left", 1)
        self._mouse("mouseReleased", end, "left", 0)
        self.settle()

    def double_click(self, at: tuple[float, float]) -> None:
        for count in (1, 2):
            for kind in ("mousePressed", "mouseReleased"):
                self._mouse(kind, at, "left", 1, count)
        self.settle()

    def key(self, name: str) -> None:
        """Press and release the key ``name`` in the focused element."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": name} if kind == "keyDown" and len(name) == 1 else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=name, **text)
        self.settle()

    def prefer(self, scheme: str) -> None:
        """Set the preferred colour scheme to ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.settle()

    def picture(self, clip: Mapping[str, float] | None = None) -> bytes:
        """Return a PNG of the viewport, or of the page's ``clip`` (x, y, width, height)."""
        more = {} if clip is None else {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True}
        return base64.b64decode(self.send("Page.captureScreenshot", **more)["data"])

    def _mouse(
        self, kind: str, at: tuple[float, float], button: str, buttons: int, count: int = 1
    ) -> None:
        self.send(
            "Input.dispatchMouseEvent",
            type=kind,
            x=at[0],
            y=at[1],
            button=button,
            buttons=buttons,
            clickCount=0 if kind == "mouseMoved" else count,
        )

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reader], [], [], _PATIENCE_S)
            data = os.read(self._reader, 1 << 16) if ready else b""
            assert data, "the browser is silent or gone"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, message: Mapping[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in {"error", "warning"}:
            self.complaints.append(str(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(told["entry"]["text"])


def _pipe() -> tuple[int, int]:
    """Make a pipe whose descriptors are above those that the browser uses."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE_STANDARD) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def _main(page: Path, out: Path, scheme: str, selector: str) -> None:
    with Tab(1280, 860) as tab:
        tab.prefer(scheme)
        tab.open(page)
        clip = None
        if selector:
            clip = tab.run(
                f"(({{x, y, width, height}}) => ({{x, y: y + scrollY, width, height}}))"
                f"(document.querySelector({selector!r}).getBoundingClientRect())"
            )
        out.write_bytes(tab.picture(clip))


if __name__ == "__main__":
    _main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        "dark" if "dark" in sys.argv[3:] else "light",
        next((word for word in sys.argv[3:] if word not in {"dark", "light"}), ""),
    )
