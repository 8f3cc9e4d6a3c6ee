"""The console of all commands, which displays control characters in foreign text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.segment import Segment

from hybridbench.foundation.safe_output import ReaderLeftError, named_output, no_commands, visible


class Terminal(Console):
    """A Rich console that displays control characters, and sends no commands to GitHub's log.

    Rich's own sequences (colours, the live table) are added afterwards and stay.
    """

    def on_broken_pipe(self) -> None:
        """Raise; Rich would exit the process, ending the run and losing its exit code."""
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
        # Wrapping can break lines anywhere, so only the finished lines can be checked.
        return text if self.is_terminal else no_commands(text)
