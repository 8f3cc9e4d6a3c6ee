"""Counters of two samples as rates of the time between them."""

from __future__ import annotations

from collections.abc import Mapping


class RateWindow:
    """Remembers the last counters it was given."""

    def __init__(self) -> None:
        self._last: tuple[float, float, float] | None = None

    def rates(self, t_s: float, values: Mapping[str, float]) -> dict[str, float]:
        """Throughput since the last call, from event counters; empty the first time."""
        if "events.output_tokens" not in values:
            return {}
        tokens = values["events.output_tokens"] + values["events.prompt_tokens"]
        requests = values["events.finishes"]
        last, self._last = self._last, (t_s, tokens, requests)
        if last is None or t_s <= last[0]:
            return {}
        elapsed_s = t_s - last[0]
        return {
            "throughput_tokens_per_s": (tokens - last[1]) / elapsed_s,
            "requests_per_s": (requests - last[2]) / elapsed_s,
        }
