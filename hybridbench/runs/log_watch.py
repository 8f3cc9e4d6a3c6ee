"""Watch the worker's stderr as it grows for reports of a leak, a hang or memory exhaustion.

A verbose worker must cost little: each read is bounded, and a repeated line is counted, then
reported again only when its count has grown tenfold.  Only the recognised part of a line is stored,
because the rest may be a prompt or a key.
"""

from __future__ import annotations

from pathlib import Path

from hybridbench.analysis.findings.engine_log import (
    Trouble,
    goes_on_with_pools,
    pools_in,
    storable,
    template_of,
    trouble_in,
)
from hybridbench.records.events import EngineLog, EngineViolation, Event
from hybridbench.runs.recorder import Recorder

_READ_BYTES_MAX = 256 * 2**10
_LINE_CHARS_KEPT = 500
_SAYINGS_MAX = 50


class LogWatch:
    """Tracks the read position and how often each message occurred; both are bounded."""

    def __init__(self, path: Path, recorder: Recorder) -> None:
        self._path = path
        self._recorder = recorder
        # A resumed run appends to the log of its first segment, which was read then.
        self._offset = path.stat().st_size if path.exists() else 0
        self._part = b""
        self._counts: dict[str, int] = {}
        self._on_pools = False

    def read_new(self) -> None:
        """Read new output, at most its last quarter of a megabyte."""
        try:
            size = self._path.stat().st_size
            if size < self._offset:
                # The file was truncated to its last part, which has been read.
                self._offset, self._part = size, b""
                return
            if size == self._offset:
                return
            skipped = size - self._offset > _READ_BYTES_MAX
            start = max(self._offset, size - _READ_BYTES_MAX)
            with self._path.open("rb") as file:
                file.seek(start)
                # What was written since the size was read is left to the next call.
                new = file.read(size - start)
        except OSError:
            return
        self._offset = size
        *lines, self._part = ((b"" if skipped else self._part) + new).split(b"\n")
        self._part = self._part[-_READ_BYTES_MAX:]
        for line in lines:
            self.line(line.decode("utf-8", "replace"))

    def finish(self) -> None:
        """Read to the end, including a last line without a newline."""
        self.read_new()
        rest, self._part = self._part, b""
        if rest:
            self.line(rest.decode("utf-8", "replace"))

    def line(self, text: str, stamp_s: float | None = None) -> None:
        """Process one line that the engine wrote; keep it if it reports trouble.

        ``stamp_s`` is its monotonic time, if known more precisely than "now".
        """
        trouble = trouble_in(text)
        goes_on = self._on_pools and goes_on_with_pools(text)
        self._on_pools = trouble is Trouble.LEAK or goes_on
        if trouble is None and not goes_on:
            return
        kept = storable(text)[:_LINE_CHARS_KEPT]
        key = template_of(kept)
        if key not in self._counts and len(self._counts) >= _SAYINGS_MAX:
            return
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if str(count).rstrip("0") != "1":  # no power of ten
            return
        events: list[Event] = [] if trouble is None else [EngineLog(kept, count)]
        events += [
            EngineViolation(kind="residual", pool=pool, message=kept, count=missing)
            for pool, missing in pools_in(text).items()
            if missing
        ]
        for event in events:
            if stamp_s is None:
                self._recorder.event(event)
            else:
                self._recorder.at(stamp_s, event)
