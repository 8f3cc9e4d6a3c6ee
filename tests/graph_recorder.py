"""A stand-in for CUDA graphs on a processor: what was recorded is done again when it is called."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class EagerRecorder:
    """Counts recordings and replays.

    A recorded step finds its inputs only in the tensors that it closed over, as a graph finds them
    at addresses: the runner has to bring them there before each replay.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def host_buffer(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        self.recorded += 1

        def replay() -> None:
            work()
            self.replayed += 1

        return replay

    def pool_bytes(self) -> int:
        return 1024 * self.recorded
