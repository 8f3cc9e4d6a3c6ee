"""Tests of this room judge the same numbers many times."""

from __future__ import annotations

from tests.trends import trends_are_estimated_once

__all__ = ["trends_are_estimated_once"]
