"""Keeps transformers on its plain PyTorch paths."""

from __future__ import annotations

import sys

# If fla can be imported, transformers passes CPU tensors to its GPU kernels; None prevents that.
sys.modules["fla"] = None  # type: ignore[assignment]
