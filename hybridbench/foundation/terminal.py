"""The console that all commands print on: what others wrote is shown there, never obeyed."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.segment import Segment

from hybridbench.foundation.safe_output import ReaderLeftError, named_output, no_commands, visible


class Terminal(Console):
    """A Rich console that shows control characters, and gives GitHub's log no commands.

    Rich's own sequences (colours, the live table) are made after this and stay.
    """

    def on_broken_pipe(self) -> None:
        """Rich would end the process here, and with it the run and its exit code."""
        raise ReaderLeftError

    def _write_buffer(self) -> None:
        with named_output():
            super()._write_buffer()

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        shown = (
            segment if segment.control else Segment(visible(segment.text), segment.style)
            for segment in buffer
        )
        text = super()._render_buffer(shown)
        # Folding may begin a line anywhere, so that only the finished lines can be looked at.
        return text if self.is_terminal else no_commands(text)
