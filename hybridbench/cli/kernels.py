"""``hybridbench list kernels``: the implementation of each operation by device."""

from __future__ import annotations


def list_kernels() -> None:
    """List the engine's kernels: on which device Triton runs them, and on which PyTorch.

    Example: hybridbench list kernels
    """
    from importlib.metadata import PackageNotFoundError, version

    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from hybridbench.engine.kernels.dispatch import DEVICE_TYPES, HOST_OPERATIONS, kernels_for
    from hybridbench.foundation.terminal import Terminal

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(*(Text(title, style="bold") for title in ("operation", *DEVICE_TYPES)))
    columns = [kernels_for(device).implementations() for device in DEVICE_TYPES]
    for operation in columns[0]:
        grid.add_row(Text(operation), *(Text(column[operation]) for column in columns))
    for operation in HOST_OPERATIONS:
        grid.add_row(Text(operation), *(Text("reference") for _ in columns))
    try:
        note = f"triton {version('triton')}"
    except PackageNotFoundError:
        note = "triton is not installed: the references run on every device"
    notes = f"\nAllocators keep their indices on the host.\n{note}"
    Terminal().print(Group(grid, Text(notes, style="dim")))
