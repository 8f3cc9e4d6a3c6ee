"""The payload of a request, made in the worker: what would be features of an image or a sound."""

from __future__ import annotations

import numpy as np


def make_payload(size_bytes: int, seed: int) -> bytes:
    """``size_bytes`` of noise that depend on ``seed`` alone; empty for 0."""
    return np.random.Generator(np.random.PCG64(seed)).bytes(size_bytes) if size_bytes else b""
