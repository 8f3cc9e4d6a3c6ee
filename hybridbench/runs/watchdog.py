"""Whether the worker is stuck: no engine step for too long with work pending, or no word at all."""

from __future__ import annotations


class Watchdog:
    """Fed by the soak loop; decides by the clock it is given."""

    def __init__(self, limit_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._last_word_s = now_s
        self._step_age_s = 0.0

    def heard(self, now_s: float) -> None:
        """The worker sent something."""
        self._last_word_s = now_s

    def saw_step_age(self, step_age_s: float) -> None:
        """The worker says how long its last step is past; 0 when it has nothing to do."""
        self._step_age_s = step_age_s

    def complaint(self, now_s: float) -> str | None:
        """One sentence if the worker hangs."""
        if self._step_age_s > self._limit_s:
            return f"no engine step for {self._step_age_s:.0f} s with work pending"
        silent_s = now_s - self._last_word_s
        if silent_s > self._limit_s:
            return f"no word from the worker for {silent_s:.0f} s"
        return None
