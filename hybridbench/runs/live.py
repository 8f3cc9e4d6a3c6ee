"""Show a run in progress: as a live table on a terminal, as periodic lines elsewhere.

All output goes to stderr; stdout is for the result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hybridbench.analysis.findings.words import times
from hybridbench.foundation.safe_output import give_up, one_line
from hybridbench.foundation.terminal import Terminal
from hybridbench.foundation.units import (
    format_byte_rate,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    sparkline,
)
from hybridbench.runs.memory_slope import Slope
from hybridbench.runs.status import PoolLevel, RunStatus, View

_REFRESH_S = 0.25
_HEARTBEAT_S = 30.0
_HEARTBEAT_FIRST_S = 10.0
_HEARTBEAT_LATE_S = 300.0
_FIRST_HOUR_S = 3600.0
_BAR = 30
_BESIDE_BAR = 28  # columns for a row's name and number
_KEY_FROM = 80
# A flat series must look flat: the smallest plotted range, as a share of the level.
_LEAST_SPAN = 0.005


def make_view(ui: str, stream: TextIO | None = None) -> View:
    """Return the view called ``ui``: "live", "plain" or "none"; "auto" depends on the terminal."""
    stream = stream if stream is not None else sys.stderr
    console = Terminal(file=stream, highlight=False)
    if ui == "none":
        return View()
    if ui == "live" or (ui == "auto" and console.is_terminal and not console.is_dumb_terminal):
        return LastingView(LiveView(console), stream)
    return LastingView(PlainView(console), stream)


class LastingView(View):
    """Show output through another view until writing fails; after that, show nothing.

    A closed terminal, or a pipe whose reader has died, must not end a soak of many hours.
    """

    def __init__(self, view: View, stream: TextIO) -> None:
        self.shown: View = view
        self._stream = stream

    def update(self, status: RunStatus) -> None:
        """Show ``status`` while output is possible."""
        self._show(lambda: self.shown.update(status))

    def note(self, text: str) -> None:
        """Show ``text`` while output is possible."""
        self._show(lambda: self.shown.note(text))

    def close(self) -> None:
        """Close the view if it still works."""
        self._show(self.shown.close)

    def _show(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError:
            self.shown = View()
            give_up(self._stream)


class PlainView(View):
    """Print a time-stamped line at each change of phase and every half minute: for logs and CI.

    Many CI systems kill a job without output, so there is a line at least every five minutes.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = ""
        self._next_s = 0.0

    def update(self, status: RunStatus) -> None:
        """Print a line if one is due."""
        pause = status.phase in {"drain", "idle", "resume"}
        if status.phase != self._phase and not pause:
            self._phase = status.phase
            self._next_s = status.elapsed_s + _HEARTBEAT_FIRST_S
            self._print(status)
        elif status.elapsed_s >= self._next_s:
            late = status.elapsed_s > _FIRST_HOUR_S
            self._next_s = status.elapsed_s + (_HEARTBEAT_LATE_S if late else _HEARTBEAT_S)
            self._print(status)

    def note(self, text: str) -> None:
        """Print ``text`` with its time."""
        self._line(text)

    def _print(self, status: RunStatus) -> None:
        pools = " ".join(
            f"{name} {_share(level.total - level.available, level.total)}"
            for name, level in status.pools.items()
        )
        tokens = "" if status.observed else f"{format_count(status.tokens_per_s)} computed tok/s  "
        roles = " ".join(f"{role} {format_bytes(size)}" for role, size in status.roles.items())
        several = f" ({roles})" if len(status.roles) > 1 else ""
        self._line(
            f"{status.phase:<7} {_elapsed(status)}  "
            f"private memory {format_bytes(status.private_bytes)}{several}  "
            f"{status.requests_per_s:.0f} req/s  {tokens}{pools}  {status.so_far}"
        )

    def _line(self, text: str) -> None:
        stamp = time.strftime("%H:%M:%S")
        self._console.print(f"{stamp} {one_line(text)}", markup=False, soft_wrap=True)


class LiveView(View):
    """A table that is redrawn in place, at most four times a second, from the caller's thread."""

    def __init__(self, console: Console) -> None:
        # No refresh thread: it would compete with the loop for the interpreter.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._next_s = 0.0
        self._live.start()

    def update(self, status: RunStatus) -> None:
        """Redraw if the last drawing is old enough."""
        if status.elapsed_s < self._next_s:
            return
        self._next_s = status.elapsed_s + _REFRESH_S
        self._live.update(picture(status, self._live.console.width), refresh=True)

    def note(self, text: str) -> None:
        """Print ``text`` above the table."""
        self._live.console.print(one_line(text), markup=False)

    def close(self) -> None:
        """Remove the table; the report comes next."""
        self._live.stop()


