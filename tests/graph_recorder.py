"""A fake of CUDA graphs on the CPU: replaying a recording runs the recorded work again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class EagerRecorder:
    """Counts recordings and replays.

    A recorded step reads its inputs only from the tensors that it closed over, as a graph reads
    them from fixed addresses; the runner must write them there before each replay.
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
