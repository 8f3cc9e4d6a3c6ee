"""Pages of several tokens: SGLang's paged allocator on a CPU.

The allocator is the release's own.  Only its two Triton kernels, which write the slots of new
tokens within the pages that it has chosen, are replaced by the bundled engine's CPU reference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from hybridbench.engine.kernels.page_allocation import reference


def prepare_paged(allocator: type) -> None:
    """Replace the kernels that the methods of ``allocator`` launch."""
    module: Any = sys.modules[allocator.__module__]
    module.alloc_extend_kernel = _Kernel(_extend)
    module.alloc_decode_kernel = _Kernel(_decode)


class _Kernel:
    """Launched like a Triton kernel, with a grid in brackets."""

    def __init__(self, compute: Callable[..., None]) -> None:
        self._compute = compute

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._compute


def _extend(
    prefix_lens: Any, seq_lens: Any, last_loc: Any, free_pages: Any, out: Any, _: int,
    page_size: int, *__: int,
) -> None:  # fmt: skip
    before, after = (-(-lengths // page_size) for lengths in (prefix_lens, seq_lens))
    # With too few pages the allocator refuses after this call.
    if int((after - before).sum()) <= len(free_pages):
        slots = reference.alloc_extend(
            prefix_lens.numpy(), seq_lens.numpy(), last_loc.numpy(), free_pages.numpy(), page_size,
            len(out),
        )  # fmt: skip
        out[:] = torch.from_numpy(slots)


def _decode(
    seq_lens: Any, last_loc: Any, free_pages: Any, out: Any, _: int, page_size: int
) -> None:
    begins = (seq_lens - 1) % page_size == 0
    needed = int(begins.sum())
    pages = free_pages[:needed]
    if len(pages) == needed:
        slots = reference.alloc_decode(begins.numpy(), last_loc.numpy(), pages.numpy(), page_size)
        out[:] = torch.from_numpy(slots)