def picture(status: RunStatus, width: int) -> RenderableType:
    """Render the whole live view for a terminal of ``width`` columns; 50 are enough."""
    bar_width = min(_BAR, width - _BESIDE_BAR)
    head = Text.assemble(
        (status.title, "bold"),
        "  ",
        status.phase,
        "  ",
        (status.so_far, "yellow" if status.suspicion else "green"),
    )
    eta = format_duration(status.remaining_s)
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=1.0, completed=status.progress, width=min(_BAR, width // 3)),
        f"{_elapsed(status)}, {eta} to go",
    )
    table = Table.grid(padding=(0, 2))
    table.add_row(
        "memory",
        format_bytes(status.private_bytes),
        sparkline(
            list(status.private_history)[-(width - _BESIDE_BAR) :],
            _LEAST_SPAN * status.private_bytes,
        ),
    )
    table.add_row("growth", *_growth(status.slope.fit()))
    for role, size in status.roles.items() if len(status.roles) > 1 else ():
        table.add_row(f"  {role}", format_bytes(size), format_percent(size / status.private_bytes))
    for name, level in status.pools.items():
        used = level.total - level.available
        table.add_row(f"pool {name}", _share(used, level.total), _pool_bar(level, bar_width, width))
    for row in _observed(status) if status.observed else _driven(status):
        table.add_row(*row)
    return Group(head, bar, table)


def _driven(status: RunStatus) -> list[tuple[str, str, str]]:
    """Return the rows for a run that sends its own traffic."""
    traffic = (
        f"{format_count(status.tokens_per_s)} computed tok/s, {status.running} running, "
        f"{status.waiting} waiting, {format_count(status.finished)} done, "
        f"{status.aborted} aborted, {status.rejected} rejected"
    )
    probes = (
        f"{times(status.heap_scans, 'heap scan')}, {times(status.checkpoints, 'checkpoint')}, "
        f"{format_bytes(status.collectible_bytes)} uncollected garbage"
    )
    return [
        ("traffic", f"{status.requests_per_s:.0f} req/s", traffic),
        ("TTFT", *_ttft(status.ttft_ms)),
        ("probes", format_percent(status.probe_share, 2), probes),
    ]


def _observed(status: RunStatus) -> list[tuple[str, str, str]]:
    """Return the rows for a run that only observes others' traffic."""
    traffic = f"{status.running} running, {status.waiting} waiting"
    looks = f"{times(status.heap_scans, 'heap scan')}, {times(status.checkpoints, 'idle point')}"
    return [
        ("traffic", f"{status.requests_per_s:.0f} req/s", traffic),
        ("probes", format_percent(status.probe_share, 2), looks),
    ]


def _growth(slope: Slope | None) -> tuple[str, str]:
    if slope is None:
        return "-", "too few samples since the warm-up"
    sign = "+" if slope.per_hour >= 0 else "\N{MINUS SIGN}"
    half_width = format_byte_rate(slope.half_width)
    return (
        f"{sign}{format_byte_rate(abs(slope.per_hour))}",
        f"± {half_width} (95%), private memory",
    )


def _ttft(ttft_ms: tuple[float, float] | None) -> tuple[str, str]:
    if ttft_ms is None:
        return "-", ""
    p50, p99 = ttft_ms
    return f"{p50:.3g} ms", f"p50; p99 {p99:.3g} ms"


def _pool_bar(level: PoolLevel, bar_width: int, width: int) -> Text:
    if not level.total:
        return Text("")
    running = round(bar_width * (level.in_flight + level.protected) / level.total)
    cached = round(bar_width * level.evictable / level.total)
    free = max(0, bar_width - running - cached)
    key = "  running, cached, free" if width >= _KEY_FROM else ""
    return Text.assemble(("█" * running, "cyan"), ("▒" * cached, "blue"), ("·" * free, "dim"), key)


def _elapsed(status: RunStatus) -> str:
    """``10s of 2m``, in whole seconds."""
    return (
        f"{format_duration(float(int(status.traffic_s)))} of {format_duration(status.duration_s)}"
    )


def _share(part: float, whole: float) -> str:
    return format_percent(part / whole) if whole else "-"
