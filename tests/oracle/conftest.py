"""Keeps transformers on its plain PyTorch paths."""

from __future__ import annotations

import sys

# With fla importable, transformers sends CPU tensors to GPU kernels; None makes its import fail.
sys.modules["fla"] = None  # type: ignore[assignment]
